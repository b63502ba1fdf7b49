"""Claude through Anthropic's Messages API: the extra `anthropic`."""

from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

__all__ = ["AnthropicAdapter"]
