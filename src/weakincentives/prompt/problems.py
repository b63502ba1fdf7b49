"""The error of a prompt that cannot be."""

from weakincentives.errors import WinkError


class PromptError(WinkError, ValueError):
    """The prompt cannot be made or rendered; the message says where and why."""
