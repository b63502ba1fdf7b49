"""The command-running tool of each dialect, with its schema and description."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, replace
from typing import Any

from weakincentives.contrib.tools.context import ToolSpec, pass_through
from weakincentives.contrib.tools.dialects.shared import HIDDEN, FieldMapping, mapped, params
from weakincentives.contrib.tools.requests import (
    COMMAND_LINE,
    BashParams,
    BashStartParams,
    ShellExecuteParams,
    ShellPollParams,
    ShellStartParams,
    ShellStopParams,
)
from weakincentives.errors import ToolValidationError
from weakincentives.sandbox import MAX_BACKGROUND

_BYTES_PER_TOKEN = 4
_CTRL_C = "\x03"
_MIN_WAIT, _MAX_WAIT = 250, 120_000  # milliseconds
BashCall: type[Any] = params(
    command=(str, "The shell command.", MISSING, COMMAND_LINE),
    timeout=(int | None, "The time limit in milliseconds; the maximum by default."),
    description=(str | None, "", None, HIDDEN),
    run_in_background=(bool, "Return at once and run the command in the background.", False),
)
ForegroundBashCall: type[Any] = params(BashCall, run_in_background=(bool, "", False, HIDDEN))
BashOutputCall: type[Any] = params(
    bash_id=(str, "The number of the process."), filter=(str | None, "", None, HIDDEN)
)
KillShellCall: type[Any] = params(shell_id=(str, "The number of the process."))
AnthropicBashCall: type[Any] = params(
    command=(str | None, "The shell command.", None, COMMAND_LINE),
    restart=(bool, "Start a new shell.", False),
)
ExecCommandCall: type[Any] = params(
    cmd=(str, "The shell command.", MISSING, COMMAND_LINE),
    workdir=(str | None, "The directory to run it in; the workspace root if omitted."),
    max_output_tokens=(int | None, "The maximum amount of output to return."),
    yield_time_ms=(
        int | None,
        "Milliseconds to wait, at most 120000; a command that has not ended by then continues in"
        " the background. If omitted, the call returns when the command ends.",
    ),
    shell=(str | None, "", None, HIDDEN),
    login=(bool | None, "", None, HIDDEN),
    tty=(bool | None, "", None, HIDDEN),
)
ForegroundExecCommandCall: type[Any] = params(
    ExecCommandCall, yield_time_ms=(int | None, "", None, HIDDEN)
)
WriteStdinCall: type[Any] = params(
    session_id=(int, "The number of the process."),
    chars=(str, 'Empty to get its output; "\\u0003" (Ctrl-C) to stop it.', ""),
    yield_time_ms=(int | None, "Milliseconds to wait for it to end, at most 120000."),
    max_output_tokens=(int | None, "", None, HIDDEN),
)
RunShellCommandCall: type[Any] = params(
    command=(str, "The shell command.", MISSING, COMMAND_LINE),
    description=(str | None, "", None, HIDDEN),
    dir_path=(str | None, "The directory to run it in; the workspace root if omitted."),
    is_background=(bool, "Return at once and run the command in the background.", False),
)
ForegroundRunShellCommandCall: type[Any] = params(
    RunShellCommandCall, is_background=(bool, "", False, HIDDEN)
)
BackgroundCall: type[Any] = params(pid=(int, "The number of the process."))


_RESULT = """\
The result starts with the exit code. A nonzero exit code is not a tool error: files that the \
command wrote stay.
A command gets no interactive input. When it ends, all processes that it started are stopped.
Long output is shortened to its beginning and end; the result names a file with all of it."""
_BACKGROUND = "To keep a server or another long job running,"
_EXECUTE = f"""\
Run a program in the workspace: tests, compilers, version control.
{_RESULT}
{_BACKGROUND} use $ShellStartParams."""
_COMMAND = f"""\
Run a shell command in the workspace: tests, compilers, version control.
Each command runs in a new shell in the workspace root; `cd` and variables do not persist.
{_RESULT}"""
_NUMBER = f"""\
Returns its number. To see what it prints, use $ShellPollParams.
To stop it, use $ShellStopParams. At most {MAX_BACKGROUND} can run at a time."""
_START = f"""\
Start a program in the background, such as a server. It keeps running while you use other \
tools, until you stop it or the session ends.
{_NUMBER}"""
_START_SCRIPT = f"""\
Start a shell command in the background, such as a server. It keeps running while you use \
other tools, until you stop it or the session ends.
{_NUMBER}"""
_POLL = """\
Get the new output of a background process, and its exit code if it has ended."""
_STOP = "Stop a background process and everything it started; returns what it printed last."


def _parse_number(name: str, text: str) -> int:
    """Return the number of a process; models write "bash_1" for 1."""
    digits = text.rpartition("_")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise ToolValidationError(f"{name} must be the number of a process: {text!r}")
    return int(digits)


def _decode_anthropic(params: Any, _: object) -> BashParams:
    if params.command is None and not params.restart:
        raise ToolValidationError("bash needs 'command'")
    return BashParams(params.command or ":")


def _encode_anthropic(request: BashParams) -> Any:
    if request.cwd is not None or request.max_output is not None:
        return None
    return AnthropicBashCall(request.command)


def _decode_exec(params: Any, context: Any) -> BashParams | BashStartParams:
    wait = params.yield_time_ms
    if wait is None or context.tool_context.reviews_changes:
        return _decode_foreground_exec(params, context)
    # models set it for every command, often to very little
    return BashStartParams(params.cmd, params.workdir, min(max(wait, _MIN_WAIT), _MAX_WAIT))


def _encode_exec(request: BashParams | BashStartParams) -> Any:
    if isinstance(request, BashStartParams):
        wait = request.wait or _MIN_WAIT
        return ExecCommandCall(request.command, request.cwd, yield_time_ms=wait)
    tokens = _output_tokens(request)
    return ExecCommandCall(request.command, request.cwd, tokens)


def _decode_foreground_exec(params: Any, _: object) -> BashParams:
    tokens = params.max_output_tokens
    size = None if tokens is None else tokens * _BYTES_PER_TOKEN
    return BashParams(params.cmd, None, params.workdir, size)


def _output_tokens(request: BashParams) -> int | None:
    return None if request.max_output is None else request.max_output // _BYTES_PER_TOKEN


def _decode_stdin(params: Any, _: object) -> ShellPollParams | ShellStopParams:
    if params.chars == _CTRL_C:
        return ShellStopParams(params.session_id)
    if params.chars:
        raise ToolValidationError(
            "Input cannot be sent to a running command; chars must be empty, or \\u0003 to stop it."
            " Run the command again with its input in a file or a pipe"
        )
    wait = min(max(params.yield_time_ms or 0, 0), _MAX_WAIT)
    return ShellPollParams(params.session_id, wait / 1000)


def _encode_stdin(request: ShellPollParams | ShellStopParams) -> Any:
    if isinstance(request, ShellStopParams):
        return WriteStdinCall(request.process_id, _CTRL_C)
    wait = int(request.wait_seconds * 1000)
    return WriteStdinCall(request.process_id, yield_time_ms=wait or None)


def _command_tool(
    name: str, switch: str, run: FieldMapping, start: FieldMapping, **options: Any
) -> ToolSpec[Any]:
    """Return a tool that runs commands, or with the parameter `switch` starts them."""

    def encode(request: BashParams | BashStartParams) -> Any:
        if isinstance(request, BashParams):
            return run.encode(request)
        call = start.encode(request)
        return None if call is None else replace(call, **{switch: True})

    return ToolSpec(
        name=name,
        description=f"{_COMMAND}\n{_BACKGROUND} set {switch}.",
        params=run.params,
        requests=(BashParams, BashStartParams),
        decode=lambda given, _: (start if getattr(given, switch) else run).decode(given),
        encode=encode,
        selector=switch,
        bypasses_filesystem=True,
        **options,
    )


def _foreground(
    spec: ToolSpec[Any], params: type[Any], decode: Callable[[Any, Any], BashParams] | None = None
) -> ToolSpec[Any]:
    """Return the tool for a sandbox in which all processes end with their command."""

    def decode_foreground(given: Any, context: Any) -> BashParams:
        request = spec.decode(given, context)
        if isinstance(request, BashStartParams):
            raise ToolValidationError(
                "Commands cannot run in the background: all processes end with the command."
                " Run it in the foreground, or start and use a server within one command"
            )
        return request

    return replace(
        spec,
        description=_COMMAND,
        params=params,
        requests=(BashParams,),
        decode=decode or decode_foreground,
        selector=None,
        superseded_by=(BashStartParams,),
    )


_SHELL_EXECUTE = pass_through(
    "shell_execute",
    ShellExecuteParams,
    _EXECUTE,
    aliases={"commands": "command", "argv": "command", "timeout": "timeout_seconds"},
    bypasses_filesystem=True,
)


def _poll_and_stop(poll: str, stop: str) -> tuple[ToolSpec[Any], ToolSpec[Any]]:
    aliases = {"id": "process_id", "pid": "process_id", "session_id": "process_id"}
    return (
        pass_through(poll, ShellPollParams, _POLL, aliases=aliases, read_only=True),
        pass_through(stop, ShellStopParams, _STOP, aliases=aliases, bypasses_filesystem=True),
    )


_SHELL_TOOLS = (
    _SHELL_EXECUTE,
    pass_through(
        "shell_start",
        ShellStartParams,
        _START,
        aliases={"commands": "command", "argv": "command"},
        bypasses_filesystem=True,
    ),
    *_poll_and_stop("shell_poll", "shell_stop"),
)
_BASH = _command_tool(
    "Bash",
    "run_in_background",
    FieldMapping(BashCall, BashParams),
    FieldMapping(BashCall, BashStartParams, fits=lambda request: request.cwd is None),
)
_EXEC_COMMAND: ToolSpec[Any] = ToolSpec(
    name="exec_command",
    description=f"{_COMMAND}\n{_BACKGROUND} set yield_time_ms, then use $ShellPollParams.",
    params=ExecCommandCall,
    requests=(BashParams, BashStartParams),
    decode=_decode_exec,
    encode=_encode_exec,
    aliases={"command": "cmd", "cwd": "workdir"},
    bypasses_filesystem=True,
)
_RUN_SHELL_COMMAND = _command_tool(
    "run_shell_command",
    "is_background",
    FieldMapping(
        RunShellCommandCall,
        BashParams,
        {"dir_path": "cwd"},
        fits=lambda request: request.max_output is None,
    ),
    FieldMapping(RunShellCommandCall, BashStartParams, {"dir_path": "cwd"}, fits=lambda _: True),
    aliases={"directory": "dir_path"},
)
SHELL_TOOL_SPECS: Mapping[str, tuple[ToolSpec[Any], ...]] = {
    "wink": _SHELL_TOOLS,
    "classic": _SHELL_TOOLS,
    "mcp": _SHELL_TOOLS,
    "claude": (
        _BASH,
        _foreground(_BASH, ForegroundBashCall),
        ToolSpec(
            name="BashOutput",
            description=_POLL,
            params=BashOutputCall,
            requests=(ShellPollParams,),
            decode=lambda params, _: ShellPollParams(_parse_number("bash_id", params.bash_id)),
            encode=lambda request: (
                None if request.wait_seconds else BashOutputCall(str(request.process_id))
            ),
            aliases={"shell_id": "bash_id", "task_id": "bash_id"},
            read_only=True,
            other_names=("TaskOutput",),
        ),
        ToolSpec(
            name="KillShell",
            description=_STOP,
            params=KillShellCall,
            requests=(ShellStopParams,),
            decode=lambda params, _: ShellStopParams(_parse_number("shell_id", params.shell_id)),
            encode=lambda request: KillShellCall(str(request.process_id)),
            aliases={"bash_id": "shell_id", "task_id": "shell_id"},
            bypasses_filesystem=True,
            other_names=("KillBash", "TaskStop"),
        ),
    ),
    "anthropic-editor": (
        ToolSpec(
            name="bash",
            description=f"{_COMMAND}\n{_BACKGROUND} use $BashStartParams.",
            params=AnthropicBashCall,
            requests=(BashParams,),
            decode=_decode_anthropic,
            encode=_encode_anthropic,
            bypasses_filesystem=True,
        ),
        pass_through("bash_start", BashStartParams, _START_SCRIPT, bypasses_filesystem=True),
        *_poll_and_stop("bash_poll", "bash_stop"),
    ),
    "openai": (
        _EXEC_COMMAND,
        _foreground(_EXEC_COMMAND, ForegroundExecCommandCall, _decode_foreground_exec),
        ToolSpec(
            name="write_stdin",
            description="Get the new output of a command that runs in the background, or stop it.",
            params=WriteStdinCall,
            requests=(ShellPollParams, ShellStopParams),
            decode=_decode_stdin,
            encode=_encode_stdin,
            bypasses_filesystem=True,
        ),
    ),
    "gemini": (
        _RUN_SHELL_COMMAND,
        _foreground(_RUN_SHELL_COMMAND, ForegroundRunShellCommandCall),
        mapped(
            "read_background_output",
            _POLL,
            FieldMapping(BackgroundCall, ShellPollParams, {"pid": "process_id"}),
            read_only=True,
        ),
        mapped(
            "stop_background_process",
            _STOP,
            FieldMapping(BackgroundCall, ShellStopParams, {"pid": "process_id"}),
            bypasses_filesystem=True,
        ),
    ),
}
"""The tools of each dialect that run commands."""
