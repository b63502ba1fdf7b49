"""Asking a model once: in time, traced, told of, and again if the failure was a passing one."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Protocol

from weakincentives.adapters.errors import ProviderError, TransientError
from weakincentives.adapters.events import ModelResponded, RequestRetried
from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.loop.timeout import OnText, RequestTimeoutError, TimedRequest
from weakincentives.adapters.messages import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    ToolCall,
    ToolMessage,
)
from weakincentives.adapters.options import RunOptions
from weakincentives.runtime import NO_TRACING, current_tracing, model_span, record_response
from weakincentives.runtime.session import Session


class Model(Protocol):
    """What can be asked: an adapter, as far as a run is concerned."""

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
        """Ask the model once."""
        ...


class ModelRequester:
    """The requests of one run."""

    def __init__(
        self,
        model: Model,
        prompt_name: str,
        *,
        session: Session,
        bounds: RunLimits,
        options: RunOptions,
        on_text: OnText | None = None,
    ) -> None:
        """Ask `model` within `bounds`; `on_text` is told what it says as it says it."""
        self._model = model
        self._prompt_name = prompt_name
        self._session = session
        self._bounds = bounds
        self._options = options
        self._on_text = on_text
        self._step = 0

    def ask(self, request: CompletionRequest) -> Completion:
        """Return the answer to a request.

        Raises:
            ProviderError: There is none, and trying again is of no use.
            RunCancelledError: The run was cancelled.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: More was used than allowed.
        """
        self._step += 1
        retries = 0
        while True:
            self._bounds.check("Request")
            heard = _Heard(self._on_text)
            try:
                return self._answer(request, heard)
            except ProviderError as error:
                self._wait(error, retries, heard.characters)
            retries += 1

    def _answer(self, request: CompletionRequest, heard: "_Heard") -> Completion:
        model, clock = self._model, self._options.clock
        started = clock.monotonic()
        with model_span(
            model.model,
            provider=model.name,
            session_id=self._session.session_id,
            messages=None if current_tracing() is NO_TRACING else _traced(request.messages),
        ) as span:
            completion = self._completed(request, heard)
            record_response(
                span,
                usage=completion.usage,
                model=completion.model,
                response_id=completion.response_id,
                finish_reasons=(completion.stop_reason,),
                messages=_traced([_said(completion)]) if span.is_recording else None,
            )
        self._tell(completion, (clock.monotonic() - started) * 1000)
        return completion

    def _completed(self, request: CompletionRequest, heard: "_Heard") -> Completion:
        left = self._bounds.seconds_left()
        longest = self._options.request_timeout
        timeout = longest if left is None else min(left, longest)

        def complete(on_text: OnText | None) -> Completion:
            try:
                return self._model.complete(request, on_text=on_text, timeout=timeout)
            except (ConnectionError, TimeoutError) as error:
                raise self._dropped(error) from error

        watched = TimedRequest(complete, None if self._on_text is None else heard)
        try:
            return watched.result(timeout, self._bounds)
        except RequestTimeoutError as error:
            raise self._dropped(error) from error

    def _dropped(self, error: OSError) -> TransientError:
        name = self._model.name
        return TransientError(f"The connection to {name} failed, try again: {error}", provider=name)

    def _wait(self, error: ProviderError, retries: int, streamed: int) -> None:
        """Return when the request is to be made again, or raise the error."""
        policy = self._options.retries
        delay = policy.delay(retries, error)
        if delay is None:
            if retries:
                error.add_note(f"It was tried {retries + 1} times")
            if error.retry_after:
                error.add_note(f"It may be tried again in {error.retry_after:.0f} s")
            raise error
        self._bounds.check("Request")
        left = self._bounds.seconds_left()
        if left is not None and delay >= left:
            error.add_note(f"Not tried again: it takes {delay:.1f} s, and {left:.1f} s are left")
            raise error
        self._session.dispatch(
            RequestRetried(
                prompt_name=self._prompt_name,
                adapter=self._model.name,
                model=self._model.model,
                step=self._step,
                retry=retries + 1,
                error=f"{type(error).__name__}: {error}",
                delay=delay,
                streamed_characters=streamed,
                session_id=self._session.session_id,
            )
        )
        (policy.sleep or self._bounds.cancellation.wait)(delay)

    def _tell(self, completion: Completion, duration_ms: float) -> None:
        self._session.dispatch(
            ModelResponded(
                prompt_name=self._prompt_name,
                adapter=self._model.name,
                model=completion.model or self._model.model,
                step=self._step,
                text=completion.text,
                tool_calls=tuple(call.name for call in completion.tool_calls),
                stop_reason=completion.stop_reason,
                usage=completion.usage,
                duration_ms=duration_ms,
                session_id=self._session.session_id,
            )
        )


class _Heard:
    """Passes text on, and counts it."""

    def __init__(self, on_text: OnText | None) -> None:
        self._on_text = on_text
        self.characters = 0

    def __call__(self, text: str) -> None:
        self.characters += len(text)
        if self._on_text is not None:
            self._on_text(text)


def with_call_ids(completion: Completion, first: int, used: Iterable[str] = ()) -> Completion:
    """Return the completion with an id for every call; some providers send none, or one twice.

    Args:
        completion: What the model answered.
        first: The number of its first call.
        used: Ids of earlier calls; a conversation has each once, or servers refuse it.
    """
    seen = set(used)
    taken = {*seen, *(call.call_id for call in completion.tool_calls)}
    calls: list[ToolCall] = []
    for number, call in enumerate(completion.tool_calls, first):
        if not call.call_id or call.call_id in seen:
            call = replace(call, call_id=_free_id(number, taken))
        seen.add(call.call_id)
        taken.add(call.call_id)
        calls.append(call)
    return replace(completion, tool_calls=tuple(calls))


def _free_id(number: int, taken: Container[str]) -> str:
    plain = f"call-{number}"
    others = (f"{plain}-{again}" for again in count(2))
    return next(each for each in chain([plain], others) if each not in taken)


def _said(completion: Completion) -> AssistantMessage:
    return AssistantMessage(completion.text, completion.tool_calls)


def _traced(messages: Sequence[Message]) -> list[object]:
    """Return messages in the shape of the GenAI conventions."""
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
