"""The job of one run: a model works on a task in a working copy until it answers or must stop.

Each tool call is atomic: it is kept or rolled back as a whole. Every step is recorded as it
happens. What the rollback of a command displaced is kept, because it may be a save of the user.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from weakincentives.adapters import (
    CancellationToken,
    Message,
    PromptResponse,
    ProviderAdapter,
    StepLimitError,
    UserMessage,
    partial_response,
)
from weakincentives.cli.digest import open_cache
from weakincentives.cli.run.options import SHELL_LIMITS, JobOptions, Start, add_attachments
from weakincentives.cli.run.prompt import prepare_prompt
from weakincentives.cli.run.result import (
    IncompleteAnswerError,
    JobResult,
    TestCommand,
    TestRun,
    TestsFailedError,
    ask_until_tests_pass,
    check_answer,
    count_traffic,
    show_test,
)
from weakincentives.cli.run.view import Progress, View
from weakincentives.cli.run.workspace import changed_paths
from weakincentives.cli.runs import copy_name, update_run
from weakincentives.cli.signals import cancel_on_signals
from weakincentives.cli.terminal import describe_error
from weakincentives.cli.units import pick
from weakincentives.contrib.evaluation import create_engine
from weakincentives.contrib.review.records import read_record
from weakincentives.contrib.tools import FilesystemSection, repo_map_handlers
from weakincentives.contrib.tools.context import Handler
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.contrib.tools.shell import (
    shell_handlers,
    stop_processes,
)
from weakincentives.contrib.tools.shell.background import ShellSandbox
from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    POSIX_LIMITS,
    HostFilesystem,
)
from weakincentives.filesystem.reproducible import ReproducibleFiles, SourceFilesystem
from weakincentives.prompt import Prompt
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Deadline,
    DeadlineExceededError,
    RollbackResult,
    TokenUsage,
    ToolInvoked,
)
from weakincentives.runtime.session import append_all, dump_session_tree
from weakincentives.runtime.timeline import SessionRecorder
from weakincentives.sandbox import (
    NetworkConnection,
    SandboxUnavailableError,
    create_sandbox,
)

_ADVICE: Mapping[type[BaseException], str] = {
    BudgetExceededError: "raise the limit with --max-tokens",
    DeadlineExceededError: "raise the limit with --deadline",
    StepLimitError: "raise the limit with --max-steps",
    IncompleteAnswerError: "reply, or continue with wink resume",
    TestsFailedError: "reply, or allow more rounds with --test-rounds",
    SandboxUnavailableError: "see wink doctor, or choose another sandbox with --sandbox",
}


class Job:
    """A model at work on the files of a working copy."""

    def __init__(
        self,
        options: JobOptions,
        start: Start,
        adapter: ProviderAdapter,
        *,
        view: View,
        cancellation: CancellationToken,
    ) -> None:
        """Work in the copy of `start`; `cancellation` and Ctrl-C end the run."""
        self._options = options
        self._start = start
        self._copy = start.copy
        self._adapter = adapter
        self._view = view
        self._cancellation = cancellation
        self._session = start.session
        if options.sandbox.hosts:
            reducers = {NetworkConnection: append_all}
            self._session.install(NetworkConnection, reducers=reducers, log=True)
        self._sandbox: ShellSandbox | None = None
        self._cache = open_cache(start.copy.original, os.environ)
        self._digest_tokens: int | None = None
        self._tests: list[TestRun] = []
        self._progress: Progress = Progress(
            options.max_tokens,
            options.seconds,
            adapter.price,
            is_offline=options.sandbox.is_offline,
        )
        self._reproducible: ReproducibleFiles | None = None
        self._displaced: dict[int, tuple[str, ...]] = {}
        self._rollbacks: list[RollbackResult] = []  # of commands in the call that runs

    def run(self) -> JobResult:
        """Run the job to its end; only bugs are raised."""
        with ExitStack() as stack:
            filesystem = stack.enter_context(
                # no other process of ours changes the copy
                HostFilesystem(
                    self._copy.root,
                    git_dir=self._copy.git_dir,
                    exclusive=True,
                    limits=POSIX_LIMITS,
                )
            )
            if not self._options.dump_all:
                self._reproducible = ReproducibleFiles(filesystem)
            with self._view.show_activity(lambda: "preparing the workspace"):
                section = self._create_section(filesystem, stack)
            stack.callback(section.close)
            prompt, self._digest_tokens = prepare_prompt(
                section, filesystem, self._start, self._options, self._cache, self._view
            )
            with self._record(filesystem) as facts:
                result = self._stop_background(self._evaluate(prompt))
            left_out = () if self._reproducible is None else tuple(self._reproducible.paths)
            result = replace(result, left_out=left_out, displaced=self._displaced, **facts)
            return self._dump(result, filesystem)

    def _stop_background(self, result: JobResult) -> JobResult:
        if self._sandbox is None:
            return result
        stopped = stop_processes(self._sandbox)  # first, since it ends connections
        traffic = tuple(count_traffic(self._session[NetworkConnection].all()))
        return replace(result, stopped=stopped, traffic=traffic)

    @contextmanager
    def _record(self, filesystem: HostFilesystem) -> Generator[dict[str, Any], None, None]:
        """Record the steps of the run; if that fails, the run continues without it.

        The yielded dictionary gets what the result says about the recording.
        """
        facts: dict[str, Any] = {}
        recorder, bus = None, self._session.bus
        with ExitStack() as stack:
            if self._options.steps is not None:
                try:
                    recorder = self._start_recording(self._options.steps, filesystem)
                    stack.callback(recorder.close)
                    stack.callback(bus.subscribe(RollbackResult, self._add_rollback))
                    note = partial(self._note_displaced, recorder, filesystem)
                    stack.callback(bus.subscribe(ToolInvoked, note))
                except (WinkError, OSError, ValueError) as error:
                    facts["timeline_error"] = _describe(error)
            yield facts
        if recorder is not None:
            facts["timeline_error"] = recorder.problem
            if recorder.last:  # else not even the first step could be recorded
                facts.update(timeline=recorder.path, last_step=recorder.last)
            facts["saved"] = recorder.saved

    def _add_rollback(self, result: RollbackResult) -> None:
        """Note a rollback, to name its paths in the report."""
        self._rollbacks.append(result)
        result.is_reported = True

    def _note_displaced(
        self, recorder: SessionRecorder, files: HostFilesystem, _: ToolInvoked
    ) -> None:
        """Note what rollbacks of commands displaced in a call; wink undo restores it.

        It may be what the user saved while the command ran. The states before and after the
        rollback are in the snapshot store of the copy.
        """
        for each in self._rollbacks:
            before, now = each.before, each.after
            if before is None or now is None:
                continue
            paths = changed_paths(files.view(before), files.view(now))
            if paths:
                self._displaced[recorder.last] = paths
                known = read_record(self._copy.place).displaced
                displaced = {**known, recorder.last: (before, now)}
                update_run(self._copy.place, displaced=displaced)
        self._rollbacks.clear()

    def _start_recording(self, path: Path, filesystem: HostFilesystem) -> SessionRecorder:
        start = self._start
        return SessionRecorder(
            self._session,
            path,
            filesystem,
            title=start.title,
            at=start.step,
            branch=start.branch,
            # the paths are noted while the files are read, before the details are written
            details={
                "run": self._describe_run(),
                "left_out": [] if self._reproducible is None else self._reproducible.paths,
            },
            leave_out=self._reproducible,
            # nobody has changed a new copy; one of an earlier run is compared with its timeline
            base=self._copy.base if start.is_new else None,
            wait=False,  # the model can be asked meanwhile
        )

    def _describe_run(self) -> dict[str, object]:
        """Return what is needed to continue the run later."""
        options = self._options
        return {
            "task": options.task,
            "instruction": self._start.instruction,
            "workspace": str(self._copy.original),
            "copy": copy_name(self._copy.place),
            "exclude": list(self._copy.exclude),
            "model": f"{self._adapter.name}:{self._adapter.model}",
            **pick(options, "dialect", "max_tokens", "digest"),
            **pick(options.model_options, "max_steps", "temperature", "effort", "context_window"),
            "sandbox": options.sandbox.name,
            "evaluate": options.engine,
            "command_timeout": options.command_seconds,
            "test_rounds": None if options.test is None else options.test.rounds,
            "deadline": options.seconds,
            "project_instructions": options.instructions,
            **options.origin,
        }

    def _create_section(self, filesystem: HostFilesystem, stack: ExitStack) -> FilesystemSection:
        extra_handlers: dict[type[Any], Handler] = {**repo_map_handlers(self._cache)}
        sandbox = None
        if self._options.sandbox.name is not None:
            name, original = self._options.sandbox.name, self._copy.original
            made = create_sandbox(
                name,
                filesystem,
                env=self._options.env,
                original=original,
                allow_hosts=self._options.sandbox.hosts,
                on_connection=self._session.dispatch,
            )
            sandbox = stack.enter_context(made)
            # cancellation must not wait for a long-running command
            stack.callback(self._cancellation.subscribe(sandbox.close))
            seconds = self._options.command_seconds
            limits = replace(SHELL_LIMITS, max_seconds=seconds, default_seconds=seconds)
            handlers = shell_handlers(sandbox, limits=limits, on_output=self._progress.on_output)
            extra_handlers.update(handlers)
            self._sandbox = sandbox
        if self._options.engine is not None:
            engine = create_engine(self._options.engine)
            stack.callback(engine.close)
            extra_handlers.update(evaluation_handlers(engine))
        return FilesystemSection(
            filesystem=filesystem,
            session=self._session,
            dialect=self._options.dialect,
            ascii_paths=False,
            extra_handlers=extra_handlers,
            projected_files="changed",  # of a project that may be large, the model changes little
        )

    def _evaluate(self, prompt: Prompt[None]) -> JobResult:
        progress = self._progress
        progress.start()
        error: BaseException | None = None
        response: PromptResponse[Any] | None = None
        with (
            cancel_on_signals(self._cancellation.cancel) as signals,
            self._view.observe(self._session, progress),
        ):
            try:
                response = self._work(prompt)
            except (WinkError, OSError, KeyboardInterrupt) as raised:
                error, response = raised, partial_response(raised)
        first_signal = signals[0] if signals else None
        return self._create_result(response, error, first_signal, progress.elapsed())

    def _work(self, prompt: Prompt[None]) -> PromptResponse[Any]:
        """Let the model work until it answers and the tests pass; limits are for all rounds."""
        options = self._options
        deadline = None if options.seconds is None else Deadline.after(options.seconds)
        tracker = BudgetTracker(Budget(max_total_tokens=options.max_tokens))

        def ask(messages: Sequence[Message], max_steps: int) -> PromptResponse[Any]:
            response = self._adapter.evaluate(
                prompt,
                session=self._session,
                messages=messages,
                deadline=deadline,
                budget_tracker=tracker,
                on_text=self._view.on_text(),
                cancellation=self._cancellation,
                options=replace(options.model_options, max_steps=max_steps),
            )
            return check_answer(response)

        def run_tests(test: TestCommand) -> TestRun:
            return self._run_tests(test, deadline)

        return ask_until_tests_pass(
            ask,
            self._messages(),
            test=options.test,
            run_tests=run_tests,
            max_steps=options.model_options.max_steps,
        )

    def _run_tests(self, test: TestCommand, deadline: Deadline | None) -> TestRun:
        seconds = self._options.command_seconds
        if deadline is not None:
            deadline.check("Test command")
            seconds = min(seconds, deadline.remaining().total_seconds())
        if self._sandbox is None:
            raise SandboxUnavailableError("The test command needs a sandbox")
        self._progress.on_activity(f"running the tests: {test.line}")
        try:
            found = test.run(self._sandbox, seconds, self._progress.on_output)
        finally:  # it is the cancellation that closes the sandbox
            self._cancellation.check("Test command")
        self._tests.append(found)
        self._session.bus.publish(found.event)
        show_test(self._view, found, len(self._tests) - 1)
        return found

    def _messages(self) -> Sequence[Message]:
        messages = self._start.messages
        if messages is None:
            messages = (UserMessage(self._options.task),)
        return add_attachments(messages, self._options.attachments)

    def _create_result(
        self,
        response: PromptResponse[Any] | None,
        error: BaseException | None,
        signal_number: int | None,
        seconds: float,
    ) -> JobResult:
        is_cancelled = self._cancellation.is_cancelled and error is not None
        return JobResult(
            status="done" if error is None else "cancelled" if is_cancelled else "failed",
            answer="" if response is None else response.text,
            error=None if error is None else _describe(error),
            advice=next((_ADVICE[kind] for kind in _ADVICE if isinstance(error, kind)), None),
            signal=signal_number,
            steps=0 if response is None else response.steps,
            tool_calls=0 if response is None else len(response.tool_results),
            usage=TokenUsage() if response is None else response.usage,
            seconds=seconds,
            cost=None if self._adapter.price is None else self._progress.cost,
            session_id=str(self._session.session_id),
            messages=tuple(self._messages()) if response is None else response.messages,
            digest_tokens=self._digest_tokens,
            tests=tuple(self._tests),
        )

    def _dump(self, result: JobResult, filesystem: HostFilesystem) -> JobResult:
        """Write the dump; if that fails, the user must not lose the changes."""
        directory, left_out = self._options.dump, self._reproducible
        if directory is None:
            return result
        try:
            with self._view.show_activity(lambda: "writing the dump"):
                filesystem.invalidate()  # a person may have edited the copy
                # a snapshot also has the files that their owner cannot read
                files = filesystem.view(filesystem.snapshot(tag="dumped state"))
                state = files if left_out is None else SourceFilesystem(files, left_out)
                return replace(result, dump=dump_session_tree(self._session, directory, state))
        except (WinkError, OSError, ValueError) as error:
            return replace(result, dump_error=_describe(error))


def _describe(error: BaseException) -> str:
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"{describe_error(error)}{notes}"
