"""How each dialect asks to run something."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.contrib.tools.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.spec import ToolSpec
from weakincentives.errors import ToolValidationError

_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class BashCall:
    """Run a command in a shell.

    Args:
        command: The command.
        timeout: After how many milliseconds it is stopped; 120000 at most.
        description: What it is for, in a few words.
        run_in_background: Not available: every command ends with its call.
    """

    command: str
    timeout: int | None = None
    description: str | None = None
    run_in_background: bool = False


@dataclass(frozen=True, slots=True)
class AnthropicBashCall:
    """Run a command in a shell.

    Args:
        command: The command.
        restart: Every command has a shell of its own, so there is nothing to restart.
    """

    command: str | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ExecCommandCall:
    """Run a command in a shell.

    Args:
        cmd: The command.
        workdir: The directory to run it in; the top of the workspace if left out.
        max_output_tokens: How much of the output to return at most.
        yield_time_ms: Not needed: the call returns when the command ends.
        shell: Not needed: it is bash, or sh where there is no bash.
        login: Not needed: a login shell would read nothing else.
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
        command: The command.
        description: What it is for, in a few words.
        dir_path: The directory to run it in; the top of the workspace if left out.
        is_background: Not available: every command ends with its call.
    """

    command: str
    description: str | None = None
    dir_path: str | None = None
    is_background: bool = False


_FACTS = """\
The answer begins with the exit code; another code than 0 is no failure of the call, and what was \
written to files stays.
Nothing can be asked at a terminal, and whatever a command starts ends with it: no servers in \
the background. Of long output the beginning and the end are returned."""
_EXECUTE = f"""\
Run a program in the workspace: tests, compilers, version control. command is a list, one item for \
each argument: ["python", "-m", "pytest", "-q"]. No shell reads it; for pipes, patterns or && \
run one: ["sh", "-c", "..."].
It is stopped after timeout_seconds, 30 if left out and 120 at most.
{_FACTS}"""
_LINE = f"""\
Run a command in a shell in the workspace: tests, compilers, version control.
Every command begins in a new shell at the top of the workspace: neither `cd` nor variables last \
until the next.
{_FACTS}"""


def _understand_bash(params: BashCall, context: object) -> BashParams:
    _refuse_background(params.run_in_background)
    return BashParams(params.command, params.timeout)


def _say_bash(request: BashParams) -> BashCall | None:
    if request.cwd is not None or request.max_output is not None:
        return None
    return BashCall(request.command, request.timeout)


def _understand_anthropic(params: AnthropicBashCall, context: object) -> BashParams:
    if params.command is None and not params.restart:
        raise ToolValidationError("A command is needed: 'command'")
    return BashParams(params.command or ":")


def _say_anthropic(request: BashParams) -> AnthropicBashCall | None:
    if request.cwd is not None or request.max_output is not None:
        return None
    return AnthropicBashCall(request.command)


def _understand_exec(params: ExecCommandCall, context: object) -> BashParams:
    tokens = params.max_output_tokens
    size = None if tokens is None else tokens * _BYTES_PER_TOKEN
    return BashParams(params.cmd, None, params.workdir, size)


def _say_exec(request: BashParams) -> ExecCommandCall:
    size = request.max_output
    tokens = None if size is None else size // _BYTES_PER_TOKEN
    return ExecCommandCall(request.command, request.cwd, tokens)


def _understand_gemini(params: RunShellCommandCall, context: object) -> BashParams:
    _refuse_background(params.is_background)
    return BashParams(params.command, None, params.dir_path)


def _say_gemini(request: BashParams) -> RunShellCommandCall | None:
    if request.max_output is not None:
        return None
    return RunShellCommandCall(request.command, dir_path=request.cwd)


def _refuse_background(asked: bool) -> None:
    if asked:
        raise ToolValidationError(
            "Nothing runs in the background here: whatever a command starts ends with it."
            " Run it without, or start what you need and use it in one command"
        )


_SHELL_EXECUTE: ToolSpec[Any] = ToolSpec(
    name="shell_execute",
    description=_EXECUTE,
    params=ShellExecuteParams,
    requests=(ShellExecuteParams,),
    decode=lambda params, context: params,
    encode=lambda request: request,
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
            description=f"{_LINE}\nIt is stopped after timeout milliseconds, 120000 at most.",
            params=BashCall,
            requests=(BashParams,),
            decode=_understand_bash,
            encode=_say_bash,
            bypasses_filesystem=True,
        ),
    ),
    "anthropic-editor": (
        ToolSpec(
            name="bash",
            description=_LINE,
            params=AnthropicBashCall,
            requests=(BashParams,),
            decode=_understand_anthropic,
            encode=_say_anthropic,
            bypasses_filesystem=True,
        ),
    ),
    "openai": (
        ToolSpec(
            name="exec_command",
            description=_LINE,
            params=ExecCommandCall,
            requests=(BashParams,),
            decode=_understand_exec,
            encode=_say_exec,
            aliases={"command": "cmd", "cwd": "workdir"},
            bypasses_filesystem=True,
        ),
    ),
    "gemini": (
        ToolSpec(
            name="run_shell_command",
            description=_LINE,
            params=RunShellCommandCall,
            requests=(BashParams,),
            decode=_understand_gemini,
            encode=_say_gemini,
            aliases={"directory": "dir_path"},
            bypasses_filesystem=True,
        ),
    ),
}
"""The tools of each dialect that run something."""
