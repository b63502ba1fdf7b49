"""A run in which Claude Code drives the loop: its messages, tool calls and transcript.

Limits, events and the partial response are those of every run (`loop/run.py`). However it ends,
the process has stopped, and every call was committed or rolled back as a whole.
"""

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from claude_agent_sdk import AssistantMessage as SdkAssistantMessage
from claude_agent_sdk import ResultMessage, StreamEvent, TextBlock, ToolResultBlock, ToolUseBlock
from claude_agent_sdk import SystemMessage as SdkSystemMessage
from claude_agent_sdk import UserMessage as SdkUserMessage

from weakincentives.adapters.claude_code.native_tools import NativeToolCalls
from weakincentives.adapters.claude_code.process import (
    PREFIX,
    AgentProcess,
    AgentRequest,
    AgentTask,
    ProcessExit,
    error_from_exit,
    error_from_result,
)
from weakincentives.adapters.errors import OutputError
from weakincentives.adapters.events import RequestRetried
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.errors import Endpoint, timeout_error
from weakincentives.adapters.loop.request import RunInput
from weakincentives.adapters.loop.run import PromptRun, RunState, output_mismatch_message
from weakincentives.adapters.messages import AssistantMessage, Completion, StopReason, ToolCall
from weakincentives.runtime import TokenUsage, transaction
from weakincentives.serde import SerdeError

OutputT = TypeVar("OutputT")
SESSION = "claude_session"
"""The key of a message's extras with the Claude Code session that it comes from."""
OUTPUT_TOOL = "StructuredOutput"
"""The tool through which the model gives structured output."""


@dataclass(slots=True)
class _ArrivingAnswer:
    """One answer of the model, built as it arrives."""

    message_id: str
    model: str = ""
    streamed: bool = False
    text: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    usage: dict[str, int] = field(default_factory=dict[str, int])
    stop: str = ""
    has_content: bool = False

    def add(self, block: object) -> str:
        """Add a content block, and return its text."""
        self.has_content = True
        if isinstance(block, ToolUseBlock):
            if block.name == OUTPUT_TOOL:
                self.text = [json.dumps(block.input)]
            else:
                name = block.name.removeprefix(PREFIX)
                self.calls.append(ToolCall(name, block.input, block.id))
            return ""
        text = block.text if isinstance(block, TextBlock) else ""
        self.text.append(text)
        return text

    def add_usage(self, usage: object) -> None:
        counts = lenient.as_mapping(usage).items()
        self.usage |= {
            name: lenient.as_count(each) for name, each in counts if isinstance(each, int)
        }

    def completion(self) -> Completion:
        other: StopReason = "tool_calls" if self.calls else "end"
        return Completion(
            "".join(self.text),
            tuple(self.calls),
            lenient.message_usage(self.usage),
            lenient.MESSAGE_STOP_REASONS.get(self.stop, "other")
            if self.stop and not self.calls
            else other,
            model=self.model or None,
            response_id=self.message_id or None,
        )


