"""Prices of tokens: what a run costs, where the price of its model is known.

The table has list prices that the providers published, as of `LIST_PRICE_DATE`, for the names that
they document. A model that is not in it has no price: nothing is derived from similar names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from weakincentives.runtime import TokenUsage

LIST_PRICE_DATE = "2026-11-16"
"""When the list prices were last checked, with the table of LiteLLM 1.106.2."""
_MILLION = 1_000_000
# gpt-5-2025-08-07 and claude-sonnet-4-5-20250929 are dated names of the same model
_DATE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """The price of a million tokens, in US dollars.

    Args:
        input: Tokens of the request that were not cached.
        output: Tokens of the answer.
        cached: Tokens of the request that were read from the cache; None is the price of others.
        cache_write: Tokens of the request that were written to the cache; None as well.
        max_input: The largest request, in tokens, that has this price; None has no limit.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    max_input: int | None = None

    def __post_init__(self) -> None:
        """Check the prices.

        Raises:
            ValueError: A price is negative.
        """
        if min(self.input, self.output, self.cached or 0, self.cache_write or 0) < 0:
            raise ValueError(f"A price is negative: {self!r}")

    def cost(self, usage: TokenUsage) -> float | None:
        """Return the cost of one request in US dollars; None if it has another price."""
        if self.max_input is not None and usage.input_tokens > self.max_input:
            return None
        plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        total = (
            plain * self.input
            + usage.cached_tokens * cached
            + usage.cache_write_tokens * written
            + usage.output_tokens * self.output
        )
        return total / _MILLION


_LARGE = 272_000  # input tokens of a request above which some models cost more
_OPENAI: Mapping[str, TokenPrice] = {
    "gpt-6-astra": TokenPrice(10.0, 50.0, 1.0, 12.5, _LARGE),
    "gpt-6-sol": TokenPrice(2.0, 10.0, 0.2, 2.5, _LARGE),
    "gpt-6-luna": TokenPrice(0.1, 0.5, 0.01, 0.125, _LARGE),
    "gpt-5.6": TokenPrice(4.0, 20.0, 0.4, 5.0, _LARGE),
    "gpt-5.6-sol": TokenPrice(4.0, 20.0, 0.4, 5.0, _LARGE),
    "gpt-5.6-terra": TokenPrice(2.0, 12.0, 0.2, 2.5, _LARGE),
    "gpt-5.6-luna": TokenPrice(0.2, 1.2, 0.02, 0.25, _LARGE),
    "gpt-5.5": TokenPrice(5.0, 30.0, 0.5, max_input=_LARGE),
    "gpt-5.4": TokenPrice(2.5, 15.0, 0.25, max_input=_LARGE),
    "gpt-5.4-mini": TokenPrice(0.75, 4.5, 0.075),
    "gpt-5.4-nano": TokenPrice(0.2, 1.25, 0.02),
    "gpt-5.2": TokenPrice(1.75, 14.0, 0.175),
    "gpt-5.1": TokenPrice(1.25, 10.0, 0.125),
    "gpt-5": TokenPrice(1.25, 10.0, 0.125),
    "gpt-5-mini": TokenPrice(0.25, 2.0, 0.025),
    "gpt-5-nano": TokenPrice(0.05, 0.4, 0.005),
    "gpt-4.1": TokenPrice(2.0, 8.0, 0.5),
    "gpt-4.1-mini": TokenPrice(0.4, 1.6, 0.1),
    "gpt-4o": TokenPrice(2.5, 10.0, 1.25),
    "gpt-4o-mini": TokenPrice(0.15, 0.6, 0.075),
    "o3": TokenPrice(2.0, 8.0, 0.5),
    "o4-mini": TokenPrice(1.1, 4.4, 0.275),
}
_OPUS, _SONNET = TokenPrice(5.0, 25.0, 0.5, 6.25), TokenPrice(3.0, 15.0, 0.3, 3.75)
_ANTHROPIC: Mapping[str, TokenPrice] = {
    "claude-opus-5-5": TokenPrice(4.0, 20.0, 0.2, 5.0),
    "claude-opus-5": _OPUS,
    "claude-opus-4-8": _OPUS,
    "claude-opus-4-7": _OPUS,
    "claude-opus-4-6": _OPUS,
    "claude-opus-4-5": _OPUS,
    "claude-sonnet-5-5": TokenPrice(2.0, 10.0, 0.1, 2.5),
    "claude-sonnet-5": TokenPrice(2.0, 10.0, 0.2, 2.5),
    "claude-sonnet-4-6": _SONNET,
    "claude-sonnet-4-5": _SONNET,
    "claude-haiku-5-5": TokenPrice(0.1, 0.5, 0.01, 0.125),
    "claude-haiku-4-5": TokenPrice(1.0, 5.0, 0.1, 1.25),
}
_LIST_PRICES: Mapping[str, Mapping[str, TokenPrice]] = {"openai": _OPENAI, "anthropic": _ANTHROPIC}


def list_price(provider: str, model: str) -> TokenPrice | None:
    """Return the list price of a model at its own provider, or None if it is not known."""
    prices = _LIST_PRICES.get(provider, {})
    return prices.get(model) or prices.get(_DATE.sub("", model))
