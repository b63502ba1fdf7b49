"""Claude at Anthropic, and servers that speak its Messages API: the extra `anthropic`."""

from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

__all__ = ["AnthropicAdapter"]
