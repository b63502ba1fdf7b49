"""The server of the Chat Completions API, and the adapter for OpenAI that asks it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Event
from typing import Any

from tests.adapters.chat_server import Answer, Server, start
from weakincentives.adapters.openai import OpenAIAdapter


@cache
def _lasting() -> Server:
    state = Server()
    start(state)
    return state


@cache
def _adapter(url: str, **given: Any) -> OpenAIAdapter:
    return OpenAIAdapter("gpt-test", api_key="sk-secret", base_url=url, **given)


@contextmanager
def asked(*answers: Answer, **given: Any) -> Iterator[tuple[OpenAIAdapter, Server]]:
    """Serve these answers to an adapter; making one anew for each test would take long."""
    state = _lasting()
    state.answers, state.requests, state.stopped = list(answers), [], Event()
    try:
        yield _adapter(state.url, **given), state
    finally:
        state.stopped.set()
