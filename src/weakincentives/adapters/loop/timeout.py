"""Request timeout: run a request in a thread that can be abandoned.

A client's own timeout often applies to each chunk that arrives, so a server that trickles data
could hold a run forever. After the timeout the thread keeps running on its own, and what it
returns or raises is dropped.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Generic, TypeAlias, TypeVar

from weakincentives.adapters.cancellation import drain_until
from weakincentives.adapters.options import RunLimits

T = TypeVar("T")
OnText: TypeAlias = Callable[[str], None]


class RequestTimeoutError(TimeoutError):
    """A request exceeded its timeout and was abandoned."""


class _AbandonedError(Exception):
    """Raised in the request's thread: nobody waits for it any more."""


class _TextChannel:
    """Passes text from the request's thread to the waiting thread.

    Back-pressure: each piece blocks the sender until the receiver has handled it.
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._acknowledged = Semaphore(0)
        self._is_closed = False

    def __call__(self, text: str) -> None:
        self._check_open()
        self._put(text)
        self._acknowledged.acquire()
        self._check_open()

    def acknowledge(self) -> None:
        self._acknowledged.release()

    def close(self) -> None:
        self._is_closed = True
        self._acknowledged.release()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _AbandonedError


class TimedRequest(Generic[T]):
    """A request in its own thread, with a timeout and cancellation."""

    def __init__(self, request: Callable[[OnText | None], T], on_text: OnText | None) -> None:
        """Prepare `request`; it is called with a callback for its text.

        Args:
            request: A call that may never return.
            on_text: Called with each piece of text, in the waiting thread.
        """
        self._request = request
        self._on_text = on_text
        self._inbox: SimpleQueue[str | Future[T] | None] = SimpleQueue()
        self._channel = None if on_text is None else _TextChannel(self._inbox.put)

    def result(self, seconds: float, limits: RunLimits) -> T:
        """Send the request, and return or raise its result.

        Raises:
            RequestTimeoutError: It took longer than `seconds`.
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: The deadline has passed.
        """
        unsubscribe = limits.cancellation.subscribe(lambda: self._inbox.put(None))
        context = copy_context()
        thread = Thread(target=context.run, args=[self._work], name="wink-request", daemon=True)
        try:
            thread.start()
            return self._wait(seconds, limits)
        finally:
            unsubscribe()
            if self._channel is not None:
                self._channel.close()

    def _work(self) -> None:
        finished: Future[T] = Future()
        try:
            finished.set_result(self._request(self._channel))
        except BaseException as error:  # noqa: BLE001 # raised again in the waiting thread
            finished.set_exception(error)
        self._inbox.put(finished)

    def _wait(self, seconds: float, limits: RunLimits) -> T:
        for item in drain_until(seconds, self._inbox):
            if isinstance(item, Future):
                return item.result()
            limits.check("Request")
            if item is not None and self._channel is not None and self._on_text is not None:
                self._on_text(item)
                self._channel.acknowledge()
        limits.check("Request")
        raise RequestTimeoutError(f"no answer within {seconds:g} s")
