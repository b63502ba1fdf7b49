"""Options of a run: its task, where its commands run, what is attached, how a round begins.

An attached text is quoted in the message after the task; a picture is sent as a picture, and a
line in the message names it.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from weakincentives.adapters import (
    AssistantMessage,
    Message,
    RunOptions,
    UserMessage,
)
from weakincentives.cli.config import (
    AUTO,
    LOCAL_SANDBOX,
    NO_ENGINE,
    NO_SANDBOX,
    Settings,
    describe_server,
)
from weakincentives.cli.run.result import DEFAULT_TEST_ROUNDS, TestCommand
from weakincentives.cli.state import ConfigError
from weakincentives.contrib.digest import format_size, quote_path
from weakincentives.contrib.evaluation import DEFAULT_ENGINE, find_problem
from weakincentives.contrib.review import WorkingCopy
from weakincentives.contrib.tools import parse_picture
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import MAX_SHELL_SECONDS, ShellLimits
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.prompt import Media, quote_data
from weakincentives.runtime.session import Session
from weakincentives.sandbox import (
    SandboxUnavailableError,
    check_hosts,
    choose_sandbox,
    probe_sandbox,
)

STANDARD_INPUT = "-"
"""The argument that stands for standard input."""
_MAX_TEXT = 400_000  # bytes of all attached texts together
_MAX_PICTURE = 5 * 1024 * 1024  # bytes of one picture: what providers take
_MAX_PICTURES = 20
_TAG = "attachment"
# a project has the names that people use, and so have its commands
SHELL_LIMITS = ShellLimits(ascii_commands=False)
"""The limits of commands."""


@dataclass(frozen=True, slots=True)
class RunSandbox:
    """Where commands run.

    Args:
        name: The sandbox; None if the model cannot run commands.
        reason: Why it is this one, or none, if the user did not choose it.
        hosts: The hosts that commands can reach, if it limits the network.
        broken: The promises that it does not keep on this machine.
    """

    name: str | None = None
    reason: str = ""
    hosts: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def is_offline(self) -> bool:
        """Whether commands run where they can reach no host."""
        return self.name not in (None, LOCAL_SANDBOX) and not self.hosts

    @property
    def network(self) -> str:
        """What the model is told about the network; empty if it cannot run commands."""
        if self.is_offline:
            return "Commands have no network."
        if not self.hosts:
            return ""
        return (
            f"Commands can reach {', '.join(self.hosts)} by HTTP and HTTPS and no other host,"
            " through the proxy that HTTP_PROXY and HTTPS_PROXY name. Names are not resolved"
            " without it. Do not try other hosts."
        )

    @property
    def isolation(self) -> str | None:
        """What isolates commands: `none` on the bare host, None if there are no commands."""
        return "none" if self.name == LOCAL_SANDBOX else self.name

    def __str__(self) -> str:
        """Return a sentence for the user; empty if there is nothing to say."""
        if self.name is None:
            return f"The model cannot run commands. {self.reason}" if self.reason else ""
        if self.name == LOCAL_SANDBOX:
            return "The model's commands run on this machine with no isolation (--sandbox local)."
        others = f" Not used: {self.reason}" if self.reason else ""
        reach = f" and reach {', '.join(self.hosts)}" if self.hosts else ""
        limits = f" Not promised here: {', '.join(self.broken)}." if self.broken else ""
        return f"The model's commands run isolated by {self.name}{reach}.{limits}{others}"


NO_COMMANDS = RunSandbox()


def resolve_sandbox(setting: str | None, hosts: Sequence[str], workspace: Path) -> RunSandbox:
    """Return the sandbox for a setting; without a setting, the first that works, or none.

    Programs in the workspace are not used for the sandbox itself.

    Raises:
        ConfigError: The user asked for isolation that this machine does not have.
    """
    if setting == NO_SANDBOX:
        return NO_COMMANDS
    found = _resolve(setting, workspace)
    if found.name is None or not hosts:
        return found
    try:
        check_hosts(found.name, hosts)
    except SandboxUnavailableError as error:
        others = f". {found.reason}" if found.reason else ""
        raise ConfigError(f"{error}{others}") from error
    return replace(found, hosts=tuple(hosts))


def _resolve(setting: str | None, workspace: Path) -> RunSandbox:
    if setting == LOCAL_SANDBOX:
        return RunSandbox(LOCAL_SANDBOX)
    if setting is None or setting == AUTO:
        return _choose(workspace, is_optional=setting is None)
    found = probe_sandbox(setting, untrusted=[workspace])
    if found.problem:
        raise ConfigError(f"The sandbox {setting!r} cannot be used here; {found.problem}")
    return RunSandbox(setting, broken=found.broken)


def _choose(workspace: Path, *, is_optional: bool) -> RunSandbox:
    try:
        chosen = choose_sandbox(untrusted=[workspace])
    except SandboxUnavailableError as error:
        if not is_optional:
            raise ConfigError(f"{error}; --sandbox none runs without commands") from error
        return RunSandbox(reason=str(error))
    return RunSandbox(chosen.name, chosen.reason, broken=chosen.broken)


def resolve_variables(given: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables for the model's commands: `NAME=VALUE`, or names of the user's own.

    Raises:
        ConfigError: A variable is not set.
    """
    variables: dict[str, str] = {}
    for each in given:
        name, has_value, value = each.partition("=")
        if not has_value and name not in environment:
            raise ConfigError(
                f"--env: the variable {name!r} is not set; set it, or pass {name}=VALUE"
            )
        variables[name] = value if has_value else environment[name]
    return variables