class Transcript(RunState):
    """The state of a run, with the answer that is arriving."""

    _step: _ArrivingAnswer | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the model waits for tool results."""
        return any(each.call_id not in self.outcomes for each in self.open_calls)

    @property
    def is_arriving(self) -> bool:
        """Whether a streamed answer is still incomplete."""
        return self._step is not None and self._step.streamed

    def find_call(self, call_id: str) -> ToolCall | None:
        """Return a call of the last answer, or of the arriving one."""
        arriving = () if self._step is None else self._step.calls
        return next(
            (each for each in (*self.open_calls, *arriving) if each.call_id == call_id), None
        )

    def add_event(self, event: StreamEvent) -> str:
        """Add a streaming event, and return its text."""
        data = event.event
        kind = data.get("type")
        if kind == "message_start":
            message = lenient.as_mapping(data.get("message"))
            self._begin(lenient.as_text(message.get("id")), lenient.as_text(message.get("model")))
            assert self._step is not None
            self._step.streamed = True
            self._step.add_usage(message.get("usage"))
        elif kind == "message_delta" and self._step is not None:
            self._step.stop = lenient.as_text(
                lenient.as_mapping(data.get("delta")).get("stop_reason")
            )
            self._step.add_usage(data.get("usage"))
        elif kind == "content_block_delta":
            return lenient.as_text(lenient.as_mapping(data.get("delta")).get("text"))
        return ""

    def add_message(self, message: SdkAssistantMessage) -> str:
        """Add a part of an answer, and return its text if it was not streamed."""
        step = self._step
        if step is None or step.message_id != (message.message_id or ""):
            step = self._begin(message.message_id or "", message.model)
            step.stop = message.stop_reason or ""
            step.add_usage(message.usage)
        text = "".join([step.add(block) for block in message.content])
        return "" if step.streamed else text

    def finish(self) -> Completion | None:
        """Add the answer that has arrived to the conversation, and return it if there is one."""
        step, self._step = self._step, None
        if step is None or not step.has_content:
            return None  # the connection broke, and Claude Code retries
        self.close_calls()
        completion = step.completion()
        self.add_completion(completion)
        return completion

    def set_extras(self, **extras: object) -> None:
        """Set the extras of the model's last message."""
        for index in reversed(range(len(self.messages))):
            message = self.messages[index]
            if isinstance(message, AssistantMessage):
                self.messages[index] = replace(message, extras=extras)
                return

    def _begin(self, message_id: str, model: str) -> _ArrivingAnswer:
        self._step = _ArrivingAnswer(message_id, model)
        return self._step


