"""A model that plays a script: for tests, for demos, and to play back what was recorded.

No key, no network. Everything else is real: the loop, the tools, the files.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Self, TypeAlias

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import ScriptError
from weakincentives.adapters.messages import Completion, CompletionRequest, ToolCall
from weakincentives.adapters.recording.format import RecordedStep, Recording
from weakincentives.adapters.recording.replay import Replay

ScriptStep: TypeAlias = str | ToolCall | Sequence[ToolCall] | Completion | BaseException
"""What a scripted model does once: say something, call tools, both, or fail."""
_WORDS = re.compile(r"\S+\s*|\s+")


class ScriptedAdapter(ProviderAdapter):
    """Plays a script: one step each time that the model is asked.

    A step is a text, a `ToolCall` or several, a `Completion`, an exception to raise, or a
    function that gets the request and returns one of these.
    """

    def __init__(
        self,
        script: Iterable[ScriptStep | Callable[[CompletionRequest], ScriptStep]],
        *,
        name: str = "scripted",
        model: str = "script",
        native_output: bool = False,
    ) -> None:
        """Play `script` from its beginning.

        Args:
            script: The steps, in order.
            name: Whom it stands in for.
            model: What its model is called.
            native_output: Whether to do without the words that ask for structured output.
        """
        self.name = name
        self.model = model
        self.native_output = native_output
        self._script = tuple(script)
        self._requests: list[CompletionRequest] = []
        self._lock = Lock()

    @classmethod
    def from_recording(cls, path: str | os.PathLike[str], *, strict: bool = True) -> Self:
        """Play back what a `RecordingAdapter` has recorded.

        Failures that had passed when a request was made again are left out.

        Args:
            path: The recording.
            strict: Raise `ReplayDivergedError` as soon as this run is not the recorded one;
                otherwise the recorded answers are given to whatever is asked.

        Raises:
            ScriptError: It is no recording, or damaged.
            OSError: It cannot be read.
        """
        recording = Recording.load(path)
        replay = Replay(strict=strict)
        return cls(
            [_played(replay, number, step) for number, step in enumerate(recording.settled(), 1)],
            name=recording.adapter,
            model=recording.model,
            native_output=recording.native_output,
        )

    @property
    def requests(self) -> tuple[CompletionRequest, ...]:
        """What the model was asked so far."""
        return tuple(self._requests)

    @property
    def remaining(self) -> int:
        """How many steps have not been played."""
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
            ScriptError: There is none.
        """
        with self._lock:
            self._requests.append(request)
            number = len(self._requests)
        if number > len(self._script):
            raise ScriptError(
                f"The script has {len(self._script)} steps, and the model is asked once more:"
                f" add a step for {_shown(request)}"
            )
        step = self._script[number - 1]
        said = step(request) if callable(step) else step
        if callable(step) and isinstance(said, Completion):
            # a recorded answer stays as it came: the run numbers its calls as it did then
            completion = said
        else:
            completion = _completion(said, number)
        if on_text is not None:
            for piece in _WORDS.findall(completion.text):
                on_text(piece)
        return completion


def _completion(step: ScriptStep, number: int) -> Completion:
    if isinstance(step, BaseException):
        raise step
    if isinstance(step, str):
        return Completion(step)
    if isinstance(step, Completion):
        calls, base = step.tool_calls, step
    else:
        calls = (step,) if isinstance(step, ToolCall) else tuple(step)
        base = Completion(stop_reason="tool_calls")
    named = (
        call if call.call_id else replace(call, call_id=f"call-{number}-{place}")
        for place, call in enumerate(calls, 1)
    )
    return replace(base, tool_calls=tuple(named))


def _played(
    replay: Replay, number: int, step: RecordedStep
) -> Callable[[CompletionRequest], ScriptStep]:
    return lambda request: replay.answer(number, step, request)


def _shown(request: CompletionRequest) -> str:
    last = request.messages[-1]
    text = last.text if len(last.text) <= 100 else f"{last.text[:100]}..."
    return f"what comes after the {last.role} message {text!r}"
