"""Calls of clients: who sent them, in which order they run, and how they are cancelled.

Calls run in the order in which they arrive, whichever client sent them. One that can change files
runs alone; those that only read run side by side. So no call sees half of another one.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Generic, TypeAlias, TypeVar

import anyio

from weakincentives.adapters import CancellationToken
from weakincentives.errors import WinkError
from weakincentives.posix import display_path

MAX_PARALLEL = 4
"""Calls that run side by side."""
MAX_WAITING = 4_096
"""Calls that wait for their turn; further ones are refused."""
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Characters in the arguments of calls that wait; further ones are refused."""
PROGRESS_INTERVAL = 1.0
"""Seconds between two reports of progress."""
_MAX_LINE = 200  # characters of a command's last line in a report
T = TypeVar("T")


class ServerBusyError(WinkError, RuntimeError):
    """Too many calls wait for their turn."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T]):
    function: Callable[[], T]
    exclusive: bool
    size: int
    future: "Future[T]" = field(default_factory=Future[Any])


class CallQueue:
    """Runs functions in threads, first come, first served; exclusive ones run alone.

    Thread-safe.
    """

    def __init__(self, *, max_parallel: int = MAX_PARALLEL) -> None:
        """Run at most `max_parallel` functions at the same time."""
        self._max_parallel = max_parallel
        self._lock = Lock()
        self._waiting: deque[_Waiting[Any]] = deque()
        self._waiting_bytes = 0
        self._running = 0
        self._is_exclusive = False
        self._is_closed = False
        self._pool = ThreadPoolExecutor(max_parallel, thread_name_prefix="wink-mcp")

    def submit(
        self, function: Callable[[], T], *, exclusive: bool = False, size: int = 0
    ) -> "Future[T]":
        """Run `function` when its turn comes; its future can be cancelled until then.

        Args:
            function: What to run, in a copy of the caller's context.
            exclusive: Nothing else runs at the same time.
            size: The memory that it takes while it waits.

        Raises:
            ServerBusyError: Too many functions wait, or the queue is closed.
        """
        context = copy_context()
        entry = _Waiting[T](lambda: context.run(function), exclusive, size)
        with self._lock:
            if self._is_closed:
                raise ServerBusyError("The server is shutting down")
            if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES:
                raise ServerBusyError(
                    f"The server is busy: {len(self._waiting):,} calls are waiting; send this one"
                    " again later"
                )
            self._waiting.append(entry)
            self._waiting_bytes += size
            self._start_next()
        return entry.future

    def close(self) -> None:
        """Cancel what waits, and return when nothing runs any more."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, deque()
            self._waiting_bytes = 0
        for entry in waiting:
            entry.future.cancel()
        self._pool.shutdown(wait=True)

    def _start_next(self) -> None:
        """Start what may run now; the lock is held."""
        while self._waiting:
            entry = self._waiting[0]
            limit = 1 if entry.exclusive else self._max_parallel
            if self._is_exclusive or self._running >= limit:
                return
            self._waiting.popleft()
            self._waiting_bytes -= entry.size
            if not entry.future.set_running_or_notify_cancel():
                continue
            self._running += 1
            self._is_exclusive = entry.exclusive
            self._pool.submit(self._run, entry)

    def _run(self, entry: _Waiting[Any]) -> None:
        try:
            result = entry.function()
        except BaseException as error:  # noqa: BLE001 # the caller gets it from the future
            self._finish()
            entry.future.set_exception(error)
        else:
            self._finish()
            entry.future.set_result(result)

    def _finish(self) -> None:
        with self._lock:
            self._running -= 1
            self._is_exclusive = False
            self._start_next()


class RunningCall:
    """A call between its arrival and its end: its cancellation, and how far it has got."""

    def __init__(self, name: str) -> None:
        """Start the clock of a call of the tool `name`."""
        self.cancellation: CancellationToken = CancellationToken()
        self._name = name
        self._created = time.monotonic()
        self._has_started = False
        self._lines = 0
        self._last_line = ""

    def start(self) -> None:
        """Note that its turn has come."""
        self._has_started = True

    def on_output(self, stream: str, data: bytes) -> None:
        """Note what its command prints."""
        del stream
        self._lines += data.count(b"\n")
        lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            self._last_line = display_path(lines[-1].strip())[:_MAX_LINE]

    @property
    def seconds(self) -> float:
        """The seconds since it arrived."""
        return time.monotonic() - self._created

    def describe(self) -> str:
        """Return what it is doing, for the person who waits."""
        if not self._has_started:
            return f"{self._name}: waiting for other calls"
        text = f"{self._name}: running for {self.seconds:.0f} s"
        if self._lines:
            text += f", {self._lines:,} {'line' if self._lines == 1 else 'lines'} printed"
        return f"{text}: {self._last_line}" if self._last_line else text


Report: TypeAlias = Callable[[float, str], Awaitable[None]]
"""Reports progress: a number that increases, and a sentence."""


async def wait_for(future: "Future[T]", call: RunningCall, report: Report | None = None) -> T:
    """Return the result of a call.

    If this task is cancelled, a call that waits does not run. One that runs is stopped and rolled
    back, which is awaited: nothing changes files any more when this returns.

    Args:
        future: The future of the call.
        call: The call.
        report: Called every second while the call runs.
    """
    waiting = asyncio.wrap_future(future)
    try:
        while report is not None and not waiting.done():
            await asyncio.wait([waiting], timeout=PROGRESS_INTERVAL)
            if not waiting.done():
                await report(call.seconds, call.describe())
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not future.cancel():
            call.cancellation.cancel("the client cancelled it, or has gone")
            with anyio.CancelScope(shield=True):
                await asyncio.wait([waiting])
        raise
