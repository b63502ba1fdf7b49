"""The loop: ask, run the tools that were called, and ask again until there is an answer.

Everything that a run may run into is bounded: its steps, its time, its cost, its
repairs. However it ends, every tool call has been committed or undone as a whole,
`PromptExecuted` is told, and an error carries what had been done until then.
"""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from weakincentives.adapters.errors import ModelRefusedError, OutputError, StepLimitError
from weakincentives.adapters.events import emit_executed, emit_rendered
from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.loop.output import expected_output, repair_request
from weakincentives.adapters.loop.request import Model, ModelRequester, with_call_ids
from weakincentives.adapters.loop.timeout import OnText
from weakincentives.adapters.loop.tool_calls import ToolCallRunner
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    PromptResponse,
    StopReason,
    SystemMessage,
    ToolDefinition,
    ToolMessage,
    ToolOutcome,
    UserMessage,
    keep_partial,
)
from weakincentives.adapters.options import RunOptions
from weakincentives.prompt import Prompt, RenderedPrompt, ToolContext
from weakincentives.runtime import TokenUsage, prompt_span, record_response
from weakincentives.runtime.session import Session
from weakincentives.serde import SerdeError

OutputT = TypeVar("OutputT")
_NOT_ANSWERED = "No result: the work was stopped before the call was answered"
_SHOWN = 200


class Run(Generic[OutputT]):
    """One prompt on its way to an answer."""

    def __init__(
        self,
        model: Model,
        prompt: Prompt[OutputT],
        rendered: RenderedPrompt[OutputT],
        *,
        session: Session,
        bounds: RunLimits,
        options: RunOptions,
        messages: Sequence[Message] = (),
        on_text: OnText | None = None,
    ) -> None:
        """Work on a rendered prompt; `messages` follow it."""
        self._model = model
        self._rendered = rendered
        self._session = session
        self._bounds = bounds
        self._options = options
        self._name = rendered.name or f"{rendered.ns}:{rendered.key}"
        self._expected = expected_output(rendered)
        self._messages = self._opening(messages)
        self._tools = tuple(
            ToolDefinition(tool.name, tool.description, tool.schema) for tool in rendered.tools
        )
        self._outcomes: list[ToolOutcome] = []
        self._usage = TokenUsage()
        self._steps = 0
        self._repairs = 0
        self._last = Completion(stop_reason="other")
        self._questions = ModelRequester(
            model, self._name, session=session, bounds=bounds, options=options, on_text=on_text
        )
        context = ToolContext(
            prompt,
            rendered,
            model,
            session,
            deadline=bounds.deadline,
            budget_tracker=bounds.tracker,
            filesystem=prompt.filesystem(),
        )
        self._calls = ToolCallRunner(
            rendered.tools, context=context, bounds=bounds, options=options
        )

    def run(self) -> PromptResponse[OutputT]:
        """Return the answer.

        Raises:
            AdapterError: There is none; `partial_response` tells what there is.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: More was used than allowed.
        """
        started = self._options.clock.monotonic()
        error: BaseException | None = None
        session_id = self._session.session_id
        with prompt_span(self._name, session_id=session_id, text=self._rendered.text) as span:
            emit_rendered(self._session, self._rendered, adapter=self._model.name)
            try:
                return self._answer()
            except BaseException as raised:
                error = raised
                keep_partial(raised, self._response(None))
                raise
            finally:
                record_response(span, usage=self._usage, model=self._last.model)
                emit_executed(
                    self._session,
                    self._rendered,
                    adapter=self._model.name,
                    model=self._last.model or self._model.model,
                    text=self._last.text,
                    usage=self._usage,
                    tool_calls=len(self._outcomes),
                    seconds=self._options.clock.monotonic() - started,
                    error=error,
                )

    def _answer(self) -> PromptResponse[OutputT]:
        for _ in range(self._options.max_steps):
            completion = self._asked()
            if completion.tool_calls:
                self._run_tools(completion)
            elif completion.stop_reason != "paused":
                answer = self._accepted(completion)
                if answer is not None:
                    return answer
        raise StepLimitError(
            f"The model came to no answer in {self._options.max_steps} steps and"
            f" {len(self._outcomes)} tool calls: raise max_steps, or make the task smaller"
        )

    def _asked(self) -> Completion:
        """Ask the model with all that has been said so far, and take note of its answer."""
        request = CompletionRequest(
            tuple(self._messages),
            self._tools,
            None if self._expected is None else self._expected.format,
            self._bounds.tokens_left(self._options.max_tokens),
            self._options.temperature,
        )
        earlier = [each.call_id for each in self._messages if isinstance(each, ToolMessage)]
        completion = with_call_ids(self._questions.ask(request), len(self._outcomes) + 1, earlier)
        self._last = completion
        self._steps += 1
        self._usage += completion.usage
        self._messages.append(
            AssistantMessage(completion.text, completion.tool_calls, completion.extras)
        )
        try:
            if self._bounds.tracker is not None:
                self._bounds.tracker.record(completion.usage)
            self._bounds.check("Run")
            if completion.stop_reason == "refused":
                raise ModelRefusedError(f"The model refused to answer: {_shown(completion.text)}")
        except BaseException:
            self._answer_calls(completion, 0)
            raise
        return completion

    def _run_tools(self, completion: Completion) -> None:
        answered = 0
        try:
            for outcome in self._calls.run(completion.tool_calls):
                self._outcomes.append(outcome)
                call = outcome.call
                self._messages.append(
                    ToolMessage(
                        call.call_id,
                        call.name,
                        outcome.text,
                        outcome.result.success,
                        outcome.result.media,
                    )
                )
                answered += 1
        finally:
            self._answer_calls(completion, answered)

    def _answer_calls(self, completion: Completion, answered: int) -> None:
        """Answer calls that will not run: a conversation without that could not be gone on with."""
        self._messages += [
            ToolMessage(call.call_id, call.name, _NOT_ANSWERED, success=False)
            for call in completion.tool_calls[answered:]
        ]

    def _accepted(self, completion: Completion) -> PromptResponse[OutputT] | None:
        """Return the response, or None if the answer was sent back."""
        if self._expected is None:
            return self._response(None)
        try:
            return self._response(self._expected.parse(completion.text))
        except SerdeError as error:
            if self._repairs >= self._options.output_retries:
                raise OutputError(
                    f"The answer is not the {self._expected.format.name} that the prompt asks for:"
                    f" {error}: {_shown(completion.text)}"
                ) from error
            self._repairs += 1
            cut_off = completion.stop_reason == "length"
            self._messages.append(UserMessage(repair_request(error, cut_off=cut_off)))
            return None

    def _opening(self, messages: Sequence[Message]) -> list[Message]:
        text = self._rendered.text
        if self._expected is not None and not self._model.native_output:
            text = f"{text}\n\n{self._expected.instructions()}"
        if not messages:
            return [UserMessage(text)]
        if messages[0] == UserMessage(text):
            return list(messages)  # a conversation that began with this prompt goes on
        return [SystemMessage(text), *messages]

    def _response(self, output: Any) -> PromptResponse[OutputT]:
        stop_reason: StopReason = self._last.stop_reason
        return PromptResponse(
            self._name,
            self._last.text,
            output,
            tuple(self._outcomes),
            self._usage,
            self._steps,
            stop_reason,
            tuple(each for each in self._messages if not isinstance(each, SystemMessage)),
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
