"""A prompt that Claude Code works on: it has a loop of its own, and this is what hears it out.

Bounded as every run is: its steps, its time, its cost. However it ends, nothing of Claude
Code runs any more, every call was kept or undone as a whole, and the session was told.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from claude_agent_sdk import AssistantMessage as Said
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, StreamEvent, ToolResultBlock
from claude_agent_sdk import SystemMessage as Notice
from claude_agent_sdk import UserMessage as Told

from weakincentives.adapters.claude_code.errors import error_from_exit, error_from_result
from weakincentives.adapters.claude_code.native_tools import NativeToolCalls
from weakincentives.adapters.claude_code.process import AgentProcess, Asked, Ended
from weakincentives.adapters.claude_code.transcript import Transcript, token_usage
from weakincentives.adapters.errors import ModelRefusedError, OutputError
from weakincentives.adapters.events import (
    ModelResponded,
    RequestRetried,
    emit_executed,
    emit_rendered,
)
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.errors import Endpoint, timeout_error
from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.loop.output import ExpectedOutput
from weakincentives.adapters.loop.timeout import OnText
from weakincentives.adapters.loop.tool_calls import ToolCallRunner
from weakincentives.adapters.messages import (
    Completion,
    Message,
    PromptResponse,
    ToolCall,
    ToolDefinition,
    keep_partial,
)
from weakincentives.adapters.options import RunOptions
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Prompt, RenderedPrompt, ToolContext
from weakincentives.runtime import TokenUsage, prompt_span, record_response, transaction
from weakincentives.runtime.session import Session
from weakincentives.serde import SerdeError

OutputT = TypeVar("OutputT")
SESSION = "claude_session"
"""Where the extras of a message have the session of Claude Code that it was said in."""


@dataclass(frozen=True, slots=True)
class Task(Generic[OutputT]):
    """What is to be worked on, and with what.

    Args:
        prompt: The prompt.
        rendered: What it has become.
        expected: What the answer must be.
        said: What is sent.
        messages: The conversation so far, with what is asked now.
        workspace: Where Claude Code's own tools work.
        native_tools: Their names.
        options: How Claude Code is started.
        undo_on_failure: Whether a run that fails leaves files and session as they were.
    """

    prompt: Prompt[OutputT]
    rendered: RenderedPrompt[OutputT]
    expected: ExpectedOutput | None
    said: str
    messages: tuple[Message, ...]
    workspace: Filesystem | None
    native_tools: Sequence[str]
    options: ClaudeAgentOptions
    undo_on_failure: bool


class AgentRun(Generic[OutputT]):
    """One prompt on its way to an answer."""

    def __init__(
        self,
        task: Task[OutputT],
        endpoint: Endpoint,
        *,
        adapter: Any,
        session: Session,
        bounds: RunLimits,
        options: RunOptions,
        on_text: OnText | None = None,
    ) -> None:
        """Work on a task."""
        self._task = task
        self._endpoint = endpoint
        self._session = session
        self._bounds = bounds
        self._options = options
        self._on_text = on_text
        rendered = task.rendered
        self._name = rendered.name or f"{rendered.ns}:{rendered.key}"
        self._steps = Transcript()
        self._steps.messages += task.messages
        context = ToolContext(
            task.prompt,
            rendered,
            adapter,
            session,
            deadline=bounds.deadline,
            budget_tracker=bounds.tracker,
            filesystem=task.prompt.filesystem(),
        )
        self._calls = ToolCallRunner(
            rendered.tools, context=context, bounds=bounds, options=options
        )
        self._native = NativeToolCalls(
            task.workspace, context=context, bounds=bounds, options=options
        )
        self._asked_at: float | None = None
        self._heard = 0

    def run(self) -> PromptResponse[OutputT]:
        """Return the answer.

        Raises:
            AdapterError: There is none; `partial_response` tells what there is.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: More was used than allowed.
        """
        started = self._options.clock.monotonic()
        error: BaseException | None = None
        rendered, session = self._task.rendered, self._session
        with prompt_span(self._name, session_id=session.session_id, text=rendered.text) as span:
            emit_rendered(session, rendered, adapter=self._endpoint.provider)
            try:
                with self._undone_on_failure():
                    return self._answer()
            except BaseException as raised:
                error = raised
                self._steps.settle()
                keep_partial(raised, self._response(None))
                raise
            finally:
                steps = self._steps
                record_response(span, usage=steps.usage, model=steps.last.model)
                emit_executed(
                    session,
                    rendered,
                    adapter=self._endpoint.provider,
                    model=steps.last.model or self._endpoint.model,
                    text=steps.last.text,
                    usage=steps.usage,
                    tool_calls=len(steps.outcomes),
                    seconds=self._options.clock.monotonic() - started,
                    error=error,
                )

    def _undone_on_failure(self) -> AbstractContextManager[object]:
        task = self._task
        if not task.undo_on_failure:
            return nullcontext()
        bypasses_filesystem = task.workspace is not None
        return transaction(
            self._session, task.prompt.filesystem(), bypasses_filesystem=bypasses_filesystem
        )

    def _answer(self) -> PromptResponse[OutputT]:
        self._bounds.check("Run")
        task = self._task
        tools = [ToolDefinition(t.name, t.description, t.schema) for t in task.rendered.tools]
        process = AgentProcess(task.said, task.options, tools=tools, watched=task.native_tools)
        stop = self._bounds.cancellation.subscribe(process.wake)
        try:
            with process:
                result = self._heard_out(process)
        finally:
            stop()
            self._native.close()
        return self._accepted(result)

    def _heard_out(self, process: AgentProcess) -> ResultMessage:
        """Hear what Claude Code says until it is done."""
        result: ResultMessage | None = None
        while True:
            heard = process.heard(self._seconds_left())
            self._bounds.check("Run")
            if heard is None:
                self._check_time()
            elif isinstance(heard, Asked):
                heard.reply(self._replied(heard))
            elif isinstance(heard, Ended):
                if result is None:
                    raise error_from_exit(heard.error, self._endpoint, process.complaints)
                return result
            elif isinstance(heard, ResultMessage):
                self._finish_step()
                self._count_rest(heard)
                result = heard
            else:
                self._hear(heard)

    def _hear(self, message: object) -> None:
        match message:
            case StreamEvent(parent_tool_use_id=None):
                self._say(self._steps.hear_event(message))
                if self._steps.is_over(message):
                    self._finish_step()
            case Said(parent_tool_use_id=None, error=None):
                self._say(self._steps.hear(message))
            case Told():
                self._take_results(message)
            case Notice():
                self._notice(message)
            case _:
                pass

    def _take_results(self, told: Told) -> None:
        if not self._steps.is_arriving:  # tools run while an answer is still arriving
            self._finish_step()
        for block in told.content:
            if isinstance(block, ToolResultBlock):
                self._end_call(block)

    def _say(self, text: str) -> None:
        if text and self._on_text is not None:
            self._heard += len(text)
            self._on_text(text)

    def _notice(self, notice: Notice) -> None:
        if notice.subtype == "status" and notice.data.get("status") == "requesting":
            self._asked_at = self._options.clock.monotonic()
        elif notice.subtype == "api_retry":
            self._asked_at = None  # it waits
            said = notice.data
            status = said.get("error_status")
            number = "" if status is None else f" (HTTP {status})"
            self._native.tell(
                RequestRetried(
                    prompt_name=self._name,
                    adapter=self._endpoint.provider,
                    model=self._endpoint.model,
                    step=self._steps.count + 1,
                    retry=lenient.as_count(said.get("attempt")),
                    error=f"{said.get('error')}{number}",
                    delay=lenient.as_count(said.get("retry_delay_ms")) / 1000,
                    streamed_characters=self._heard,
                    session_id=self._session.session_id,
                )
            )
            self._heard = 0

    def _replied(self, asked: Asked) -> object:
        call = ToolCall(asked.name, asked.arguments, asked.call_id)
        if asked.what == "before":
            return self._native.before(call)
        if asked.what == "after":
            return self._native.after(asked.call_id)
        [outcome] = self._calls.run([call])
        self._steps.outcomes[call.call_id] = outcome
        return outcome

    def _end_call(self, block: ToolResultBlock) -> None:
        """Tell of a call that was not ours, or did not come to us."""
        call = self._steps.call(block.tool_use_id)
        if call is None or call.call_id in self._steps.outcomes:
            return
        outcome = self._native.end(call, _text(block), success=not block.is_error)
        self._steps.outcomes[call.call_id] = outcome

    def _finish_step(self) -> None:
        completion = self._steps.finish()
        if completion is None:
            return
        took = 0.0
        if self._asked_at is not None:
            took = (self._options.clock.monotonic() - self._asked_at) * 1000
        self._asked_at, self._heard = None, 0
        self._native.tell(self._responded(completion, took))
        self._spend(completion.usage)
        if completion.stop_reason == "refused":
            raise ModelRefusedError(f"The model refused to answer: {completion.text!r}")

    def _responded(self, completion: Completion, duration_ms: float) -> ModelResponded:
        return ModelResponded(
            prompt_name=self._name,
            adapter=self._endpoint.provider,
            model=completion.model or self._endpoint.model,
            step=self._steps.count,
            text=completion.text,
            tool_calls=tuple(call.name for call in completion.tool_calls),
            stop_reason=completion.stop_reason,
            usage=completion.usage,
            duration_ms=duration_ms,
            session_id=self._session.session_id,
        )

    def _spend(self, usage: TokenUsage) -> None:
        if self._bounds.tracker is not None:
            self._bounds.tracker.record(usage)
        self._bounds.check("Run")

    def _count_rest(self, result: ResultMessage) -> None:
        """Count what the whole has cost beside the answers: what nobody was told of."""
        total, known = token_usage(result.usage or {}), self._steps.usage
        rest = TokenUsage(
            max(0, total.input_tokens - known.input_tokens),
            max(0, total.output_tokens - known.output_tokens),
            max(0, total.cached_tokens - known.cached_tokens),
        )
        self._steps.usage += rest
        self._spend(rest)

    def _accepted(self, result: ResultMessage) -> PromptResponse[OutputT]:
        self._steps.settle()
        self._steps.mark(**{SESSION: result.session_id})
        if result.is_error:
            raise error_from_result(
                result, self._endpoint, steps=self._steps.count, calls=len(self._steps.outcomes)
            )
        expected = self._task.expected
        if expected is None:
            return self._response(None)
        try:
            return self._response(expected.parse(result.result or self._steps.last.text))
        except SerdeError as error:
            raise OutputError(
                f"The answer is not the {expected.format.name} that the prompt asks for: {error}"
            ) from error

    def _seconds_left(self) -> float:
        left = self._bounds.seconds_left()
        return min(math.inf if left is None else max(0.0, left), self._request_left())

    def _request_left(self) -> float:
        if self._asked_at is None or self._steps.is_waiting:
            return math.inf
        spent = self._options.clock.monotonic() - self._asked_at
        return max(0.0, self._options.request_timeout - spent)

    def _check_time(self) -> None:
        if self._request_left() <= 0:
            raise timeout_error(self._endpoint, self._options.request_timeout)

    def _response(self, output: Any) -> PromptResponse[OutputT]:
        steps = self._steps
        return PromptResponse(
            self._name,
            steps.last.text,
            output,
            tuple(steps.outcomes.values()),
            steps.usage,
            steps.count,
            steps.last.stop_reason,
            tuple(steps.messages),
        )


def _text(block: ToolResultBlock) -> str:
    if isinstance(block.content, str):
        return block.content
    return "\n".join(lenient.as_text(part.get("text")) for part in block.content or ())
