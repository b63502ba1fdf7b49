"""Errors of adapters and runs.

A `ProviderError` says that a provider did not answer a request; the retryable ones are
retried. The others are about the run as a whole.
"""

from typing import ClassVar

from weakincentives.errors import WinkError


class AdapterError(WinkError, RuntimeError):
    """A run did not finish."""


class ProviderError(AdapterError):
    """A provider did not answer a request.

    Args:
        message: What happened, and what to do about it.
        provider: The provider's name, such as `openai`.
        status: The HTTP status, if there was one.
        retry_after: How many seconds the provider asks us to wait.
    """

    retryable: ClassVar[bool] = False
    """Whether the same request may succeed later."""

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        """Create the error."""
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.retry_after = retry_after


class ThrottledError(ProviderError):
    """Rate limited: wait, or raise the limits of the account."""

    retryable = True


class TransientError(ProviderError):
    """The provider failed, timed out or was not reached: a retry may help."""

    retryable = True


class InvalidRequestError(ProviderError):
    """The provider rejects the request: change it."""


class AuthenticationError(ProviderError):
    """The provider rejects the key or its permissions: check both."""


class ContextTooLongError(ProviderError):
    """The conversation exceeds the model's context window: make the task smaller."""


class ModelRefusedError(AdapterError):
    """The model, or a content filter, refused to answer."""


class StepLimitError(AdapterError):
    """The model kept calling tools and gave no answer within `max_steps`."""


class OutputError(AdapterError):
    """The answer does not match the prompt's output type, even after retries."""


class RunCancelledError(AdapterError):
    """The run was cancelled; the effects of finished tool calls stay."""


class ScriptError(AdapterError):
    """A script or recording is damaged, or has no answer to a request."""
