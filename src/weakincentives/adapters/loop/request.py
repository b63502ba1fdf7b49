"""One model request, with timeout, tracing, events and retries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Generic, Protocol, TypeVar

from weakincentives.adapters.errors import ProviderError, TransientError
from weakincentives.adapters.events import ModelResponded, RequestRetried
from weakincentives.adapters.loop.timeout import OnText, RequestTimeoutError, TimedRequest
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    ToolCall,
    ToolMessage,
)
from weakincentives.adapters.options import RunLimits, RunOptions
from weakincentives.prompt import Prompt, RenderedPrompt
from weakincentives.runtime import NO_TRACING, current_tracing, model_span, record_response
from weakincentives.runtime.session import Session

OutputT = TypeVar("OutputT")


class Model(Protocol):
    """The part of an adapter that a run uses."""

    name: str
    model: str
    native_output: bool

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: OnText | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Send one request."""
        ...


@dataclass(frozen=True, slots=True)
class RunInput(Generic[OutputT]):
    """The input of a run, whichever loop drives it.

    Args:
        model: The model.
        prompt: The prompt.
        rendered: The rendered prompt.
        session: Receives the events.
        limits: What can end the run from outside.
        options: The options.
        messages: What follows the prompt.
        on_text: Called with each piece of the model's text as it arrives.
    """

    model: Model
    prompt: Prompt[OutputT]
    rendered: RenderedPrompt[OutputT]
    session: Session
    limits: RunLimits
    options: RunOptions
    messages: Sequence[Message] = ()
    on_text: OnText | None = None

    @property
    def name(self) -> str:
        """The name of the prompt."""
        return self.rendered.name or f"{self.rendered.ns}:{self.rendered.key}"

    @property
    def event_fields(self) -> dict[str, Any]:
        """The fields that the events of all requests have."""
        return {
            "prompt_name": self.name,
            "adapter": self.model.name,
            "model": self.model.model,
            "session_id": self.session.session_id,
        }

    def response_event(
        self, completion: Completion, *, step: int, seconds: float
    ) -> ModelResponded:
        """Return the event for a completion."""
        fields = self.event_fields
        fields["model"] = completion.model or self.model.model
        return ModelResponded(
            **fields,
            step=step,
            text=completion.text,
            tool_calls=tuple(call.name for call in completion.tool_calls),
            stop_reason=completion.stop_reason,
            usage=completion.usage,
            duration_ms=seconds * 1000,
        )