class ClaudeCodeRun(PromptRun[OutputT]):
    """One run of a prompt by Claude Code."""

    def __init__(self, run: RunInput[OutputT], task: AgentTask, endpoint: Endpoint) -> None:
        """Prepare to run a task."""
        self._transcript = Transcript(task.messages)
        super().__init__(run, self._transcript)
        self._task = task
        self._endpoint = endpoint
        self._on_text = run.on_text
        self._native_calls = NativeToolCalls(
            task.workspace, context=self._context, limits=run.limits, options=run.options
        )
        self._requested_at: float | None = None
        self._streamed_characters = 0

    def _answer(self) -> Any:
        if not self._task.undo_on_failure:
            return self._run_process()
        bypasses = self._task.workspace is not None
        files = self._input.prompt.filesystem()
        with transaction(self._session, files, bypasses_filesystem=bypasses):
            return self._run_process()

    def _run_process(self) -> Any:
        self._limits.check("Run")
        process = AgentProcess(self._task, self._tool_definitions)
        unsubscribe = self._limits.cancellation.subscribe(process.wake)
        try:
            with process:
                result = self._handle_events(process)
        finally:
            unsubscribe()
            self._native_calls.close()
        return self._parse_result(result)

    def _handle_events(self, process: AgentProcess) -> ResultMessage:
        """Handle what Claude Code sends until it ends, and return its result."""
        result: ResultMessage | None = None
        while True:
            left = self._limits.remaining_seconds()
            wait = math.inf if left is None else max(0.0, left)
            event = process.next_event(min(wait, self._request_time()))
            self._limits.check("Run")
            if event is None:
                if self._request_time() <= 0:
                    raise timeout_error(self._endpoint, self._options.request_timeout)
            elif isinstance(event, AgentRequest):
                event.reply(self._handle_request(event))
            elif isinstance(event, ProcessExit):
                if result is None:
                    raise error_from_exit(event.error, self._endpoint, process.stderr)
                return result
            elif isinstance(event, ResultMessage):
                self._finish_step()
                self._count_rest(event)
                result = event
            else:
                self._handle_message(event)

    def _handle_message(self, message: object) -> None:
        match message:
            case StreamEvent(parent_tool_use_id=None):
                self._forward_text(self._transcript.add_event(message))
                if message.event.get("type") == "message_stop":
                    self._finish_step()
            case SdkAssistantMessage(parent_tool_use_id=None, error=None):
                self._forward_text(self._transcript.add_message(message))
            case SdkUserMessage():
                self._add_results(message)
            case SdkSystemMessage():
                self._handle_notice(message)
            case _:
                pass

    def _add_results(self, message: SdkUserMessage) -> None:
        if not self._transcript.is_arriving:  # tools may run while an answer is still arriving
            self._finish_step()
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                self._finish_call(block)

    def _forward_text(self, text: str) -> None:
        if text and self._on_text is not None:
            self._streamed_characters += len(text)
            self._on_text(text)

    def _handle_notice(self, notice: SdkSystemMessage) -> None:
        data = notice.data
        if notice.subtype == "status" and data.get("status") == "requesting":
            self._requested_at = self._options.clock.monotonic()
        elif notice.subtype == "api_retry":
            self._requested_at = None  # it waits before the retry
            status = data.get("error_status")
            number = "" if status is None else f" (HTTP {status})"
            self._native_calls.emit(
                RequestRetried(
                    **self._input.event_fields,
                    step=self._transcript.steps + 1,
                    retry=lenient.as_count(data.get("attempt")),
                    error=f"{data.get('error')}{number}",
                    delay=lenient.as_count(data.get("retry_delay_ms")) / 1000,
                    streamed_characters=self._streamed_characters,
                )
            )
            self._streamed_characters = 0

    def _handle_request(self, request: AgentRequest) -> object:
        call = ToolCall(request.name, request.arguments, request.call_id)
        if request.kind == "before":
            return self._native_calls.before_call(call)
        if request.kind == "after":
            return self._native_calls.after_call(request.call_id)
        [outcome] = self._tool_calls.run([call])
        self._transcript.add_outcome(outcome)
        return outcome

    def _finish_call(self, block: ToolResultBlock) -> None:
        """Add the result of a native call, or of one that never reached us."""
        call = self._transcript.find_call(block.tool_use_id)
        if call is None or call.call_id in self._transcript.outcomes:
            return
        outcome = self._native_calls.finish_call(
            call, _result_text(block), success=not block.is_error
        )
        self._transcript.outcomes[call.call_id] = outcome

    def _finish_step(self) -> None:
        completion = self._transcript.finish()
        if completion is None:
            return
        seconds = 0.0
        if self._requested_at is not None:
            seconds = self._options.clock.monotonic() - self._requested_at
        self._requested_at, self._streamed_characters = None, 0
        steps = self._transcript.steps
        self._native_calls.emit(self._input.response_event(completion, step=steps, seconds=seconds))
        self._record_usage(completion.usage)
        self._check_refusal(completion)

    def _count_rest(self, result: ResultMessage) -> None:
        """Count the tokens of the run that no answer has reported."""
        total, known = lenient.message_usage(result.usage or {}), self._transcript.usage
        rest = TokenUsage(
            max(0, total.input_tokens - known.input_tokens),
            max(0, total.output_tokens - known.output_tokens),
            max(0, total.cached_tokens - known.cached_tokens),
            max(0, total.cache_write_tokens - known.cache_write_tokens),
        )
        self._transcript.usage += rest
        self._record_usage(rest)

    def _parse_result(self, result: ResultMessage) -> Any:
        transcript = self._transcript
        transcript.close_calls()
        transcript.set_extras(**{SESSION: result.session_id})
        if result.is_error:
            raise error_from_result(
                result, self._endpoint, steps=transcript.steps, calls=len(transcript.outcomes)
            )
        expected = self._task.expected
        if expected is None:
            return None
        try:
            return expected.parse(result.result or transcript.last.text)
        except SerdeError as error:
            raise OutputError(output_mismatch_message(expected, error)) from error

    def _request_time(self) -> float:
        if self._requested_at is None or self._transcript.is_waiting:
            return math.inf
        spent = self._options.clock.monotonic() - self._requested_at
        return max(0.0, self._options.request_timeout - spent)


def _result_text(block: ToolResultBlock) -> str:
    if isinstance(block.content, str):
        return block.content
    return "\n".join(lenient.as_text(part.get("text")) for part in block.content or ())
