"""An engine whose code runs in the workers of a pool."""

import time
from dataclasses import dataclass, field

from weakincentives.contrib.evaluation.engine import (
    EngineLanguage,
    EngineOutcome,
    EngineRequest,
    FileAccess,
)
from weakincentives.contrib.evaluation.params import EvalError, EvalLimits
from weakincentives.contrib.evaluation.text import clip
from weakincentives.contrib.evaluation.worker.file_calls import answer_call
from weakincentives.contrib.evaluation.worker.pool import (
    Frame,
    Outcome,
    Worker,
    WorkerPool,
    WorkerProgram,
)
from weakincentives.contrib.evaluation.worker.protocol import FrameError

_GRACE = 0.3  # seconds for a worker to report the line at which it ran out of time
_MAX_MESSAGE = 2_000  # characters of an error message
_MAX_ESCAPE = 6  # characters that stand for one that UTF-8 cannot have
_MAX_NAME = 200  # characters of the name of a variable or an error


class WorkerEngine:
    """Runs code in worker processes; thread-safe."""

    def __init__(self, name: str, language: EngineLanguage, program: WorkerProgram) -> None:
        """Start nothing yet; the first evaluation does."""
        self.name: str = name
        self.language: EngineLanguage = language
        self.bypasses_filesystem: bool = False
        self._pool = WorkerPool(program)

    def evaluate(self, request: EngineRequest, files: FileAccess) -> EngineOutcome:
        """Run the code in a worker; kill it if it takes too long.

        Raises:
            EngineUnavailableError: No worker can be started.
        """
        started = time.monotonic()
        run = _Run(self._pool.acquire(), request, files, started)
        outcome = self._serve(run)
        if run.is_lost and not self._pool.has_server():
            # the worker did nothing, and died with a server that was killed
            outcome = self._serve(_Run(self._pool.acquire(), request, files, started))
        return outcome

    def _serve(self, run: "_Run") -> EngineOutcome:
        worker = run.worker
        try:
            outcome = run.serve()
        except BaseException:
            self._pool.discard(worker)
            raise
        if run.is_worker_fine:
            self._pool.release(worker)
        else:
            self._pool.discard(worker)
        return outcome

    def close(self) -> None:
        """Stop all processes; a later evaluation starts others."""
        self._pool.close()


@dataclass(slots=True)
class _Run:
    """One evaluation in a worker."""

    worker: Worker
    request: EngineRequest
    files: FileAccess
    started: float
    is_worker_fine: bool = False
    is_lost: bool = False
    has_answered: bool = False
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
            self.is_lost = not self.has_answered
            return self._fail("MemoryError", _crash_message(self.request.limits))
        self.worker.calls += 1
        self.worker.busy_seconds += time.monotonic() - self.started
        self.is_worker_fine = not reported.is_spoiled
        return self._accept(reported)

    def _serve_calls(self, until: float) -> Outcome | None:
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
                self._print(frame)
            else:
                calls -= 1
                self.worker.send(answer_call(self.files, frame, is_allowed=calls >= 0), until)
            if room < 0:
                raise FrameError("The worker sends more output than it may")

    def _print(self, frame: Frame) -> None:
        self.printed[frame.stream].append(frame.text[: self.request.limits.max_output_length])

    def _accept(self, reported: Outcome) -> EngineOutcome:
        """Return the outcome; the worker has bounded it, and a hostile one has not."""
        error, limits = reported.error, self.request.limits
        if error is not None and error.type == "TimeoutError" and reported.is_spoiled:
            message = _time_message(self.request)
            return self._fail(error.type, message, line=error.line, timed_out=True)
        if error is not None:
            name, message = error.type[:_MAX_NAME], clip(error.message, _MAX_MESSAGE)
            return self._fail(name, message, line=error.line, dropped=reported.dropped)
        value = reported.value_repr
        return EngineOutcome(
            None if value is None else clip(value, limits.max_output_length),
            self._printed("stdout", reported.dropped),
            self._printed("stderr", reported.dropped),
            _bound_globals(reported.globals, limits),
            duration_ms=self._duration(),
        )

    def _fail(
        self,
        name: str,
        message: str,
        *,
        line: int | None = None,
        timed_out: bool = False,
        dropped: dict[str, int] | None = None,
    ) -> EngineOutcome:
        lines = self.request.code.split("\n")
        line = line if line is not None and 0 < line <= len(lines) else None
        source = None if line is None else lines[line - 1]
        error = EvalError(name, message, line, source)
        return EngineOutcome(
            stdout=self._printed("stdout", dropped or {}),
            stderr=self._printed("stderr", dropped or {}),
            error=error,
            timed_out=timed_out,
            duration_ms=self._duration(),
        )

    def _printed(self, stream: str, dropped: dict[str, int]) -> str:
        text, limit = "".join(self.printed[stream]), self.request.limits.max_output_length
        return clip(text, limit, dropped=max(dropped.get(stream, 0), 0))

    def _duration(self) -> int:
        return round((time.monotonic() - self.started) * 1000)


def _encode(request: EngineRequest, seconds: float) -> dict[str, object]:
    limits = request.limits
    return {
        "code": request.code,
        "globals": dict(request.globals),
        "seconds": seconds,
        "root": request.root,
        "max_output": limits.max_output_length,
        "max_memory": limits.max_memory_bytes,
        "max_globals": limits.max_globals,
        "max_global_length": limits.max_global_length,
        "max_globals_length": limits.max_globals_length,
        "max_calls": limits.max_file_calls,
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
        "the process that ran the code ended; it probably used more than"
        f" {limits.max_memory_bytes // 1024**2} MiB of memory"
    )
