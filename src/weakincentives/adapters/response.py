"""What came of a prompt: the answer, and how it was come to."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from weakincentives.adapters.conversation import Message, StopReason
from weakincentives.adapters.executor import ToolOutcome
from weakincentives.runtime import TokenUsage

OutputT = TypeVar("OutputT")

_PARTIAL = "wink_partial_response"


@dataclass(frozen=True)  # no slots: with them a subscript, `PromptResponse[...](...)`, raises
class PromptResponse(Generic[OutputT]):
    """What came of a prompt.

    Args:
        prompt_name: The prompt: its name, or `ns:key`.
        text: What the model said last.
        output: The answer as the dataclass that the prompt declares, or None if it declares none.
        tool_results: What each tool call came to, in the order of the calls.
        usage: The tokens of all steps together.
        steps: How often the model has answered.
        stop_reason: Why it stopped in the end.
        messages: The whole conversation, without a system message: hand it to the next run,
            with a `UserMessage` after it, to go on.
    """

    prompt_name: str
    text: str
    output: OutputT | None
    tool_results: tuple[ToolOutcome, ...]
    usage: TokenUsage
    steps: int
    stop_reason: StopReason
    messages: tuple[Message, ...]


def partial_response(error: BaseException) -> PromptResponse[Any] | None:
    """Return what had been done when this error ended a run, or None if it ended none.

    Any error that leaves a run has it, those of deadlines and budgets and interrupts too.
    """
    return vars(error).get(_PARTIAL)


def keep_partial(error: BaseException, response: PromptResponse[Any]) -> None:
    """Attach what had been done to the error that ends a run."""
    vars(error)[_PARTIAL] = response
