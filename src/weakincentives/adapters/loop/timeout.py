"""Watching: a request that never comes back ends in time all the same.

A client's own time-outs are often for each piece that arrives, so a server that sends a
little now and then is waited for without end. That is why a request is made in a thread
of its own. When its time is up it is left to itself: nobody hears what it says any more.
"""

from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Generic, TypeAlias, TypeVar, cast

from weakincentives.adapters.cancellation import drain_until
from weakincentives.adapters.loop.limits import RunLimits

T = TypeVar("T")
OnText: TypeAlias = Callable[[str], None]


class RequestTimeoutError(TimeoutError):
    """A request has used up its time; it is left to itself."""


class _AbandonedError(Exception):
    """Nobody listens any more."""


class _Ended(Generic[T]):
    """A request that is over."""

    def __init__(self, value: T | None = None, error: BaseException | None = None) -> None:
        self._value = value
        self._error = error

    def result(self) -> T:
        """Return what it returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


class _Text:
    """Brings pieces of text from the thread of a request to the one that waits for it.

    Who brings one goes on when it has been heard, so that pieces never pile up.
    """

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put = put
        self._turn = Semaphore(0)
        self._is_over = False

    def __call__(self, text: str) -> None:
        self._refuse_when_over()
        self._put(text)
        self._turn.acquire()
        self._refuse_when_over()

    def go_on(self) -> None:
        self._turn.release()

    def end(self) -> None:
        self._is_over = True
        self._turn.release()

    def _refuse_when_over(self) -> None:
        if self._is_over:
            raise _AbandonedError


class TimedRequest(Generic[T]):
    """One request, and what is heard of it: text, its end, or that the run was cancelled."""

    def __init__(self, request: Callable[[OnText | None], T], on_text: OnText | None) -> None:
        """Watch `request`, which is called with where its text goes.

        Args:
            request: What may take for ever.
            on_text: Called with each piece of text, in the thread that waits.
        """
        self._request = request
        self._on_text = on_text
        self._heard: SimpleQueue[str | _Ended[T] | None] = SimpleQueue()
        self._text = None if on_text is None else _Text(self._heard.put)

    def result(self, seconds: float, bounds: RunLimits) -> T:
        """Make the request, and return what it returns or raise what it raises.

        Raises:
            NoAnswerError: It took longer than `seconds`.
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: There is no time left.
        """
        stop = bounds.cancellation.subscribe(lambda: self._heard.put(None))
        context = copy_context()
        thread = Thread(target=context.run, args=[self._work], name="wink-request", daemon=True)
        try:
            thread.start()
            return self._wait(seconds, bounds).result()
        finally:
            stop()
            if self._text is not None:
                self._text.end()

    def _work(self) -> None:
        try:
            self._heard.put(_Ended(self._request(self._text)))
        except BaseException as error:  # noqa: BLE001 # it is raised where it is waited for
            self._heard.put(_Ended(error=error))

    def _wait(self, seconds: float, bounds: RunLimits) -> _Ended[T]:
        for heard in drain_until(seconds, self._heard):
            if isinstance(heard, _Ended):
                return heard
            bounds.check("Request")
            if heard is not None and self._text is not None and self._on_text is not None:
                self._on_text(heard)
                self._text.go_on()
        bounds.check("Request")
        raise RequestTimeoutError(f"no answer within {seconds:g} s")