def resolve_engine(setting: str | None) -> str | None:
    """Return the engine that evaluates code for a setting; None if the model cannot.

    Raises:
        ConfigError: The engine cannot be used here.
    """
    if setting is None or setting == NO_ENGINE:
        return None
    name = DEFAULT_ENGINE if setting == AUTO else setting
    problem = find_problem(name)
    if problem is not None:
        raise ConfigError(problem)
    return name


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text or a picture, with its name for the model."""

    name: str
    data: bytes
    media_type: str | None = None
    """None for a text."""

    @property
    def label(self) -> str:
        """A line that stands for a picture where only text is shown."""
        return f"[image {quote_path(self.name)}, {format_size(len(self.data))}]"

    def __str__(self) -> str:
        """Return the text for the message."""
        if self.media_type is not None:
            return self.label
        text = self.data.decode("utf-8-sig")
        return f"{quote_path(self.name)}:\n{quote_data(text, name=_TAG)}"


def load_attachments(paths: Iterable[str], *, is_stdin_used: bool = False) -> list[Attachment]:
    """Read the files that a user attaches; `-` is standard input, unless the task is read from it.

    Raises:
        ConfigError: One cannot be read, or is neither text nor a picture, or is too large.
    """
    found: list[Attachment] = []
    for path in paths:
        if path == STANDARD_INPUT and is_stdin_used:
            raise ConfigError("Standard input is read once: for the task, or for --attach -")
        is_stdin_used = is_stdin_used or path == STANDARD_INPUT
        found.append(_create_attachment(path, _read(path)))
    size = sum(len(each.data) for each in found if each.media_type is None)
    if size > _MAX_TEXT:
        raise ConfigError(
            f"--attach: {format_size(size)} of text are more than the {format_size(_MAX_TEXT)} that"
            " fit into a message; put it into the workspace, where the model can search it"
        )
    if sum(each.media_type is not None for each in found) > _MAX_PICTURES:
        raise ConfigError(f"--attach: more than {_MAX_PICTURES} pictures; leave some out")
    return found


def add_attachments(
    messages: Sequence[Message], attachments: Sequence[Attachment]
) -> Sequence[Message]:
    """Return a conversation with attachments in its last message.

    That message must be the user's.
    """
    last = messages[-1] if attachments else None
    if not isinstance(last, UserMessage):
        return messages
    text = "\n\n".join((last.text, "Attached:", *map(str, attachments)))
    media = tuple(
        Media(each.media_type, each.data) for each in attachments if each.media_type is not None
    )
    return [*messages[:-1], replace(last, text=text, media=(*last.media, *media))]


def _create_attachment(path: str, data: bytes) -> Attachment:
    name = "standard input" if path == STANDARD_INPUT else path
    picture = parse_picture(data)
    if picture is not None and picture.width is not None:
        if len(data) > _MAX_PICTURE:
            raise ConfigError(
                f"--attach: the picture is larger than {format_size(_MAX_PICTURE)}: {name!r};"
                " make it smaller"
            )
        return Attachment(name, data, picture.media_type)
    if data.startswith(b"%PDF-"):
        raise ConfigError(
            f"--attach: PDF is not supported: {name!r}; convert it, for example with pdftotext"
        )
    try:
        is_text = "\0" not in data.decode("utf-8-sig")
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise ConfigError(
            f"--attach: neither UTF-8 text nor a PNG, JPEG, GIF or WebP picture: {name!r}"
        )
    return Attachment(name, data)


def _read(path: str) -> bytes:
    """Return the content of a file, as far as any attachment can be long."""
    limit = max(_MAX_TEXT, _MAX_PICTURE)
    try:
        # not only regular files: a shell's <(command) is a pipe
        is_stdin = path == STANDARD_INPUT
        with nullcontext(_standard_input()) if is_stdin else Path(path).open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"--attach: {error.strerror}: {path!r}") from error
    if len(data) > limit:
        raise ConfigError(
            f"--attach: larger than {format_size(limit)}: {path!r}; put it into the workspace"
        )
    return data


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        raise ConfigError("--attach -: standard input is closed")
    if sys.stdin.isatty():
        raise ConfigError("--attach -: standard input is a terminal; pipe something into wink")
    return sys.stdin.buffer


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The task and its limits; None means unlimited."""

    task: str
    dialect: DialectName = "wink"
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
    """Whether reproducible files are dumped and recorded too."""
    digest: bool = True
    """Whether the prompt has a digest of the workspace."""
    instructions: bool = True
    """Whether the prompt has the instructions of the project and the user."""
    model_variable: str = ""
    """The variable with the key that chose the model; empty if the user did."""
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

    @property
    def is_new(self) -> bool:
        """Whether nothing was before: nobody has changed the copy since its first snapshot."""
        return self.messages is None


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


