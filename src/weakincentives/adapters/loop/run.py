"""The agent loop: send the conversation, run the tool calls, repeat until the model answers.

`PromptRun` is the frame of every run, whichever loop drives it: tracing, events, limits, and
the partial response on an error. `AgentLoop` is our own loop in it. A run has limits on steps,
time, cost and output retries. However it ends, every tool call was committed or rolled back as
a whole, and `PromptExecuted` is emitted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from weakincentives.adapters.errors import (
    ContextTooLongError,
    ModelRefusedError,
    OutputError,
    StepLimitError,
)
from weakincentives.adapters.loop.compaction import Context
from weakincentives.adapters.loop.executor import ToolCallRunner
from weakincentives.adapters.loop.output import ExpectedOutput, expected_output, repair_request
from weakincentives.adapters.loop.request import ModelRequester, RunInput, with_call_ids
from weakincentives.adapters.messages import (
    NO_RESULT,
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    PromptResponse,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolOutcome,
    UserMessage,
    attach_partial,
)
from weakincentives.prompt import ToolContext
from weakincentives.runtime import (
    ConversationStarted,
    MessageAdded,
    PromptExecuted,
    PromptRendered,
    TokenUsage,
    prompt_span,
    record_response,
)
from weakincentives.serde import SerdeError

OutputT = TypeVar("OutputT")
_MAX_EXCERPT = 200
_MAX_CONTINUATIONS = 3
_CONTINUE = (
    "Your answer was cut off at the output limit. Continue it exactly where it ended, without"
    " repeating anything; call tools in smaller steps."
)
_SPEAK_UP = (
    "Your answer was empty. Continue if the task is not done; if it is, say what you have done."
)


class RunState:
    """What a run has done so far: messages, tool results and usage."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        """Start a conversation with these messages."""
        self.messages: list[Message] = list(messages)
        self.outcomes: dict[str, ToolOutcome] = {}
        """The results of tool calls, by call id."""
        self.usage: TokenUsage = TokenUsage()
        self.steps: int = 0
        self.last: Completion = Completion(stop_reason="other")
        self.open_calls: tuple[ToolCall, ...] = ()
        """The calls of the last answer, until their results are among the messages."""
        self.on_message: Callable[[Message], object] = lambda _: None
        """Called with every message that is added, except results that the executor reported."""
        self._reported: set[str] = set()

    def add(self, message: Message) -> None:
        """Append a message."""
        self.messages.append(message)
        self.on_message(message)

    def add_completion(self, completion: Completion) -> None:
        """Append an answer of the model."""
        self.last = completion
        self.steps += 1
        self.usage += completion.usage
        self.add(AssistantMessage(completion.text, completion.tool_calls, completion.extras))
        self.open_calls = completion.tool_calls

    def add_outcome(self, outcome: ToolOutcome) -> None:
        """Keep the result of a call that the executor ran."""
        self.outcomes[outcome.call.call_id] = outcome
        self._reported.add(outcome.call.call_id)

    def close_calls(self) -> None:
        """Append a result message for every call of the last answer, in order.

        Calls without a result get one that says so: providers reject a conversation with
        unanswered calls.
        """
        for call in self.open_calls:
            found = self.outcomes.get(call.call_id)
            text = NO_RESULT if found is None else found.text
            success = found is not None and found.result.success
            media = () if found is None else found.result.media
            message = ToolMessage(call.call_id, call.name, text, success, media)
            self.messages.append(message)
            if call.call_id not in self._reported:
                self.on_message(message)
        self.open_calls = ()


class PromptRun(ABC, Generic[OutputT]):
    """One run of a prompt: its span, its events, its tool calls, and its partial response."""

    def __init__(self, run: RunInput[OutputT], state: RunState) -> None:
        """Prepare to run a rendered prompt; `state` collects what is done."""
        rendered, session, limits, options = run.rendered, run.session, run.limits, run.options
        self._input = run
        self._session = session
        self._limits = limits
        self._options = options
        self._state = state
        state.on_message = lambda message: session.dispatch(
            MessageAdded(message, session.session_id)
        )
        self._context = ToolContext(
            run.prompt,
            rendered,
            run.model,
            session,
            deadline=limits.deadline,
            budget_tracker=limits.tracker,
            filesystem=run.prompt.filesystem(),
        )
        self._tool_definitions = tuple(
            ToolDefinition(tool.name, tool.description, tool.schema) for tool in rendered.tools
        )
        self._tool_calls = ToolCallRunner(
            rendered.tools, context=self._context, limits=limits, options=options
        )

    def run(self) -> PromptResponse[OutputT]:
        """Return the response.

        Raises:
            AdapterError: The run failed; `partial_response` returns what was done.
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
        """
        started = self._options.clock.monotonic()
        error: BaseException | None = None
        session, state, text = self._session, self._state, self._input.rendered.text
        with prompt_span(self._input.name, session_id=session.session_id, text=text) as span:
            session.dispatch(ConversationStarted(tuple(state.messages), session.session_id))
            tools = tuple(each.name for each in self._tool_definitions)
            session.dispatch(PromptRendered(**self._event_fields, text=text, tools=tools))
            try:
                return self._response(self._answer())
            except BaseException as raised:
                error = raised
                state.close_calls()
                attach_partial(raised, self._response(None))
                raise
            finally:
                record_response(span, usage=state.usage, model=state.last.model)
                session.dispatch(
                    PromptExecuted(
                        **self._event_fields,
                        model=state.last.model or self._input.model.model,
                        success=error is None,
                        text=state.last.text,
                        error=None if error is None else f"{type(error).__name__}: {error}",
                        usage=state.usage,
                        tool_calls=len(state.outcomes),
                        duration_ms=(self._options.clock.monotonic() - started) * 1000,
                    )
                )

    @property
    def _event_fields(self) -> dict[str, Any]:
        rendered = self._input.rendered
        return {
            "prompt_ns": rendered.ns,
            "prompt_key": rendered.key,
            "prompt_name": rendered.name,
            "adapter": self._input.model.name,
            "session_id": self._session.session_id,
        }

    @abstractmethod
    def _answer(self) -> Any:
        """Run until the model answers; return the structured output, or None without one."""

    def _record_usage(self, usage: TokenUsage) -> None:
        if self._limits.tracker is not None:
            self._limits.tracker.record(usage)
        self._limits.check("Run")

    def _check_refusal(self, completion: Completion) -> None:
        if completion.stop_reason == "refused":
            raise ModelRefusedError(f"The model refused to answer: {_excerpt(completion.text)}")

    def _response(self, output: Any) -> PromptResponse[OutputT]:
        state = self._state
        return PromptResponse(
            self._input.name,
            state.last.text,
            output,
            tuple(state.outcomes.values()),
            state.usage,
            state.steps,
            state.last.stop_reason,
            tuple(each for each in state.messages if not isinstance(each, SystemMessage)),
        )


class AgentLoop(PromptRun[OutputT]):
    """Our own loop: one request per step, then the tool calls of the answer."""

    def __init__(self, run: RunInput[OutputT]) -> None:
        """Prepare to run a rendered prompt."""
        self._expected = expected_output(run.rendered)
        text = run.rendered.text
        if self._expected is not None and not run.model.native_output:
            text += f"\n\n{self._expected.instructions()}"
        super().__init__(run, RunState(_first_messages(text, run.messages)))
        self._output_retries = 0
        self._parts: list[str] = []
        """The parts of the answer so far, which was cut off or empty after each of them."""
        self._requester = ModelRequester(run, run.on_text)
        self._sent = Context(run, self._tool_definitions, on_usage=self._record_extra_usage)

    def _answer(self) -> Any:
        for _ in range(self._options.max_steps):
            completion = self._request()
            if completion.tool_calls:
                self._run_tools(completion)
                self._parts.clear()
                continue
            if completion.stop_reason == "paused":
                continue
            if self._expected is None:
                if self._request_rest(completion):
                    continue
                return None
            try:
                return self._expected.parse(completion.text)
            except SerdeError as error:
                self._request_repair(self._expected, completion, error)
        raise StepLimitError(step_limit_message(self._options.max_steps, len(self._state.outcomes)))

    def _request(self) -> Completion:
        """Send the conversation to the model, and append its answer."""
        state, step = self._state, self._requester.step + 1
        sent = self._sent.prepare(state.messages, step)
        try:
            completion = self._requester.send(self._create_request(sent))
        except ContextTooLongError as error:
            sent = self._sent.retry(state.messages, error, step)
            completion = self._requester.send(self._create_request(sent), again=True)
        self._sent.learn(sent, completion.usage)
        used = [each.call_id for each in state.messages if isinstance(each, ToolMessage)]
        completion = with_call_ids(completion, len(state.outcomes) + 1, used)
        state.add_completion(completion)
        self._requester.report(completion)
        self._record_usage(completion.usage)
        self._check_refusal(completion)
        return completion

    def _create_request(self, messages: tuple[Message, ...]) -> CompletionRequest:
        return CompletionRequest(
            messages,
            self._tool_definitions,
            None if self._expected is None else self._expected.format,
            self._limits.cap_tokens(self._options.max_tokens),
            self._options.temperature,
            self._options.effort,
        )

    def _record_extra_usage(self, usage: TokenUsage) -> None:
        """Count the tokens of a request that is not a step."""
        self._state.usage += usage
        self._record_usage(usage)

    def _run_tools(self, completion: Completion) -> None:
        for outcome in self._tool_calls.run(completion.tool_calls):
            self._state.add_outcome(outcome)
        self._state.close_calls()

    def _request_rest(self, completion: Completion) -> bool:
        """Ask for the rest of an answer that was cut off, or is empty; return whether it helps.

        The parts become one answer. A limit that the caller set is kept.
        """
        self._parts.append(completion.text)
        text = "".join(self._parts)
        is_cut = completion.stop_reason == "length" and self._options.max_tokens is None
        is_empty = completion.stop_reason != "length" and not text.strip()
        if len(self._parts) > _MAX_CONTINUATIONS or not (is_cut or is_empty):
            self._state.last = replace(completion, text=text)
            return False
        self._state.add(UserMessage(_CONTINUE if is_cut else _SPEAK_UP))
        return True

    def _request_repair(
        self, expected: ExpectedOutput, completion: Completion, error: SerdeError
    ) -> None:
        """Ask the model to correct its answer.

        Raises:
            OutputError: It has no retries left.
        """
        if self._output_retries >= self._options.output_retries:
            raise OutputError(
                f"{output_mismatch_message(expected, error)}: {_excerpt(completion.text)}"
            ) from error
        self._output_retries += 1
        truncated = completion.stop_reason == "length"
        self._state.add(UserMessage(repair_request(error, truncated=truncated)))


def step_limit_message(steps: int, calls: int) -> str:
    """Return the message of a `StepLimitError`."""
    return (
        f"The model gave no answer in {steps} steps and {calls} tool calls:"
        " raise max_steps, or make the task smaller"
    )


def output_mismatch_message(expected: ExpectedOutput, error: SerdeError) -> str:
    """Return the beginning of the message of an `OutputError`."""
    return f"The answer does not match {expected.format.name}, the prompt's output type: {error}"


def _first_messages(text: str, messages: Sequence[Message]) -> list[Message]:
    if not messages:
        return [UserMessage(text)]
    if messages[0] == UserMessage(text):
        return list(messages)  # this conversation began with the same prompt
    return [SystemMessage(text), *messages]


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}...")
