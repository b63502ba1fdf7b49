"""The adapters that share the HTTP core, and what differs between them in a test."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.anthropic import server as anthropic
from tests.adapters.chat_server import REQUEST, Answer, Server, drops, fails, piece, says, streams
from tests.adapters.openai import server as openai
from weakincentives.adapters import ProviderAdapter, ProviderError
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter

_BEGUN = anthropic.pieces(anthropic.text("Hello"))[:4]


@dataclass(frozen=True)
class Provider:
    """One adapter, and the server's side of its API."""

    name: str
    create: Callable[..., ProviderAdapter]
    serve: Callable[..., AbstractContextManager[tuple[ProviderAdapter, Server]]]
    model: str
    key: str
    key_source: str
    says: Callable[..., Answer]
    fails: Callable[..., Answer]
    begun: Sequence[Any]
    """The first events of a stream."""
    keep_alive: bytes
    """An event without content."""
    without_content: Sequence[Any]
    """JSON objects that are not answers."""

    def drops(self, *, headers_first: bool = True, begun: bool = False) -> Answer:
        return drops(*(self.begun if begun else ()), headers_first=headers_first)

    def breaks_off(self) -> Answer:
        return streams(*self.begun, done=False)


OPENAI = Provider(
    "openai",
    OpenAIAdapter,
    openai.asked,
    "gpt-test",
    openai.KEY,
    "OPENAI_API_KEY or api_key",
    says,
    fails,
    [piece({"content": "a"})],
    b'data: {"choices": []}\n\n',
    [{}, {"choices": []}],
)
ANTHROPIC = Provider(
    "anthropic",
    AnthropicAdapter,
    anthropic.asked,
    "claude-test",
    anthropic.KEY,
    "ANTHROPIC_API_KEY or api_key",
    anthropic.says,
    anthropic.fails,
    [anthropic.event(each) for each in _BEGUN],
    anthropic.event({"type": "ping"}),
    [{}, {"type": "message"}, {"type": "other", "content": []}],
)
PROVIDERS = (OPENAI, ANTHROPIC)


def provider_error(
    provider: Provider, answer: Answer, *, stream: bool = False, timeout: float = 10.0
) -> ProviderError:
    """Return the error of one request."""
    with provider.serve(answer) as (adapter, server):
        with pytest.raises(ProviderError) as caught:
            adapter.complete(REQUEST, on_text=(lambda _: None) if stream else None, timeout=timeout)
        # never sent again; a client that gave up early may be ahead of the server
        assert len(server.requests) <= 1
    error = caught.value
    assert error.provider == provider.name
    assert provider.name in str(error)
    assert provider.key not in str(error)
    return error
