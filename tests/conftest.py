"""What holds for all tests: how thousands are collected, and that a signal is listened to."""

import gc
import signal
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from walking through all tests, again and again.

    It would do so while they are collected, at every `gc.collect()` in one of them, and in
    every process that one of them forks.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_configure() -> None:
    """Listen to Ctrl-C, also where a shell runs the tests in the background and so they do not."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
