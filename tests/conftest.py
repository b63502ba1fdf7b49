"""How tests of this project are collected: thousands of them, which are there until the end."""

import gc
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
