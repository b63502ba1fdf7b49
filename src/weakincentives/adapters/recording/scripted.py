"""ScriptedAdapter: a fake model that plays a script or replays a recording.

For tests and demos, without key and network. Everything else is real: the loop, the tools, the
files. A replay compares each request with the recorded one and raises where they diverge.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Self, TypeAlias

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import ProviderError, ScriptError
from weakincentives.adapters.messages import Completion, CompletionRequest, ToolCall
from weakincentives.adapters.recording.recorder import (
    RecordedConversation,
    RecordedError,
    RecordedStep,
    RequestEncoder,
)

ScriptStep: TypeAlias = str | ToolCall | Sequence[ToolCall] | Completion | BaseException
"""One step of a scripted model: text, tool calls, both, or an error."""
_CONTEXT_BEFORE, _CONTEXT_AFTER = 20, 80
_MAX_EXCERPT = 100
_WORDS = re.compile(r"\S+\s*|\s+")


class ScriptedAdapter(ProviderAdapter):
    """Plays a script: one step per request.

    A step is a text, a `ToolCall` or several, a `Completion`, an exception to raise, or a
    function that takes the request and returns one of these.
    """

    def __init__(
        self,
        script: Iterable[ScriptStep | Callable[[CompletionRequest], ScriptStep]],
        *,
        name: str = "scripted",
        model: str = "script",
        native_output: bool = False,
    ) -> None:
        """Play `script` from the start.

        Args:
            script: The steps, in order.
            name: Name of the provider that it stands in for.
            model: Name of the model.
            native_output: Whether to leave the output schema out of the prompt, as for a
                provider that enforces it.
        """
        self.name = name
        self.model = model
        self.native_output = native_output
        self._script = tuple(script)
        self._requests: list[CompletionRequest] = []
        self._lock = Lock()

    @classmethod
    def from_recording(cls, path: str | os.PathLike[str], *, strict: bool = True) -> Self:
        """Replay a recording of a `RecordingAdapter`.

        Failed attempts that were retried are left out.

        Args:
            path: The recording.
            strict: Raise `ReplayDivergedError` as soon as a request differs from the recorded
                one; otherwise return the recorded answers to any requests.

        Raises:
            ScriptError: The file is not a recording, or is damaged.
            OSError: It cannot be read.
        """
        recording = RecordedConversation.load(path)
        encoder = RequestEncoder() if strict else None
        steps = enumerate(recording.without_retries(), 1)
        return cls(
            [partial(_replay, encoder, number, step) for number, step in steps],
            name=recording.adapter,
            model=recording.model,
            native_output=recording.native_output,
        )

    @property
    def requests(self) -> tuple[CompletionRequest, ...]:
        """The requests so far."""
        return tuple(self._requests)

    @property
    def remaining(self) -> int:
        """How many steps are left."""
        return max(0, len(self._script) - len(self._requests))

    def complete(
        self,
        request: CompletionRequest,
        *,
        on_text: Callable[[str], None] | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Play the next step.

        Raises:
            ScriptError: No steps are left.
        """
        del timeout  # a script answers at once
        with self._lock:
            self._requests.append(request)
            number = len(self._requests)
        if number > len(self._script):
            raise ScriptError(
                f"The script has only {len(self._script)} steps:"
                f" add one for {_describe_request(request)}"
            )
        step = self._script[number - 1]
        result = step(request) if callable(step) else step
        if callable(step) and isinstance(result, Completion):
            # unchanged, so that the run numbers recorded calls as it did then
            completion = result
        else:
            completion = _to_completion(result, number)
        if on_text is not None:
            for piece in _WORDS.findall(completion.text):
                on_text(piece)
        return completion


class ReplayDivergedError(ScriptError):
    """A request differs from the recorded one; `step` is its number."""

    def __init__(self, step: int, difference: str) -> None:
        """Report the first difference."""
        super().__init__(
            f"The replay diverges at step {step}: {difference}; record it again, or replay it"
            " with strict=False"
        )
        self.step = step


def _replay(
    encoder: RequestEncoder | None, number: int, recorded: RecordedStep, request: CompletionRequest
) -> Completion | ProviderError:
    """Return the recorded answer; with an `encoder`, only if the request is the recorded one."""
    if encoder is not None:
        for difference in _differences(recorded, encoder.encode(request)):
            raise ReplayDivergedError(number, difference)
    if recorded.completion is not None:
        return recorded.completion
    return (recorded.error or RecordedError("", "The recording has no answer")).to_error()


def _to_completion(step: ScriptStep, number: int) -> Completion:
    if isinstance(step, BaseException):
        raise step
    if isinstance(step, str):
        return Completion(step)
    if isinstance(step, Completion):
        calls, base = step.tool_calls, step
    else:
        calls = (step,) if isinstance(step, ToolCall) else tuple(step)
        base = Completion(stop_reason="tool_calls")
    with_ids = (
        call if call.call_id else replace(call, call_id=f"call-{number}-{index}")
        for index, call in enumerate(calls, 1)
    )
    return replace(base, tool_calls=tuple(with_ids))


def _describe_request(request: CompletionRequest) -> str:
    last = request.messages[-1]
    text = last.text if len(last.text) <= _MAX_EXCERPT else f"{last.text[:_MAX_EXCERPT]}..."
    return f"the answer to the {last.role} message {text!r}"


def _differences(recorded: RecordedStep, current: RecordedStep) -> Iterator[str]:
    """Yield the differences of a request from the recorded one, the most telling first."""
    if recorded.shared != current.shared:
        yield f"{recorded.shared} earlier messages were unchanged, now {current.shared} are"
    for old, new in zip(recorded.messages, current.messages, strict=False):
        if old != new:
            yield _message_difference(old, new)
    if len(recorded.messages) != len(current.messages):
        yield f"there were {len(recorded.messages)} new messages, now {len(current.messages)}"
    yield from _tool_differences(recorded.tools, current.tools)
    if recorded.output != current.output:
        yield "the output schema has changed"


def _tool_differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in new:
            yield f"the tool {name!r} is missing"
        elif name not in old:
            yield f"the tool {name!r} is new"
        elif old[name] != new[name]:
            yield f"the description or schema of the tool {name!r} has changed"


def _message_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the first difference of two messages, in few words."""
    role = old.get("role", "unknown")
    if role != new["role"]:
        return f"the role of a message was {role!r}, now {new['role']!r}"
    label = f"the result of {old['name']!r}" if "name" in old else f"the {role} message"
    old_text, new_text = str(old.get("text", "")), str(new.get("text", ""))
    if old_text == new_text:
        return f"{label} has the same text, but differs otherwise"
    pairs = enumerate(zip(old_text, new_text, strict=False))
    shorter = min(len(old_text), len(new_text))
    start = next((index for index, pair in pairs if pair[0] != pair[1]), shorter)
    return f"{label} was {_text_around(old_text, start)}, now {_text_around(new_text, start)}"


def _text_around(text: str, index: int) -> str:
    start, end = max(0, index - _CONTEXT_BEFORE), index + _CONTEXT_AFTER
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return repr(f"{before}{text[start:end]}{after}")