class ModelRequester:
    """Sends the requests of one run."""

    def __init__(self, run: RunInput[Any], on_text: OnText | None = None) -> None:
        """Send requests within the limits of a run; `on_text` receives the text as it arrives."""
        self._run = run
        self._limits = run.limits
        self._on_text = on_text
        self.step: int = 0
        """The number of requests so far."""
        self._duration = 0.0

    def send(self, request: CompletionRequest, *, again: bool = False) -> Completion:
        """Return the answer to a request, after retries if necessary.

        Args:
            request: The request.
            again: Whether it takes the place of the last one, which was refused.

        Raises:
            ProviderError: The provider failed and retries are exhausted.
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is used up.
        """
        self.step += not again
        retries = 0
        while True:
            self._limits.check("Request")
            counter = _TextCounter(self._on_text)
            try:
                return self._send_once(request, counter)
            except ProviderError as error:
                self._back_off(error, retries, counter.characters)
            retries += 1

    def report(self, completion: Completion) -> None:
        """Emit `ModelResponded` for the last answer, which is part of the conversation by now."""
        event = self._run.response_event(completion, step=self.step, seconds=self._duration)
        self._run.session.dispatch(event)

    def _send_once(self, request: CompletionRequest, counter: "_TextCounter") -> Completion:
        model, clock = self._run.model, self._run.options.clock
        started = clock.monotonic()
        with model_span(
            model.model,
            provider=model.name,
            session_id=self._run.session.session_id,
            messages=None if current_tracing() is NO_TRACING else _trace_messages(request.messages),
        ) as span:
            completion = self._complete_in_time(request, counter)
            answer = AssistantMessage(completion.text, completion.tool_calls)
            record_response(
                span,
                usage=completion.usage,
                model=completion.model,
                response_id=completion.response_id,
                finish_reasons=(completion.stop_reason,),
                messages=_trace_messages([answer]) if span.is_recording else None,
            )
        self._duration = clock.monotonic() - started
        return completion

    def _complete_in_time(self, request: CompletionRequest, counter: "_TextCounter") -> Completion:
        left = self._limits.remaining_seconds()
        timeout = self._run.options.request_timeout
        timeout = timeout if left is None else min(left, timeout)

        def complete(on_text: OnText | None) -> Completion:
            try:
                return self._run.model.complete(request, on_text=on_text, timeout=timeout)
            except (ConnectionError, TimeoutError) as error:
                raise self._connection_error(error) from error

        timed = TimedRequest(complete, None if self._on_text is None else counter)
        try:
            return timed.result(timeout, self._limits)
        except RequestTimeoutError as error:
            raise self._connection_error(error) from error

    def _connection_error(self, error: OSError) -> TransientError:
        name = self._run.model.name
        return TransientError(f"The connection to {name} failed, try again: {error}", provider=name)

    def _back_off(self, error: ProviderError, retries: int, streamed: int) -> None:
        """Wait before the next retry, or raise the error."""
        policy = self._run.options.retries
        delay = policy.delay(retries, error)
        if delay is None:
            if retries:
                error.add_note(f"Gave up after {retries + 1} attempts")
            if error.retry_after:
                error.add_note(
                    f"The provider asks to wait {error.retry_after:.0f} s before a retry"
                )
            raise error
        self._limits.check("Request")
        left = self._limits.remaining_seconds()
        if left is not None and delay >= left:
            error.add_note(f"Not retried: the wait of {delay:.1f} s exceeds the {left:.1f} s left")
            raise error
        self._run.session.dispatch(
            RequestRetried(
                **self._run.event_fields,
                step=self.step,
                retry=retries + 1,
                error=f"{type(error).__name__}: {error}",
                delay=delay,
                streamed_characters=streamed,
            )
        )
        (policy.sleep or self._limits.cancellation.wait)(delay)


class _TextCounter:
    """Forwards text, and counts its characters."""

    def __init__(self, on_text: OnText | None) -> None:
        self._on_text = on_text
        self.characters = 0

    def __call__(self, text: str) -> None:
        self.characters += len(text)
        if self._on_text is not None:
            self._on_text(text)


def with_call_ids(completion: Completion, first: int, used: Iterable[str] = ()) -> Completion:
    """Return the completion with a unique id for every call; providers may omit or repeat them.

    Args:
        completion: The model's answer.
        first: Number of its first call, for new ids.
        used: Ids of earlier calls; servers reject a conversation with duplicates.
    """
    seen = set(used)
    reserved = {*seen, *(call.call_id for call in completion.tool_calls)}
    calls: list[ToolCall] = []
    for number, call in enumerate(completion.tool_calls, first):
        if not call.call_id or call.call_id in seen:
            new = chain([f"call-{number}"], (f"call-{number}-{suffix}" for suffix in count(2)))
            call = replace(call, call_id=next(each for each in new if each not in reserved))
        seen.add(call.call_id)
        reserved.add(call.call_id)
        calls.append(call)
    return replace(completion, tool_calls=tuple(calls))


def _trace_messages(messages: Sequence[Message]) -> list[object]:
    """Return messages in the format of the GenAI conventions."""
    return [{"role": each.role, "parts": _parts(each)} for each in messages]


def _parts(message: Message) -> list[object]:
    if isinstance(message, ToolMessage):
        return [{"type": "tool_call_response", "id": message.call_id, "response": message.text}]
    parts: list[object] = [{"type": "text", "content": message.text}] if message.text else []
    if isinstance(message, AssistantMessage):
        parts += [
            {
                "type": "tool_call",
                "id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in message.tool_calls
        ]
    return parts
