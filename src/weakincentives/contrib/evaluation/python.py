"""The engine `python`: CPython in a sandbox, for what the small languages cannot do.

Each call starts `driver.py` in the sandbox. The code finds the workspace as files, and can change
them like any command there: `bypasses_filesystem` tells the caller to take a snapshot first, which
undoes these changes if the call fails. What `write_text` is given is queued as with the other
engines.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.engine import (
    EngineLanguage,
    EngineOutcome,
    EngineRequest,
    EngineUnavailableError,
    FileAccess,
)
from weakincentives.contrib.evaluation.params import EvalError, EvalLimits
from weakincentives.contrib.evaluation.text import clip
from weakincentives.filesystem import WriteMode
from weakincentives.sandbox import ExecResult, Sandbox
from weakincentives.serde import SerdeError, decode

PYTHON_LANGUAGE = EngineLanguage(
    "all of Python, with the standard library and the packages that are installed in the sandbox;"
    " the workspace is the current directory"
)
"""What code can use in this engine."""
_PROGRAM = ("-I", "-B", "-X", "utf8", "-c", Path(driver.__file__).read_text())
_NOT_FOUND = 127
_MAX_ANSWER = 16 * 1024 * 1024  # bytes, more than what the limits allow
_MAX_EXCERPT = 500  # characters of what a broken interpreter prints
_SHARE_OF_TIME = 0.9  # the rest is for the sandbox, to stop what does not stop at once
# libraries for numbers start a thread for each core, each with memory of its own
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class PythonEngine:
    """Runs code with the Python of a sandbox."""

    name: str = "python"
    language: EngineLanguage = PYTHON_LANGUAGE
    bypasses_filesystem: bool = True

    def __init__(self, sandbox: Sandbox, *, python: str = "python3") -> None:
        """Run code in a sandbox, which its owner closes.

        Args:
            sandbox: Where the code runs; it must work on the filesystem of the calls.
            python: The interpreter, as a command in the sandbox.
        """
        self.sandbox: Sandbox = sandbox
        self._python = python

    def evaluate(self, request: EngineRequest, files: FileAccess) -> EngineOutcome:
        """Run the code.

        Raises:
            EngineUnavailableError: There is no Python in the sandbox, or it is too old.
            SandboxUnavailableError: The sandbox does not work.
        """
        message = {
            "code": request.code,
            "globals": dict(request.globals),
            "limits": asdict(request.limits),
        }
        result = self.sandbox.exec(
            (self._python, *_PROGRAM),
            env=_ENVIRONMENT,
            stdin=json.dumps(message),
            timeout=request.seconds * _SHARE_OF_TIME,
            max_output=_MAX_ANSWER,
        )
        answer = _parse(result)
        outcome = _create_outcome(answer, result, request)
        return outcome if outcome.error is not None else _report_files(answer, outcome, files)

    def close(self) -> None:
        """Do nothing: no process outlives its call, and the sandbox belongs to the caller."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A line of the driver; it comes from a place where the code could have changed it.

    What the code prints arrives piece by piece in `stdout` and `stderr`, all else with the last.
    """

    stdout: str = ""
    stderr: str = ""
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    exit_code: int | None = None
    has_ended: bool = False
    error: EvalError | None = None
    value: str | None = None
    value_dropped: int = 0
    globals: dict[str, str] = field(default_factory=dict[str, str])
    reads: tuple[str, ...] = ()
    writes: tuple[tuple[str, str, WriteMode], ...] = ()


def _parse(result: ExecResult) -> _Message:
    """Return what the driver has sent, in one message.

    Raises:
        EngineUnavailableError: The driver has not run.
    """
    messages: list[_Message] = []
    with suppress(SerdeError):  # the last line may be incomplete
        messages.extend(decode(line, _Message) for line in result.out.data.splitlines())
    if not messages and not result.timed_out and not result.signal:
        if result.exit_code == _NOT_FOUND:
            raise EngineUnavailableError(
                f"The sandbox has no Python: {result.argv[0]!r} was not found; install it there,"
                " or choose another engine"
            )
        detail = clip(result.stderr.strip(), _MAX_EXCERPT)
        raise EngineUnavailableError(f"Python does not work in the sandbox: {detail}")
    return replace(
        messages[-1] if messages else _Message(),
        stdout="".join(each.stdout for each in messages),
        stderr="".join(each.stderr for each in messages),
    )


def _create_outcome(answer: _Message, result: ExecResult, request: EngineRequest) -> EngineOutcome:
    limit = request.limits.max_output_length
    error = _find_error(answer, result, request)
    value = answer.value
    return EngineOutcome(
        value_repr=None if value is None else clip(value, limit, dropped=answer.value_dropped),
        stdout=clip(answer.stdout, limit, dropped=answer.dropped.get("stdout", 0)),
        stderr=clip(answer.stderr, limit, dropped=answer.dropped.get("stderr", 0)),
        globals={} if error is not None else answer.globals,
        error=error,
        timed_out=result.timed_out,
        duration_ms=round(result.duration_ms),
    )


def _find_error(answer: _Message, result: ExecResult, request: EngineRequest) -> EvalError | None:
    if result.timed_out:
        return EvalError("TimeoutError", f"it ran longer than {request.seconds:g} s")
    if not answer.has_ended:
        code = result.exit_code if answer.exit_code is None else answer.exit_code
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        return EvalError("RuntimeError", f"the Python process ended {how} before the code was done")
    if answer.error is None and not _is_within(answer, request.limits):
        return EvalError("RuntimeError", "the Python process sent more than the limits allow")
    return answer.error


def _is_within(answer: _Message, limits: EvalLimits) -> bool:
    """Return whether an answer is within limits that the driver observes, unless it is forged."""
    return (
        len(answer.globals) <= limits.max_globals
        and sum(map(len, answer.globals.values())) <= limits.max_globals_length
        and len(answer.reads) <= limits.max_file_calls
        and len(answer.writes) <= limits.max_writes
    )


def _report_files(answer: _Message, outcome: EngineOutcome, files: FileAccess) -> EngineOutcome:
    """Check the files that the code read, and queue what it wrote."""
    try:
        for path in answer.reads:
            files.read_text(path)
        for path, content, mode in answer.writes:
            files.write_text(path, content, mode)
    except (OSError, ValueError) as error:
        return EngineOutcome(
            error=EvalError(type(error).__name__, str(error)), duration_ms=outcome.duration_ms
        )
    return outcome
