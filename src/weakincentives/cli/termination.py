"""SIGTERM and SIGHUP end a command as Ctrl-C does: what it holds is put in order first."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_BASE = 128


class TerminatedError(KeyboardInterrupt):
    """The process was asked to end; whoever handles Ctrl-C handles this too."""

    def __init__(self, number: int) -> None:
        """Hold the number of the signal."""
        super().__init__(signal.Signals(number).name)
        self.exit_code: int = _BASE + number


@contextmanager
def ended_by_signals() -> Generator[None, None, None]:
    """Raise TerminatedError at the first SIGTERM or SIGHUP; later ones disturb no cleaning up."""
    if current_thread() is not main_thread():
        yield
        return
    seen: list[int] = []

    def arrived(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            raise TerminatedError(number)

    # what is ignored stays so: nohup is a wish to live on
    heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, arrived) for each in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def termination_of(error: BaseException | None) -> TerminatedError | None:
    """Return the termination that an error comes from, if it does."""
    while error is not None and not isinstance(error, TerminatedError):
        error = error.__cause__ or error.__context__
    return error
