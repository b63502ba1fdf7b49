"""The engine `python`: CPython in a sandbox, for what the small languages cannot do.

Each call starts `driver.py` in the sandbox. The code finds the workspace as files, and can change
them like any command there: `bypasses_filesystem` tells the caller to take a snapshot first, which
undoes these changes if the call fails. What `write_text` is given is queued as with the other
engines.
"""

import json
import secrets
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.engine import (
    EngineLanguage,
    EngineOutcome,
    EngineRequest,
    EngineUnavailableError,
    EvalError,
    EvalLimits,
    FileAccess,
    clip,
)
from weakincentives.filesystem import WriteMode
from weakincentives.sandbox import ExecResult, Sandbox
from weakincentives.serde import SerdeError, decode

PYTHON_LANGUAGE = EngineLanguage(
    "all of Python, with the standard library and the packages that are installed in the sandbox;"
    " the workspace is the current directory. write_text saves when the code has ended: to use a"
    " file again in the same code, write it with open()"
)
"""What code can use in this engine."""
_PROGRAM = ("-I", "-B", "-X", "utf8", "-c", Path(driver.__file__).read_text())
_NOT_FOUND = 127
_MAX_ANSWER = 6 * 1024 * 1024  # bytes; two million characters fit in any language
_MAX_EXCERPT = 500  # characters of what a broken interpreter prints, and of a line of code
_MAX_MESSAGE = 2_000  # characters of an error message
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
        mark = secrets.token_hex()
        message = {
            "code": request.code,
            "globals": dict(request.globals),
            "limits": asdict(request.limits),
            "mark": mark,
        }
        result = self.sandbox.exec(
            (self._python, *_PROGRAM),
            env=_ENVIRONMENT,
            stdin=json.dumps(message),
            timeout=request.seconds * _SHARE_OF_TIME,
            max_output=_MAX_ANSWER,
        )
        start, _, rest = result.out.data.partition(mark.encode())
        if start == result.out.data and not (result.timed_out or result.signal):
            raise _unavailable(result)
        printed, _, answer = rest.partition(mark.encode())
        if result.out.truncated and mark.encode() not in result.out.tail:
            answer = b""  # its middle is missing
        found = _parse(answer, request.limits)
        outcome = _create_outcome(found, printed, result, request)
        return outcome if outcome.error is not None else _report_files(found, outcome, files)

    def close(self) -> None:
        """Do nothing: no process outlives its call, and the sandbox belongs to the caller."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """How the code ended.

    It comes from a place where the code could have changed it. So its size is bounded here too,
    and what it contains is only what the code could have sent anyway.
    """

    globals: dict[str, str] = field(default_factory=dict[str, str])
    reads: tuple[str, ...] = ()
    writes: tuple[tuple[str, str, WriteMode], ...] = ()
    error: EvalError | None = None
    value: str | None = None
    value_dropped: int = 0


def _parse(line: bytes, limits: EvalLimits) -> _Answer | None:
    """Return the answer; None if there is none, for example because the process was killed."""
    try:
        found = decode(line.partition(b"\n")[0], _Answer)
    except SerdeError:
        return None
    if (
        len(found.globals) <= limits.max_globals
        and sum(map(len, found.globals.values())) <= limits.max_globals_length
        and len(found.reads) <= limits.max_file_calls
        and len(found.writes) <= limits.max_writes
    ):
        return found
    # the driver bounds it, so it is forged
    problem = "the Python process sent more than the limits allow"
    return _Answer(error=EvalError("RuntimeError", problem))


def _unavailable(result: ExecResult) -> EngineUnavailableError:
    """Return the error for a driver that has not run."""
    if result.exit_code == _NOT_FOUND:
        return EngineUnavailableError(
            f"The sandbox has no Python: {result.argv[0]!r} was not found; install it there, or"
            " choose another engine"
        )
    detail = clip(result.stderr.strip(), _MAX_EXCERPT)
    return EngineUnavailableError(f"Python does not work in the sandbox: {detail}")


def _create_outcome(
    answer: _Answer | None, printed: bytes, result: ExecResult, request: EngineRequest
) -> EngineOutcome:
    limit = request.limits.max_output_length
    found = answer or _Answer()
    error = _find_error(answer, result, request.seconds)
    value = found.value
    return EngineOutcome(
        value_repr=None if value is None else clip(value, limit, dropped=found.value_dropped),
        stdout=clip(printed.decode(errors="replace"), limit, dropped=result.out.dropped),
        stderr=clip(result.err.data.decode(errors="replace"), limit, dropped=result.err.dropped),
        globals={} if error is not None else found.globals,
        error=error,
        timed_out=result.timed_out,
        duration_ms=round(result.duration_ms),
    )


def _find_error(answer: _Answer | None, result: ExecResult, seconds: float) -> EvalError | None:
    if result.timed_out:
        return EvalError("TimeoutError", f"it did not finish within {seconds:g} seconds")
    if answer is None and result.success and result.out.truncated:
        return EvalError("MemoryError", "the result is too large; print, return and write less")
    if answer is None:
        number = 0 if result.signal is None else signal.Signals[result.signal]
        how = f"by signal {number}" if number else f"with exit code {result.exit_code}"
        return EvalError("RuntimeError", f"the Python process ended {how} before the code was done")
    if answer.error is None:
        return None
    kind, message, source = answer.error.type, answer.error.message, answer.error.source
    return EvalError(
        clip(kind, _MAX_EXCERPT),
        clip(message, _MAX_MESSAGE),
        answer.error.line,
        None if source is None else clip(source, _MAX_EXCERPT),
    )


def _report_files(
    answer: _Answer | None, outcome: EngineOutcome, files: FileAccess
) -> EngineOutcome:
    """Check the files that the code read, and queue what it wrote."""
    try:
        for path in answer.reads if answer is not None else ():
            files.read_text(path)
        for path, content, mode in answer.writes if answer is not None else ():
            files.write_text(path, content, mode)
    except (OSError, ValueError) as error:
        return EngineOutcome(
            error=EvalError(type(error).__name__, str(error)), duration_ms=outcome.duration_ms
        )
    return outcome
