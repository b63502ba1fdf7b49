"""ProviderAdapter: the base class of all adapters, with one abstract method."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.errors import InvalidRequestError
from weakincentives.adapters.loop.request import RunInput
from weakincentives.adapters.loop.run import AgentLoop
from weakincentives.adapters.messages import (
    Completion,
    CompletionRequest,
    Message,
    PromptResponse,
    SystemMessage,
)
from weakincentives.adapters.optimize import Optimization, OptimizationResult, OptimizationScope
from weakincentives.adapters.options import (
    EFFORTS,
    Effort,
    RunLimits,
    RunOptions,
    earliest_deadline,
)
from weakincentives.adapters.prices import TokenPrice
from weakincentives.posix import CloseOnExit
from weakincentives.prompt import Prompt, PromptOverridesStore
from weakincentives.runtime import Budget, BudgetTracker, Deadline
from weakincentives.runtime.session import Session

OutputT = TypeVar("OutputT")


class ProviderAdapter(CloseOnExit):
    """Connects to a model; a subclass implements `complete`, and everything else is shared."""

    name: str = "adapter"
    """The provider, named as in the GenAI conventions: `openai`, `anthropic`."""
    model: str = "unknown"
    """The model's name."""
    native_output: bool = False
    """Whether the provider enforces `request.output`. If not, the prompt contains the schema."""
    supports_temperature: bool = True
    """Whether requests can have a temperature."""
    efforts: tuple[Effort, ...] = EFFORTS
    """The efforts that requests can have."""
    price: TokenPrice | None = None
    """The price of its tokens, if it is known."""

    @abstractmethod
    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Send one request to the model; no retries, no tools.

        Called in its own thread, for several runs at once. A call that exceeds `timeout` is
        abandoned and its answer dropped.

        Args:
            request: The conversation so far, the tools and options.
            on_text: Called with each piece of text as it arrives, if the provider streams; an
                exception from it means that nobody listens any more, and must propagate.
            timeout: Seconds for the whole request; None is the adapter's default.

        Raises:
            ThrottledError: The provider's rate limit is reached.
            TransientError: The provider failed, timed out or was not reached.
            InvalidRequestError: The provider rejects the request.
            AuthenticationError: The provider rejects the key.
            ContextTooLongError: The conversation exceeds the model's context window.
        """

    def check_options(self, options: RunOptions) -> None:
        """Return if the provider has all options that are set.

        A model may still reject one that its provider has.

        Raises:
            InvalidRequestError: It has not; the message says which to choose instead.
        """
        if options.temperature is not None and not self.supports_temperature:
            raise InvalidRequestError(
                f"{self.name} does not support a temperature, omit it: {options.temperature!r}",
                provider=self.name,
            )
        if options.effort is not None and options.effort not in self.efforts:
            choices = f"choose one of {', '.join(self.efforts)}" if self.efforts else "omit it"
            raise InvalidRequestError(
                f"{self.name} does not support this effort, {choices}: {options.effort!r}",
                provider=self.name,
            )

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
        """Run a prompt until the model answers, with the tools that it calls.

        However it ends, each tool call was committed or rolled back as a whole, and the
        session's bus has the events. `partial_response` returns what was done before an error.

        Args:
            prompt: The prompt; the tools work on its workspace.
            params: Parameters of the prompt that are not bound yet.
            session: Receives the events, and what the tools change.
            deadline: When the answer must be there.
            budget: Limit of tokens and tool calls for this run.
            budget_tracker: Instead of `budget`: a limit that several runs share.
            messages: What follows the prompt: earlier turns, then the new request. The prompt
                is then the system message. If empty, the prompt is the only message.
            on_text: Called with each piece of the model's text as it arrives.
            cancellation: Cancels the run from another thread.
            options: Maximum steps, timeouts, retries and so on.

        Raises:
            PromptError: The prompt cannot be rendered.
            ValueError: Both `budget` and `budget_tracker` are given, or `messages` contains a
                system message.
            ProviderError: The provider does not answer, and retries do not help.
            StepLimitError: The model gave no answer within `max_steps`.
            InvalidRequestError: The provider does not have one of the options.
            OutputError: The answer does not match the prompt's output type.
            ModelRefusedError: The model refused to answer.
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
        """
        if budget is not None and budget_tracker is not None:
            raise ValueError("Pass budget or budget_tracker, not both")
        if any(isinstance(each, SystemMessage) for each in messages):
            raise ValueError(
                "messages must not contain a system message: the prompt is the system message"
            )
        options = options or RunOptions()
        self.check_options(options)
        tracker = BudgetTracker(budget) if budget is not None else budget_tracker
        ends = earliest_deadline(deadline, None if tracker is None else tracker.budget.deadline)
        rendered = prompt.render(*params, deadline=ends)
        limits = RunLimits(cancellation or CancellationToken(), ends, tracker)
        return self._run(
            RunInput(self, prompt, rendered, session, limits, options, messages, on_text)
        )

    def optimize(
        self,
        prompt: Prompt[Any],
        *,
        session: Session,
        store_scope: OptimizationScope = OptimizationScope.SESSION,
        overrides_store: PromptOverridesStore | None = None,
        overrides_tag: str = "latest",
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        budget_tracker: BudgetTracker | None = None,
        on_text: Callable[[str], None] | None = None,
        cancellation: CancellationToken | None = None,
        options: RunOptions | None = None,
    ) -> OptimizationResult:
        """Let the model explore the workspace of a prompt and write its digest.

        The prompt has a workspace and a `WorkspaceDigestSection`. The model has tools that only
        read, in a session of its own: no file changes, and nothing of `session` but the digest. If
        the call fails, nothing is stored.

        `store_scope` says where the digest goes: to `session`, or to `overrides_store` under
        `overrides_tag`. The latter removes the digest of `session`, which would take precedence.
        The other arguments are those of `evaluate`.

        Raises:
            PromptError: The prompt has no digest or no workspace, or the store cannot take it.
            OutputError: The digest is empty, too long or has control characters, even after the
                model was asked to correct it.
            WinkError: As `evaluate`.
        """
        if deadline is not None:
            deadline.check("Optimization")
        with nullcontext() if deadline is None else deadline.enforce():
            optimization = Optimization(
                prompt,
                store_scope,
                session=session,
                overrides_store=overrides_store,
                overrides_tag=overrides_tag,
            )
        with optimization.prompt as exploration:
            response = self.evaluate(
                exploration,
                session=Session(),
                deadline=deadline,
                budget=budget,
                budget_tracker=budget_tracker,
                on_text=on_text,
                cancellation=cancellation,
                options=options,
            )
        return optimization.store(response)

    def _run(self, run: RunInput[OutputT]) -> PromptResponse[OutputT]:
        """Run a rendered prompt; an adapter that brings its own loop overrides this."""
        return AgentLoop(run).run()

    def close(self) -> None:  # most adapters hold nothing
        """Close connections; an adapter that has any overrides this."""
