"""Adapters: what every provider's adapter shares, and the one method that it supplies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.loop.limits import RunLimits, earliest_deadline
from weakincentives.adapters.loop.run import Run
from weakincentives.adapters.messages import (
    Completion,
    CompletionRequest,
    Message,
    PromptResponse,
    SystemMessage,
)
from weakincentives.adapters.options import RunOptions
from weakincentives.prompt import Prompt, RenderedPrompt
from weakincentives.runtime import Budget, BudgetTracker, Deadline
from weakincentives.runtime.session import Session

OutputT = TypeVar("OutputT")


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

        It is called in a thread of its own, for several runs at once. If it takes longer than
        `timeout` it is left to itself, and its answer is not heard.

        Args:
            request: The conversation so far, and what the model may do.
            on_text: Called with each piece of the text as it arrives, if the provider can
                stream; what it raises means that nobody listens any more, and is passed on.
            timeout: How many seconds the whole may take; None is for the adapter to decide.

        Raises:
            ThrottledError: The provider wants fewer requests.
            TransientError: It failed, took too long, or was not reached.
            InvalidRequestError: It refuses the request as it is.
            AuthenticationError: It does not know us.
            ContextTooLongError: The conversation is too long for the model.
        """

    def evaluate(
        self,
        prompt: Prompt[OutputT],
        *params: object,
        session: Session,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        messages: Sequence[Message] = (),
        on_text: Callable[[str], None] | None = None,
        cancellation: CancellationToken | None = None,
        options: RunOptions | None = None,
    ) -> PromptResponse[OutputT]:
        """Work on a prompt until the model has an answer, running the tools that it calls.

        However it ends, each tool call was kept or undone as a whole, and the session's bus
        was told. `partial_response` of an error tells what had been done before it.

        Args:
            prompt: What the model is told; its workspace is what the tools work on.
            params: Parameters of the prompt that are not bound yet.
            session: What is told of everything, and what the tools change.
            deadline: When the answer must be there.
            budget: What it may cost.
            budget_tracker: Instead of `budget`: what several runs together may cost.
            messages: What follows the prompt: earlier turns, and what is asked now. The
                prompt is then the system message. None: the prompt is all that is said.
            on_text: Called with each piece of the model's text as it arrives.
            cancellation: Ends the run from another thread.
            options: How many steps, how long a request, and so on.

        Raises:
            PromptError: The prompt cannot be rendered.
            ValueError: Both `budget` and `budget_tracker` are given, or a system message
                is among `messages`.
            ProviderError: The provider does not answer, and trying again is of no use.
            StepLimitError: The model came to no answer in `max_steps`.
            OutputError: The answer is not what the prompt asks for.
            ModelRefusedError: The model refused to answer.
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: More was used than allowed.
        """
        if budget is not None and budget_tracker is not None:
            raise ValueError("budget and budget_tracker are two words for one thing: give one")
        if any(isinstance(each, SystemMessage) for each in messages):
            raise ValueError("messages must not have a system message: the prompt is it")
        tracker = BudgetTracker(budget) if budget is not None else budget_tracker
        ends = earliest_deadline(deadline, None if tracker is None else tracker.budget.deadline)
        return self._work(
            prompt,
            prompt.render(*params, deadline=ends),
            session=session,
            bounds=RunLimits(cancellation or CancellationToken(), ends, tracker),
            options=options or RunOptions(),
            messages=messages,
            on_text=on_text,
        )

    def _work(
        self,
        prompt: Prompt[OutputT],
        rendered: RenderedPrompt[OutputT],
        *,
        session: Session,
        bounds: RunLimits,
        options: RunOptions,
        messages: Sequence[Message],
        on_text: Callable[[str], None] | None,
    ) -> PromptResponse[OutputT]:
        """Work on a rendered prompt; who has a loop of its own does it here."""
        return Run(
            self,
            prompt,
            rendered,
            session=session,
            bounds=bounds,
            options=options,
            messages=messages,
            on_text=on_text,
        ).run()

    def close(self) -> None:  # noqa: B027 # most adapters hold nothing
        """Let go of connections; an adapter that holds any does it here."""

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
