"""An engine whose code runs in the workers of a pool.

It answers their calls: the functions of `FileAccess` by name, and no others. Two more return what
a worker cannot open and what is no secret: modules of the standard library, and data of time zones.
"""

import base64
import marshal
import re
import sys
import sysconfig
import time
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path

from weakincentives.contrib.evaluation.engine import (
    EngineLanguage,
    EngineOutcome,
    EngineRequest,
    EvalError,
    EvalLimits,
    FileAccess,
    clip,
)
from weakincentives.contrib.evaluation.worker import pool
from weakincentives.posix import FrameError

_GRACE = 0.3  # seconds for a worker to report the line at which it ran out of time
_MAX_MESSAGE = 2_000  # characters of an error message
_MAX_ESCAPE = 6  # characters that stand for one that UTF-8 cannot have
_MAX_NAME = 200  # characters of the name of a variable or an error
_LIBRARY = sysconfig.get_path("stdlib")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_MAX_FILE_MESSAGE = 1_000  # characters of the message of a file call
_NAMES = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError),
    *(PermissionError, OSError, ValueError),
)


class WorkerEngine:
    """Runs code in worker processes; thread-safe."""

    def __init__(self, name: str, language: EngineLanguage, program: pool.WorkerProgram) -> None:
        """Start nothing yet; the first evaluation does."""
        self.name: str = name
        self.language: EngineLanguage = language
        self.bypasses_filesystem: bool = False
        self._pool = pool.WorkerPool(program)

    def evaluate(self, request: EngineRequest, files: FileAccess) -> EngineOutcome:
        """Run the code in a worker; kill it if it takes too long.

        Raises:
            EngineUnavailableError: No worker can be started.
        """
        started = time.monotonic()
        run = _Run(self._pool.acquire(), request, files, started)
        outcome = self._serve(run)
        if not run.has_answered and not self._pool.has_server(run.worker):
            # the worker did nothing, and died with a server that was killed
            outcome = self._serve(_Run(self._pool.acquire(), request, files, started))
        return outcome

    def _serve(self, run: "_Run") -> EngineOutcome:
        try:
            return run.serve()
        finally:
            if run.is_worker_fine:
                self._pool.release(run.worker)
            else:
                run.worker.kill()

    def close(self) -> None:
        """Stop all processes; a later evaluation starts others."""
        self._pool.close()


@dataclass(slots=True)
class _Run:
    """One evaluation in a worker."""

    worker: pool.Worker
    request: EngineRequest
    files: FileAccess
    started: float
    is_worker_fine: bool = False
    has_answered: bool = False
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    printed: dict[str, list[str]] = field(
        default_factory=lambda: {"stdout": [], "stderr": []}, init=False
    )

    def serve(self) -> EngineOutcome:
        """Serve the worker until it reports the outcome, dies, or runs out of time."""
        # starting a worker takes some of the time, but not most of it
        seconds = max(
            self.started + self.request.seconds - time.monotonic(), self.request.seconds / 2
        )
        until = time.monotonic() + seconds + _GRACE
        try:
            self.worker.send(_encode(self.request, seconds), until)
            reported = self._serve_calls(until)
        except TimeoutError:
            return self._fail("TimeoutError", _time_message(self.request), timed_out=True)
        except (FrameError, OSError):
            reported = None
        if reported is None:
            return self._fail("RuntimeError", _crash_message(self.request.limits))
        self.worker.busy_seconds += time.monotonic() - self.started
        self.is_worker_fine = not reported.is_spoiled
        return self._accept(reported)

    def _serve_calls(self, until: float) -> pool.WorkerOutcome | None:
        limits = self.request.limits
        calls, room = limits.max_file_calls, 2 * _MAX_ESCAPE * limits.max_output_length
        while True:
            frame = self.worker.receive(until)
            self.has_answered = self.has_answered or frame is not None
            if frame is None or frame.kind == "ready":
                return None
            if frame.kind == "done":
                return frame.outcome
            if frame.kind == "print":
                room -= max(len(frame.text), 1)
                self.printed[frame.stream].append(frame.text[: limits.max_output_length])
            else:
                calls -= 1
                self.worker.send(_answer(self.files, frame, is_allowed=calls >= 0), until)
            if room < 0:
                raise FrameError("Worker output exceeds its limit")

    def _accept(self, reported: pool.WorkerOutcome) -> EngineOutcome:
        """Return the outcome; the worker has bounded it, and a hostile one has not."""
        error, limits, self.dropped = reported.error, self.request.limits, reported.dropped
        if error is not None and error.type == "TimeoutError" and reported.is_spoiled:
            message = _time_message(self.request)
            return self._fail(error.type, message, line=error.line, timed_out=True)
        if error is not None:
            name, message = error.type[:_MAX_NAME], clip(error.message, _MAX_MESSAGE)
            return self._fail(name, message, line=error.line)
        value, length = reported.value, limits.max_output_length
        return EngineOutcome(
            None if value is None else clip(value, length, dropped=max(reported.value_dropped, 0)),
            self._printed("stdout"),
            self._printed("stderr"),
            _bound_globals(reported.globals, limits),
            duration_ms=self._duration(),
        )

    def _fail(
        self, name: str, message: str, *, line: int | None = None, timed_out: bool = False
    ) -> EngineOutcome:
        lines = self.request.code.split("\n")
        line = line if line is not None and 0 < line <= len(lines) else None
        source = None if line is None else lines[line - 1]
        return EngineOutcome(
            stdout=self._printed("stdout"),
            stderr=self._printed("stderr"),
            error=EvalError(name, message, line, source),
            timed_out=timed_out,
            duration_ms=self._duration(),
        )

    def _printed(self, stream: str) -> str:
        text, limit = "".join(self.printed[stream]), self.request.limits.max_output_length
        return clip(text, limit, dropped=max(self.dropped.get(stream, 0), 0))

    def _duration(self) -> int:
        return round((time.monotonic() - self.started) * 1000)


