"""The engine `python`: CPython in a sandbox, for what the small languages cannot do.

Each call starts `driver.py` in the sandbox. The code finds the workspace as files, and can change
them like any command there: `bypasses_filesystem` tells the caller to take a snapshot first, which
undoes these changes if the call fails. What `write_text` is given is queued as with the other
engines.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.engine import (
    EngineLanguage,
    EngineOutcome,
    EngineRequest,
    EngineUnavailableError,
    FileAccess,
    clip,
)
from weakincentives.contrib.evaluation.params import EvalError, EvalLimits
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
        answer = _parse(result, request.limits)
        outcome = _create_outcome(answer, result, request)
        return outcome if outcome.error is not None else _report_files(answer.last, outcome, files)

    def close(self) -> None:
        """Do nothing: no process outlives its call, and the sandbox belongs to the caller."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A line of the driver: a piece of output, or at last how the code ended."""

    stdout: str = ""
    stderr: str = ""
    globals: dict[str, str] = field(default_factory=dict[str, str])
    reads: tuple[str, ...] = ()
    writes: tuple[tuple[str, str, WriteMode], ...] = ()
    has_ended: bool = False
    exit_code: int | None = None
    error: EvalError | None = None
    value: str | None = None
    value_dropped: int = 0
    stdout_dropped: int = 0
    stderr_dropped: int = 0

    def check(self, limits: EvalLimits) -> EvalError | None:
        """Return an error if there is more than the driver sends, unless it is forged."""
        if (
            len(self.globals) <= limits.max_globals
            and sum(map(len, self.globals.values())) <= limits.max_globals_length
            and len(self.reads) <= limits.max_file_calls
            and len(self.writes) <= limits.max_writes
        ):
            return None
        return EvalError("RuntimeError", "the Python process sent more than the limits allow")


class _Answer:
    """All messages of the driver.

    They come from a place where the code could have changed them. So their number and size are
    bounded here too, and what they contain is only what the code could have sent anyway.
    """

    def __init__(self, data: bytes, limits: EvalLimits) -> None:
        """Take the output of the driver, whose last line may be incomplete."""
        self.last: _Message | None = None
        self.stdout: str = ""
        self.stderr: str = ""
        for line in data.split(b"\n", 2 * limits.max_output_length + 1):
            try:
                self.last = decode(line, _Message)
            except SerdeError:
                return
            self.stdout += self.last.stdout
            self.stderr += self.last.stderr


def _parse(result: ExecResult, limits: EvalLimits) -> _Answer:
    """Return what the driver has sent.

    Raises:
        EngineUnavailableError: The driver has not run.
    """
    answer = _Answer(result.out.data, limits)
    if answer.last is not None or result.timed_out or result.signal:
        return answer
    if result.exit_code == _NOT_FOUND:
        raise EngineUnavailableError(
            f"The sandbox has no Python: {result.argv[0]!r} was not found; install it there, or"
            " choose another engine"
        )
    detail = clip(result.stderr.strip(), _MAX_EXCERPT)
    raise EngineUnavailableError(f"Python does not work in the sandbox: {detail}")


def _create_outcome(answer: _Answer, result: ExecResult, request: EngineRequest) -> EngineOutcome:
    limit = request.limits.max_output_length
    last = answer.last or _Message()
    error = _find_error(last, result, request.seconds) or last.check(request.limits)
    value = last.value
    return EngineOutcome(
        value_repr=None if value is None else clip(value, limit, dropped=last.value_dropped),
        stdout=clip(answer.stdout, limit, dropped=last.stdout_dropped),
        stderr=clip(answer.stderr, limit, dropped=last.stderr_dropped),
        globals={} if error is not None else last.globals,
        error=error,
        timed_out=result.timed_out,
        duration_ms=round(result.duration_ms),
    )


def _find_error(last: _Message, result: ExecResult, seconds: float) -> EvalError | None:
    if result.timed_out:
        return EvalError("TimeoutError", f"it did not finish within {seconds:g} seconds")
    if result.out.truncated:
        return EvalError("MemoryError", "the result is too large; print, return and write less")
    if not last.has_ended:
        code = result.exit_code if last.exit_code is None else last.exit_code
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        return EvalError("RuntimeError", f"the Python process ended {how} before the code was done")
    if last.error is None:
        return None
    kind, message, source = last.error.type, last.error.message, last.error.source
    return EvalError(
        clip(kind, _MAX_EXCERPT),
        clip(message, _MAX_MESSAGE),
        last.error.line,
        None if source is None else clip(source, _MAX_EXCERPT),
    )


def _report_files(
    last: _Message | None, outcome: EngineOutcome, files: FileAccess
) -> EngineOutcome:
    """Check the files that the code read, and queue what it wrote."""
    try:
        for path in last.reads if last is not None else ():
            files.read_text(path)
        for path, content, mode in last.writes if last is not None else ():
            files.write_text(path, content, mode)
    except (OSError, ValueError) as error:
        return EngineOutcome(
            error=EvalError(type(error).__name__, str(error)), duration_ms=outcome.duration_ms
        )
    return outcome
