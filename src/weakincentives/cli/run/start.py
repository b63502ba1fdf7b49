"""Options of a run, and the run it continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from weakincentives.adapters import AssistantMessage, Message, RunOptions, UserMessage
from weakincentives.cli.run.attachments import Attachment
from weakincentives.cli.run.sandbox import NO_COMMANDS, RunSandbox
from weakincentives.cli.run.verification import TestCommand
from weakincentives.contrib.review import WorkingCopy
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import MAX_SHELL_SECONDS
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.runtime.session import Session


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The task and its limits; None means unlimited."""

    task: str
    dialect: DialectName
    attachments: tuple[Attachment, ...] = ()
    """Texts and pictures that are sent with the task."""
    sandbox: RunSandbox = NO_COMMANDS
    engine: str | None = None
    """The engine that evaluates code; None if the model cannot."""
    max_tokens: int | None = None
    model_options: RunOptions = field(default_factory=RunOptions)
    """Steps, context window, temperature and effort."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables for the model's commands."""
    test: TestCommand | None = None
    """The command that decides whether the run succeeded."""
    command_seconds: float = MAX_SHELL_SECONDS
    """The time limit of each command."""
    seconds: float | None = None
    steps: Path | None = None
    """Where the steps are recorded; None if they are not."""
    dump: Path | None = None
    """The directory for a dump of session and files at the end; None for no dump."""
    dump_all: bool = False
    """Whether derived files are dumped and recorded too."""
    digest: bool = True
    """Whether the prompt has a digest of the workspace."""
    instructions: bool = True
    """Whether the prompt has the instructions of the project and the user."""
    origin: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings to record with the run, as the user gave them."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a round begins: a locked copy, a session, and what was before."""

    copy: WorkingCopy
    session: Session
    messages: tuple[Message, ...] | None = None
    """The conversation, with what the model shall do next; None in a new run."""
    step: int | None = None
    """The last step before; None if none is recorded."""
    branch: str | None = None
    instruction: str | None = None
    """What the user said last, if it is not recorded yet."""
    title: str | None = None
    """What the user or an interrupted call did since then, if anything."""
    since: FilesystemSnapshot | None = None
    """The files of the copy when the last instruction was given; None if that was the task."""


def is_answered(messages: Sequence[Message]) -> bool:
    """Return whether a conversation can only continue with something new from the user."""
    last = messages[-1] if messages else None
    return last is None or (isinstance(last, AssistantMessage) and not last.tool_calls)


def add_instruction(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Return a conversation with what the user says next.

    Some providers reject two messages of the user in a row, so the last one is extended.
    """
    last = messages[-1] if messages else None
    if isinstance(last, UserMessage):
        return (*messages[:-1], replace(last, text=f"{last.text}\n\n{text}"))
    return (*messages, UserMessage(text))
