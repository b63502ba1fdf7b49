"""The job of one run: a model works on a task in a working copy until it answers or must stop.

Each tool call is atomic: it is kept or rolled back as a whole. Every step is recorded as it
happens. What the rollback of a command displaced is kept, because it may be a save of the user.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

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
    HostTraffic,
    IncompleteAnswerError,
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
from weakincentives.contrib.review import read_record
from weakincentives.contrib.tools import (
    FilesystemSection,
    Handler,
    evaluation_handlers,
    repo_map_handlers,
)
from weakincentives.contrib.tools.shell import (
    ShellSandbox,
    shell_handlers,
    stop_processes,
)
from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    POSIX_LIMITS,
    HostFilesystem,
    ReproducibleFiles,
    SourceFilesystem,
)
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


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a run ended; `error` says why there is no answer."""

    status: Literal["done", "failed", "cancelled"]
    answer: str
    error: str | None
    advice: str | None
    signal: int | None
    steps: int
    tool_calls: int
    usage: TokenUsage
    seconds: float
    session_id: str
    cost: float | None = None
    """In US dollars; None if a price is unknown."""
    messages: tuple[Message, ...] = ()
    """The conversation so far, without the system message."""
    digest_tokens: int | None = None
    """The size of the digest in the prompt, if it has one."""
    tests: tuple[TestRun, ...] = ()
    """The runs of the user's test command, in order."""
    traffic: tuple[HostTraffic, ...] = ()
    stopped: tuple[str, ...] = ()
    """Commands that still ran in the background at the end, and were stopped."""
    dump: Path | None = None
    dump_error: str | None = None
    left_out: tuple[str, ...] = ()
    """Derived files and directories that are neither dumped nor recorded."""
    timeline: Path | None = None
    timeline_error: str | None = None
    """Why the timeline is missing or incomplete."""
    last_step: int | None = None
    """The last step in the timeline."""
    displaced: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """The paths that the rollback of a command displaced, by the step of its call."""
    saved: Mapping[int, tuple[str, ...]] = field(default_factory=dict[int, tuple[str, ...]])
    """The paths that the user saved and a call replaced, by the step of the call."""


