"""One run: a model works on a task in a working copy until it has an answer, or must stop.

However it ends, every tool call was kept or undone as a whole, and a dump of the session and
the files is written.
"""

import signal
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Literal

from weakincentives.adapters import (
    CancellationToken,
    PromptResponse,
    ProviderAdapter,
    RunOptions,
    StepLimitError,
    UserMessage,
    partial_response,
)
from weakincentives.cli.run.view import Progress, View
from weakincentives.cli.terminal import sentence
from weakincentives.contrib.review import WorkingCopy
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import shell_handlers
from weakincentives.errors import WinkError
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    Deadline,
    DeadlineExceededError,
    TokenUsage,
)
from weakincentives.runtime.session import Session, dump_session_tree
from weakincentives.sandbox import LocalSandbox

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# what running tests leaves behind would be offered to the person as a change
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1"}
_ROLE = """\
You work unattended in a copy of a person's project. When you are done the person sees the
differences and decides whether to take them over. So change what the task needs and nothing
else, leave no files behind that are of no use to the person, and look before you change.
Nobody answers questions: where something is left open, take the simplest way and say so.
"""
_CHECK = "You can run commands: run the project's tests before you begin and after you are done."
_NO_COMMANDS = "You cannot run commands here."
_ADVICE: Mapping[type[BaseException], str] = {
    BudgetExceededError: "allow more with --max-tokens",
    DeadlineExceededError: "allow more with --deadline",
    StepLimitError: "allow more with --max-steps",
}
_END = "End with a few sentences: what you changed, and what you found out."


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, and within which bounds; None is no bound."""

    task: str
    dialect: DialectName
    has_shell: bool = False
    max_tokens: int | None = None
    max_steps: int | None = None
    seconds: float | None = None
    dump: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; `error` says why it did not come to an answer."""

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
    dump: Path | None = None
    dump_error: str | None = None


class Job:
    """A plan that is carried out on the files of a working copy."""

    def __init__(
        self,
        plan: Plan,
        copy: WorkingCopy,
        adapter: ProviderAdapter,
        *,
        view: View,
        cancellation: CancellationToken,
    ) -> None:
        """Work in `copy`; `cancellation` ends it from outside, and so does Ctrl-C."""
        self._plan = plan
        self._copy = copy
        self._adapter = adapter
        self._view = view
        self._cancellation = cancellation
        self._session = Session()

    def run(self) -> Outcome:
        """Work until the end, whatever it is; only bugs are raised."""
        with ExitStack() as closing:
            filesystem = closing.enter_context(
                HostFilesystem(self._copy.root, git_dir=self._copy.git_dir)
            )
            section = self._section(filesystem, closing)
            closing.callback(section.close)
            outcome = self._evaluated(self._prompt(section))
            return self._dumped(outcome, filesystem)

    def _section(self, filesystem: HostFilesystem, closing: ExitStack) -> FilesystemSection:
        extra_handlers = None
        if self._plan.has_shell:
            sandbox = closing.enter_context(LocalSandbox(filesystem, env=_ENVIRONMENT))
            # a command that runs for long is not waited for
            closing.callback(self._cancellation.subscribe(sandbox.close))
            extra_handlers = shell_handlers(sandbox)
        return FilesystemSection(
            filesystem=filesystem,
            session=self._session,
            dialect=self._plan.dialect,
            extra_handlers=extra_handlers,
        )

    def _prompt(self, section: FilesystemSection) -> Prompt[None]:
        commands = _CHECK if self._plan.has_shell else _NO_COMMANDS
        role = MarkdownSection[None](
            title="Your work", key="role", template=f"{_ROLE}{commands}\n{_END}"
        )
        return Prompt[None](ns="wink", key="run", name="wink run", sections=[role, section])

    def _evaluated(self, prompt: Prompt[None]) -> Outcome:
        plan = self._plan
        progress = Progress(plan.max_tokens, plan.seconds)
        error: BaseException | None = None
        response: PromptResponse[Any] | None = None
        with (
            _cancelled_by_signals(self._cancellation) as signals,
            self._view.watching(self._session, progress),
        ):
            try:
                response = self._adapter.evaluate(
                    prompt,
                    session=self._session,
                    messages=[UserMessage(plan.task)],
                    deadline=None if plan.seconds is None else Deadline.after(plan.seconds),
                    budget=Budget(max_total_tokens=plan.max_tokens),
                    on_text=self._view.heard(),
                    cancellation=self._cancellation,
                    options=RunOptions(max_steps=plan.max_steps or RunOptions().max_steps),
                )
            except (WinkError, OSError, KeyboardInterrupt) as raised:
                error, response = raised, partial_response(raised)
        seen = signals[0] if signals else None
        return self._outcome(response, error, seen, progress.elapsed())

    def _outcome(
        self,
        response: PromptResponse[Any] | None,
        error: BaseException | None,
        seen: int | None,
        seconds: float,
    ) -> Outcome:
        is_cancelled = self._cancellation.is_cancelled and error is not None
        return Outcome(
            status="done" if error is None else "cancelled" if is_cancelled else "failed",
            answer="" if response is None else response.text,
            error=None if error is None else _explained(error),
            advice=next((_ADVICE[kind] for kind in _ADVICE if isinstance(error, kind)), None),
            signal=seen,
            steps=0 if response is None else response.steps,
            tool_calls=0 if response is None else len(response.tool_results),
            usage=TokenUsage() if response is None else response.usage,
            seconds=seconds,
            session_id=str(self._session.session_id),
        )

    def _dumped(self, outcome: Outcome, filesystem: HostFilesystem) -> Outcome:
        """Write the dump; that it fails must not cost the person the work."""
        if self._plan.dump is None:
            return outcome
        path = problem = None
        try:
            try:
                path = dump_session_tree(self._session, self._plan.dump, filesystem)
            except PermissionError:
                # a snapshot opens what is closed even to its owner
                state = filesystem.view(filesystem.snapshot(tag="as it was dumped"))
                path = dump_session_tree(self._session, self._plan.dump, state)
        except (WinkError, OSError, ValueError) as error:
            problem = _explained(error)
        return replace(outcome, dump=path, dump_error=problem)


@contextmanager
def _cancelled_by_signals(token: CancellationToken) -> Generator[list[int], None, None]:
    """Cancel at the first signal that asks to end; a second Ctrl-C does not wait."""
    seen: list[int] = []
    if current_thread() is not main_thread():
        yield seen
        return

    def arrived(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        token.cancel(signal.Signals(number).name)

    # what is ignored stays so: nohup is a wish to live on
    heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, arrived) for each in heeded}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explained(error: BaseException) -> str:
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"{sentence(error)}{notes}"
