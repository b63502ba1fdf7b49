"""Adapters: what every provider's adapter shares, and the one method that it supplies."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from weakincentives.adapters.conversation import Completion, CompletionRequest


class ProviderAdapter(ABC):
    """Talks to a model; a subclass implements `complete`, and everything else is shared."""

    name: str = "adapter"
    """Who runs the model, as the GenAI conventions call them: `openai`, `anthropic`."""
    model: str = "unknown"
    """The model that is asked."""
    native_output: bool = False
    """Whether `complete` makes the provider keep to `request.output`. If not, the schema is
    told to the model in words."""

    @abstractmethod
    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Ask the model once, and return what it answered; no retries, no tools.

        It is called from one thread at a time for one run, and for several runs at once.

        Args:
            request: The conversation so far, and what the model may do.
            on_text: Called with each piece of the text as it arrives, in this thread, if the
                provider can stream; what it raises ends the request and is raised.
            timeout: How many seconds the whole may take; None is for the adapter to decide.

        Raises:
            ThrottledError: The provider wants fewer requests.
            TransientError: It failed, took too long, or was not reached.
            InvalidRequestError: It refuses the request as it is.
            AuthenticationError: It does not know us.
            ContextTooLongError: The conversation is too long for the model.
        """