def _encode(request: EngineRequest, seconds: float) -> dict[str, object]:
    return {
        "code": request.code,
        "globals": dict(request.globals),
        "seconds": seconds,
        "root": request.root,
        "limits": asdict(request.limits),
    }


def _bound_globals(found: dict[str, str], limits: EvalLimits) -> dict[str, str]:
    kept: dict[str, str] = {}
    room = limits.max_globals_length
    for name, text in list(found.items())[: limits.max_globals]:
        if len(name) <= _MAX_NAME and len(text) <= min(limits.max_global_length, room):
            kept[name] = text
            room -= len(text)
    return kept


def _time_message(request: EngineRequest) -> str:
    return f"it did not finish within {request.seconds:g} seconds"


def _crash_message(limits: EvalLimits) -> str:
    return (
        "the process that ran the code ended before the code was done: it exited, crashed, or used"
        f" more than {limits.max_memory_bytes // 1024**2} MiB of memory"
    )


def _answer(files: FileAccess, frame: pool.Frame, *, is_allowed: bool) -> dict[str, object]:
    """Return the reply to a call: its value, or the error that the code gets."""
    function = _FUNCTIONS.get(frame.function)
    try:
        if function is None:
            raise ValueError(f"No such file function: {frame.function[:50]!r}")
        if not is_allowed:
            raise OSError("The code makes too many file calls; read each file once")
        return {"value": function(files, *frame.arguments)}
    except (OSError, ValueError) as error:
        return {"error": [_error_name(error), str(error)[:_MAX_FILE_MESSAGE]]}
    except TypeError:
        return {"error": ["ValueError", f"Wrong arguments for {frame.function!r}"]}


def _error_name(error: Exception) -> str:
    return next(each.__name__ for each in _NAMES if isinstance(error, each))


def _make_directory(files: FileAccess, path: str, parents: str, exist_ok: str) -> None:
    files.make_directory(path, parents=bool(parents), exist_ok=bool(exist_ok))


def _method(name: str) -> Callable[..., object]:
    """Return a function that calls a method whose arguments and value are those of the call."""

    def call(files: FileAccess, *arguments: str) -> object:
        return getattr(files, name)(*arguments)

    return call


def _read_bytes(files: FileAccess, path: str) -> str:
    return base64.b64encode(files.read_bytes(path)).decode()


def _stat(files: FileAccess, path: str) -> dict[str, object]:
    found = files.stat(path)
    modified = found.modified_at
    return {
        "is_file": found.is_file,
        "is_directory": found.is_directory,
        "is_symlink": found.is_symlink,
        "size": found.size_bytes,
        "modified": 0 if modified is None else modified.timestamp(),
    }


def _list(files: FileAccess, path: str) -> list[list[object]]:
    return [
        [each.name, each.is_file, each.is_directory, each.is_symlink] for each in files.list(path)
    ]


def _module(_: FileAccess, name: str) -> tuple[str, str, bool] | None:
    """Return the code of a module of the standard library, its file, whether it is a package."""
    parts = name.split(".")
    if parts[0] not in sys.stdlib_module_names or not all(map(str.isidentifier, parts)):
        return None
    for rest, is_package in (("/__init__.py", True), (".py", False)):
        path = f"{_LIBRARY}/{'/'.join(parts)}{rest}"
        if Path(path).is_file():
            code = SourceFileLoader(name, path).get_code(name)
            return base64.b64encode(marshal.dumps(code)).decode(), path, is_package
    return None


def _zone(_: FileAccess, key: str) -> str | None:
    """Return the data of a time zone."""
    for directory in zoneinfo.TZPATH if _ZONE.fullmatch(key) else ():
        path = Path(directory, key)
        if path.is_file():
            return base64.b64encode(path.read_bytes()).decode()
    return None


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    **{name: _method(name) for name in ("read_text", "write_text", "remove", "exists")},
    "read_bytes": _read_bytes,
    "make_directory": _make_directory,
    "stat": _stat,
    "list": _list,
    "module": _module,
    "zone": _zone,
}
