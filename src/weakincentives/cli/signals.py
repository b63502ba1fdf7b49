"""Signal handling: SIGTERM and SIGHUP end a command as Ctrl-C does, after cleanup."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

EXIT_SIGNAL_BASE = 128
"""A process that a signal ends exits with this plus the signal's number."""
_TERMINATION = (signal.SIGTERM, signal.SIGHUP)
_CANCELLATION = (signal.SIGINT, *_TERMINATION)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; code that handles Ctrl-C handles this too."""

    def __init__(self, number: int) -> None:
        """Store the number of the signal."""
        super().__init__(signal.Signals(number).name)
        self.exit_code: int = EXIT_SIGNAL_BASE + number


@contextmanager
def raise_on_termination() -> Generator[None, None, None]:
    """Raise TerminatedError at the first SIGTERM or SIGHUP; ignore later ones during cleanup."""

    def on_signal(received: list[int]) -> None:
        if len(received) == 1:
            raise TerminatedError(received[0])

    with _handle(_TERMINATION, on_signal):
        yield


@contextmanager
def cancel_on_signals(cancel: Callable[[str], object]) -> Generator[list[int], None, None]:
    """Call `cancel` with the signal's name at Ctrl-C, SIGTERM or SIGHUP; yield the signals.

    A second Ctrl-C does not wait for the cancellation: it raises KeyboardInterrupt.
    """

    def on_signal(received: list[int]) -> None:
        if len(received) > 1 and received[-1] == signal.SIGINT:
            raise KeyboardInterrupt
        cancel(signal.Signals(received[-1]).name)

    with _handle(_CANCELLATION, on_signal) as received:
        yield received


def find_termination(error: BaseException | None) -> TerminatedError | None:
    """Return the termination that caused `error`, if there is one."""
    while error is not None and not isinstance(error, TerminatedError):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def _handle(
    numbers: tuple[signal.Signals, ...], on_signal: Callable[[list[int]], None]
) -> Generator[list[int], None, None]:
    """Call `on_signal` with all signals received so far, and yield that list.

    Only the main thread can install handlers; in another thread no signal is received.
    """
    received: list[int] = []
    if current_thread() is not main_thread():
        yield received
        return

    def handler(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        on_signal(received)

    # an ignored signal stays ignored: nohup relies on that
    active = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    previous = {each: signal.signal(each, handler) for each in active}
    try:
        yield received
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)
