"""The cost of a request."""

import pytest

from weakincentives.adapters import ScriptedAdapter, TokenPrice
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.prices import list_price
from weakincentives.runtime import TokenUsage


def test_cached_and_written_tokens_have_their_own_price():
    price = TokenPrice(input=2.0, output=10.0, cached=0.5, cache_write=2.5)
    usage = TokenUsage(1_000_000, 100_000, 600_000, 200_000)
    assert price.cost(usage) == pytest.approx(0.2 * 2.0 + 0.6 * 0.5 + 0.2 * 2.5 + 0.1 * 10.0)
    assert TokenPrice(2.0, 10.0).cost(usage) == pytest.approx(2.0 + 1.0)
    assert TokenPrice(0.0, 0.0).cost(usage) == 0


def test_a_request_beyond_what_the_price_holds_for_has_no_cost():
    price = TokenPrice(1.0, 1.0, max_input=1000)
    assert price.cost(TokenUsage(1000, 5000)) is not None
    assert price.cost(TokenUsage(1001)) is None
    with pytest.raises(ValueError, match="negative"):
        TokenPrice(1.0, -1.0)


def test_list_prices_are_for_exact_names_and_their_dated_forms():
    assert list_price("openai", "gpt-5") == TokenPrice(1.25, 10.0, 0.125)
    assert list_price("openai", "gpt-5-2025-08-07") == list_price("openai", "gpt-5")
    sonnet = list_price("anthropic", "claude-sonnet-4-5-20250929")
    assert sonnet == TokenPrice(3.0, 15.0, 0.3, 3.75)
    for model in ("gpt-5-turbo", "gpt", "claude-sonnet-4-5", "my-gpt-5"):
        assert list_price("openai", model) is None
    assert list_price("elsewhere", "gpt-5") is None


def test_another_server_has_no_list_price():
    assert OpenAIAdapter("gpt-5", api_key="sk-x").price is not None
    assert OpenAIAdapter("gpt-5", api_key="sk-x", base_url="http://localhost:1/v1").price is None
    assert AnthropicAdapter("claude-opus-5", api_key="sk-x").price is not None
    assert AnthropicAdapter("nobody", api_key="sk-x").price is None
    assert ScriptedAdapter([]).price is None
