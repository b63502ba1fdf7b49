"""What can go wrong between us and a model, and who can do something about it.

A `ProviderError` is what a provider said, or that it said nothing; those that pass are
tried again. The others are about the run as a whole.
"""

from typing import ClassVar

from weakincentives.errors import WinkError


class AdapterError(WinkError, RuntimeError):
    """The work on a prompt could not be brought to its end."""


class ProviderError(AdapterError):
    """A provider did not answer a request.

    Args:
        message: What happened, and what to do about it.
        provider: Who it was, as `openai`.
        status: The HTTP status, if there was one.
        retry_after: How many seconds the provider wants us to wait.
    """

    passes: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Say what happened."""
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.retry_after = retry_after


class ThrottledError(ProviderError):
    """The provider wants fewer requests: wait, or raise the limits of the account."""

    passes = True


class TransientError(ProviderError):
    """The provider failed, or was not reached: trying again may help."""

    passes = True


class InvalidRequestError(ProviderError):
    """The provider refuses the request as it is: something about it must be changed."""


class AuthenticationError(ProviderError):
    """The provider does not know us, or does not let us: check the key and its rights."""


class ContextTooLongError(ProviderError):
    """The conversation is longer than the model can take: make the task smaller."""


class ModelRefusedError(AdapterError):
    """The model, or a filter before it, refused to answer."""


class StepLimitError(AdapterError):
    """The model asked for tools again and again, and never came to an answer."""


class OutputError(AdapterError):
    """The answer is not what the prompt asks for, not even after it was sent back."""


class RunCancelledError(AdapterError):
    """Somebody cancelled the run; what its finished tool calls did stays."""


class ScriptError(AdapterError):
    """A script or a recording cannot answer."""