@dataclass(slots=True)
class Job:
    """A model at work on the files of a working copy, from the messages to a result."""

    options: JobOptions
    start: Start
    adapter: ProviderAdapter
    view: View
    cancellation: CancellationToken
    """Ends the run, as Ctrl-C does."""
    _progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        """Begin with a progress in which nothing has happened."""
        limits, price = self.options, self.adapter.price
        self._progress = Progress(limits.max_tokens, limits.seconds, price)
        self._progress.is_offline = limits.sandbox.is_offline

    def run(self) -> JobResult:
        """Run the job to its end; only bugs are raised."""
        options, copy = self.options, self.start.copy
        with ExitStack() as stack:
            files = stack.enter_context(
                # no other process of ours changes the copy
                HostFilesystem(copy.root, git_dir=copy.git_dir, exclusive=True, limits=POSIX_LIMITS)
            )
            left_out = None if options.dump_all else ReproducibleFiles(files)
            cache = open_cache(copy.original, os.environ)
            handlers: dict[type[Any], Handler] = {**repo_map_handlers(cache)}
            with self.view.show_activity(lambda: "preparing the workspace"):
                sandbox = self._open_sandbox(files, handlers, stack)
                section = self._create_section(files, handlers, stack)
            prompt, digest_tokens = prepare_prompt(
                section, files, self.start, options, cache, self.view
            )
            with self._record(files, left_out) as facts:
                result = self._evaluate(prompt, sandbox)
                if sandbox is not None:
                    stopped = stop_processes(sandbox)  # first, since it ends connections
                    traffic = count_traffic(self.start.session[NetworkConnection].all())
                    facts.update(stopped=stopped, traffic=tuple(traffic))
            names = () if left_out is None else tuple(left_out.paths)
            result = replace(result, digest_tokens=digest_tokens, left_out=names, **facts)
            return self._dump(result, files, left_out)

    @contextmanager
    def _record(
        self, files: HostFilesystem, left_out: ReproducibleFiles | None
    ) -> Generator[dict[str, Any], None, None]:
        """Record the steps of the run; if that fails, the run continues without it.

        The yielded dictionary gets what the result says about the recording.
        """
        facts: dict[str, Any] = {}
        recorder = None
        with ExitStack() as stack:
            if self.options.steps is not None:
                try:
                    recorder = self._start_recording(self.options.steps, files, left_out)
                    stack.callback(recorder.close)
                    facts["displaced"] = self._note_displaced(recorder, files, stack)
                except (WinkError, OSError, ValueError) as error:
                    facts["timeline_error"] = _describe(error)
            yield facts
        if recorder is not None:
            facts["timeline_error"] = recorder.problem
            if recorder.last:  # else not even the first step could be recorded
                facts.update(timeline=recorder.path, last_step=recorder.last)
            facts["saved"] = recorder.saved

    def _note_displaced(
        self, recorder: SessionRecorder, files: HostFilesystem, stack: ExitStack
    ) -> dict[int, tuple[str, ...]]:
        """Return the paths that rollbacks of commands displace, by step; wink undo restores them.

        It may be what the user saved while the command ran. The states before and after the
        rollback are in the snapshot store of the copy.
        """
        found: dict[int, tuple[str, ...]] = {}
        rollbacks: list[RollbackResult] = []  # of commands in the call that runs

        def add(result: RollbackResult) -> None:
            rollbacks.append(result)
            result.is_reported = True  # the report names its paths

        def note(_: ToolInvoked) -> None:
            for each in rollbacks:
                before, now = each.before, each.after
                if before is None or now is None:
                    continue
                paths = changed_paths(files.view(before), files.view(now))
                if paths:
                    found[recorder.last] = paths
                    known = read_record(self.start.copy.place).displaced
                    displaced = {**known, recorder.last: (before, now)}
                    update_run(self.start.copy.place, displaced=displaced)
            rollbacks.clear()

        stack.callback(self.start.session.bus.subscribe(RollbackResult, add))
        stack.callback(self.start.session.bus.subscribe(ToolInvoked, note))
        return found

    def _start_recording(
        self, path: Path, files: HostFilesystem, left_out: ReproducibleFiles | None
    ) -> SessionRecorder:
        start = self.start
        return SessionRecorder(
            self.start.session,
            path,
            files,
            title=start.title,
            at=start.step,
            branch=start.branch,
            # the paths are noted while the files are read, before the details are written
            details={
                "run": self._describe_run(),
                "left_out": [] if left_out is None else left_out.paths,
            },
            leave_out=left_out,
            # nobody has changed a new copy; one of an earlier run is compared with its timeline
            base=self.start.copy.base if start.is_new else None,
            wait=False,  # the model can be asked meanwhile
        )

    def _describe_run(self) -> dict[str, object]:
        """Return what is needed to continue the run later."""
        options = self.options
        return {
            "task": options.task,
            "instruction": self.start.instruction,
            "workspace": str(self.start.copy.original),
            "copy": copy_name(self.start.copy.place),
            "exclude": list(self.start.copy.exclude),
            "model": f"{self.adapter.name}:{self.adapter.model}",
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

    def _open_sandbox(
        self, files: HostFilesystem, handlers: dict[type[Any], Handler], stack: ExitStack
    ) -> ShellSandbox | None:
        """Return the sandbox of the commands, and add their handlers."""
        name, hosts = self.options.sandbox.name, self.options.sandbox.hosts
        if name is None:
            return None
        if hosts:
            reducers = {NetworkConnection: append_all}
            self.start.session.install(NetworkConnection, reducers=reducers, log=True)
        sandbox = stack.enter_context(
            create_sandbox(
                name,
                files,
                env=self.options.env,
                original=self.start.copy.original,
                allow_hosts=hosts,
                on_connection=self.start.session.dispatch,
            )
        )
        # cancellation must not wait for a long-running command
        stack.callback(self.cancellation.subscribe(sandbox.close))
        seconds = self.options.command_seconds
        limits = replace(SHELL_LIMITS, max_seconds=seconds, default_seconds=seconds)
        on_output = self._progress.on_output
        handlers.update(shell_handlers(sandbox, limits=limits, on_output=on_output))
        return sandbox

    def _create_section(
        self, files: HostFilesystem, handlers: dict[type[Any], Handler], stack: ExitStack
    ) -> FilesystemSection:
        if self.options.engine is not None:
            engine = create_engine(self.options.engine)
            stack.callback(engine.close)
            handlers.update(evaluation_handlers(engine))
        section = FilesystemSection(
            filesystem=files,
            session=self.start.session,
            dialect=self.options.dialect,
            ascii_paths=False,
            extra_handlers=handlers,
            projected_files="changed",  # of a project that may be large, the model changes little
        )
        stack.callback(section.close)
        return section

    def _evaluate(self, prompt: Prompt[None], sandbox: ShellSandbox | None) -> JobResult:
        progress = self._progress
        progress.start()
        error: BaseException | None = None
        response: PromptResponse[Any] | None = None
        tests: list[TestRun] = []
        with (
            cancel_on_signals(self.cancellation.cancel) as signals,
            self.view.observe(self.start.session, progress),
        ):
            try:
                response = self._work(prompt, sandbox, tests)
            except (WinkError, OSError, KeyboardInterrupt) as raised:
                error, response = raised, partial_response(raised)
        is_cancelled = self.cancellation.is_cancelled and error is not None
        return JobResult(
            status="done" if error is None else "cancelled" if is_cancelled else "failed",
            answer="" if response is None else response.text,
            error=None if error is None else _describe(error),
            advice=next((_ADVICE[kind] for kind in _ADVICE if isinstance(error, kind)), None),
            signal=signals[0] if signals else None,
            steps=0 if response is None else response.steps,
            tool_calls=0 if response is None else len(response.tool_results),
            usage=TokenUsage() if response is None else response.usage,
            seconds=progress.elapsed(),
            cost=None if self.adapter.price is None else progress.cost,
            session_id=str(self.start.session.session_id),
            messages=tuple(self._messages()) if response is None else response.messages,
            tests=tuple(tests),
        )

    def _work(
        self, prompt: Prompt[None], sandbox: ShellSandbox | None, tests: list[TestRun]
    ) -> PromptResponse[Any]:
        """Let the model work until it answers and the tests pass; limits are for all rounds."""
        options = self.options
        deadline = None if options.seconds is None else Deadline.after(options.seconds)
        tracker = BudgetTracker(Budget(max_total_tokens=options.max_tokens))

        def ask(messages: Sequence[Message], max_steps: int) -> PromptResponse[Any]:
            response = self.adapter.evaluate(
                prompt,
                session=self.start.session,
                messages=messages,
                deadline=deadline,
                budget_tracker=tracker,
                on_text=self.view.on_text(),
                cancellation=self.cancellation,
                options=replace(options.model_options, max_steps=max_steps),
            )
            return check_answer(response)

        def run_tests(test: TestCommand) -> TestRun:
            found = self._run_tests(test, sandbox, deadline)
            tests.append(found)
            self.start.session.bus.publish(found.event)
            show_test(self.view, found, len(tests) - 1)
            return found

        return ask_until_tests_pass(
            ask,
            self._messages(),
            test=options.test,
            run_tests=run_tests,
            max_steps=options.model_options.max_steps,
        )

    def _run_tests(
        self, test: TestCommand, sandbox: ShellSandbox | None, deadline: Deadline | None
    ) -> TestRun:
        seconds = self.options.command_seconds
        if deadline is not None:
            deadline.check("Test command")
            seconds = min(seconds, deadline.remaining().total_seconds())
        if sandbox is None:
            raise SandboxUnavailableError("The test command needs a sandbox")
        self._progress.on_activity(f"running the tests: {test.line}")
        try:
            return test.run(sandbox, seconds, self._progress.on_output)
        finally:  # it is the cancellation that closes the sandbox
            self.cancellation.check("Test command")

    def _messages(self) -> Sequence[Message]:
        messages = self.start.messages
        if messages is None:
            messages = (UserMessage(self.options.task),)
        return add_attachments(messages, self.options.attachments)

    def _dump(
        self, result: JobResult, files: HostFilesystem, left_out: ReproducibleFiles | None
    ) -> JobResult:
        """Write the dump; if that fails, the user must not lose the changes."""
        directory = self.options.dump
        if directory is None:
            return result
        try:
            with self.view.show_activity(lambda: "writing the dump"):
                files.invalidate()  # a person may have edited the copy
                # a snapshot also has the files that their owner cannot read
                now = files.view(files.snapshot(tag="dumped state"))
                state = now if left_out is None else SourceFilesystem(now, left_out)
                return replace(result, dump=dump_session_tree(self.start.session, directory, state))
        except (WinkError, OSError, ValueError) as error:
            return replace(result, dump_error=_describe(error))


def _describe(error: BaseException) -> str:
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"{describe_error(error)}{notes}"
