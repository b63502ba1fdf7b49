"""The command-running tool of each dialect, with its schema and description."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.contrib.tools.dialects.shared import pass_through
from weakincentives.contrib.tools.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.spec import ToolSpec
from weakincentives.errors import ToolValidationError

_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class BashCall:
    """Run a command in a shell.

    Args:
        command: The shell command.
        timeout: The time limit in milliseconds; at most 120000.
        description: The purpose of the command, in a few words.
        run_in_background: Not available: a command ends with its call.
    """

    command: str
    timeout: int | None = None
    description: str | None = None
    run_in_background: bool = False


@dataclass(frozen=True, slots=True)
class AnthropicBashCall:
    """Run a command in a shell.

    Args:
        command: The shell command.
        restart: Not needed: every command runs in a new shell.
    """

    command: str | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ExecCommandCall:
    """Run a command in a shell.

    Args:
        cmd: The shell command.
        workdir: The directory to run it in; the workspace root if omitted.
        max_output_tokens: The maximum amount of output to return.
        yield_time_ms: Not needed: the call returns when the command ends.
        shell: Not needed: the shell is bash, or sh if there is no bash.
        login: Not needed: a login shell would behave the same.
        tty: Not available: there is no terminal.
    """

    cmd: str
    workdir: str | None = None
    max_output_tokens: int | None = None
    yield_time_ms: int | None = None
    shell: str | None = None
    login: bool | None = None
    tty: bool | None = None


@dataclass(frozen=True, slots=True)
class RunShellCommandCall:
    """Run a command in a shell.

    Args:
        command: The shell command.
        description: The purpose of the command, in a few words.
        dir_path: The directory to run it in; the workspace root if omitted.
        is_background: Not available: a command ends with its call.
    """

    command: str
    description: str | None = None
    dir_path: str | None = None
    is_background: bool = False


_RESULT = """\
The result starts with the exit code; a nonzero exit code is not a tool error, and files that were \
written stay.
There is no interactive input, and all processes end with the command, so servers cannot run in \
the background.
Of long output, the beginning and the end are shown; the result names a file with all of it."""
_EXECUTE = f"""\
Run a program in the workspace: tests, compilers, version control. command is a list with one item \
per argument: ["python", "-m", "pytest", "-q"]. No shell interprets it; for pipes, globs or &&, \
run a shell: ["sh", "-c", "..."].
The program is stopped after timeout_seconds, by default 30 and at most 120.
{_RESULT}"""
_COMMAND = f"""\
Run a shell command in the workspace: tests, compilers, version control.
Each command runs in a new shell, by default in the workspace root; `cd` and variables do not \
persist.
{_RESULT}"""
_TIMEOUT = "The command is stopped after timeout milliseconds, at most 120000."


def _decode_bash(params: BashCall, _: object) -> BashParams:
    _check_background(requested=params.run_in_background)
    return BashParams(params.command, params.timeout)


def _encode_bash(request: BashParams) -> BashCall | None:
    if request.cwd is not None or request.max_output is not None:
        return None
    return BashCall(request.command, request.timeout)


def _decode_anthropic(params: AnthropicBashCall, _: object) -> BashParams:
    if params.command is None and not params.restart:
        raise ToolValidationError("bash needs 'command'")
    return BashParams(params.command or ":")


def _encode_anthropic(request: BashParams) -> AnthropicBashCall | None:
    if request.cwd is not None or request.max_output is not None:
        return None
    return AnthropicBashCall(request.command)


def _decode_exec(params: ExecCommandCall, _: object) -> BashParams:
    tokens = params.max_output_tokens
    size = None if tokens is None else tokens * _BYTES_PER_TOKEN
    return BashParams(params.cmd, None, params.workdir, size)


def _encode_exec(request: BashParams) -> ExecCommandCall:
    size = request.max_output
    tokens = None if size is None else size // _BYTES_PER_TOKEN
    return ExecCommandCall(request.command, request.cwd, tokens)


def _decode_gemini(params: RunShellCommandCall, _: object) -> BashParams:
    _check_background(requested=params.is_background)
    return BashParams(params.command, None, params.dir_path)


def _encode_gemini(request: BashParams) -> RunShellCommandCall | None:
    if request.max_output is not None:
        return None
    return RunShellCommandCall(request.command, dir_path=request.cwd)


def _check_background(*, requested: bool) -> None:
    if requested:
        raise ToolValidationError(
            "Commands cannot run in the background: all processes end with the command."
            " Run it in the foreground, or start and use a server within one command"
        )


_SHELL_EXECUTE = pass_through(
    "shell_execute",
    ShellExecuteParams,
    _EXECUTE,
    aliases={"commands": "command", "argv": "command", "timeout": "timeout_seconds"},
    bypasses_filesystem=True,
)
SHELL_TOOL_SPECS: Mapping[str, tuple[ToolSpec[Any], ...]] = {
    "wink": (_SHELL_EXECUTE,),
    "classic": (_SHELL_EXECUTE,),
    "mcp": (_SHELL_EXECUTE,),
    "claude": (
        ToolSpec(
            name="Bash",
            description=f"{_COMMAND}\n{_TIMEOUT}",
            params=BashCall,
            requests=(BashParams,),
            decode=_decode_bash,
            encode=_encode_bash,
            bypasses_filesystem=True,
        ),
    ),
    "anthropic-editor": (
        ToolSpec(
            name="bash",
            description=_COMMAND,
            params=AnthropicBashCall,
            requests=(BashParams,),
            decode=_decode_anthropic,
            encode=_encode_anthropic,
            bypasses_filesystem=True,
        ),
    ),
    "openai": (
        ToolSpec(
            name="exec_command",
            description=_COMMAND,
            params=ExecCommandCall,
            requests=(BashParams,),
            decode=_decode_exec,
            encode=_encode_exec,
            aliases={"command": "cmd", "cwd": "workdir"},
            bypasses_filesystem=True,
        ),
    ),
    "gemini": (
        ToolSpec(
            name="run_shell_command",
            description=_COMMAND,
            params=RunShellCommandCall,
            requests=(BashParams,),
            decode=_decode_gemini,
            encode=_encode_gemini,
            aliases={"directory": "dir_path"},
            bypasses_filesystem=True,
        ),
    ),
}
"""The tools of each dialect that run commands."""