def resolve_options(
    task: str, settings: Settings, original: Path, attachments: Sequence[Attachment]
) -> JobOptions:
    """Return the options of a run in its settings, but for the dialect, which the model decides.

    Raises:
        ConfigError: The sandbox, the engine or a variable cannot be used here.
    """
    sandbox = resolve_sandbox(settings["sandbox"], settings["allow_host"] or (), original)
    return JobOptions(
        task,
        attachments=tuple(attachments),
        sandbox=sandbox,
        engine=resolve_engine(settings["evaluate"]),
        max_tokens=settings["max_tokens"],
        model_options=RunOptions(
            max_steps=settings["max_steps"] or RunOptions().max_steps,
            context_window=settings["context_window"],
            temperature=settings["temperature"],
            effort=settings["effort"],
        ),
        env=resolve_variables(settings["env"] or (), os.environ),
        test=_test_command(settings, sandbox),
        command_seconds=settings["command_timeout"] or MAX_SHELL_SECONDS,
        seconds=settings["deadline"],
        dump=None if settings["dump"] is None else Path(settings["dump"]).expanduser().absolute(),
        dump_all=settings["dump_all"] is True,
        digest=settings["digest"] is not False,
        instructions=settings["project_instructions"] is not False,
        model_variable=settings.model_variable,
        # as the user named it, and without credentials
        origin={"model": settings["model"], "base_url": describe_server(settings["base_url"])},
    )


def _test_command(settings: Settings, sandbox: RunSandbox) -> TestCommand | None:
    line = settings["test_cmd"]
    if line is None:
        return None
    if sandbox.name is None:
        reason = f" {sandbox.reason}" if sandbox.reason else ""
        raise ConfigError(
            f"--test-cmd needs a sandbox to run in; choose one with --sandbox.{reason}"
        )
    return TestCommand(line, settings["test_rounds"] or DEFAULT_TEST_ROUNDS)
