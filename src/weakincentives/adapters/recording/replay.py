"""Replays: a recorded conversation, held against the one that is going on now."""

from collections.abc import Iterator, Mapping
from typing import Any

from weakincentives.adapters.errors import ProviderError, ScriptError
from weakincentives.adapters.messages import Completion, CompletionRequest
from weakincentives.adapters.recording.format import Conversation, RecordedError, RecordedStep

_BEFORE, _AFTER = 20, 80


class ReplayDivergedError(ScriptError):
    """A run is not the one that was recorded; `step` says where."""

    def __init__(self, step: int, difference: str) -> None:
        """Say the first difference."""
        super().__init__(
            f"The replay diverges at step {step}: {difference}; record it again, or replay it"
            " with strict=False"
        )
        self.step = step


class Replay:
    """A run that is compared with the recorded one, step by step."""

    def __init__(self, *, strict: bool) -> None:
        """Compare if `strict`."""
        self._strict = strict
        self._conversation = Conversation()

    def answer(
        self, number: int, recorded: RecordedStep, request: CompletionRequest
    ) -> Completion | ProviderError:
        """Return what was answered.

        Raises:
            ReplayDivergedError: Something else is asked now.
        """
        if self._strict:
            now = self._conversation.step(request)
            for difference in _differences(recorded, now):
                raise ReplayDivergedError(number, difference)
        if recorded.completion is not None:
            return recorded.completion
        return (recorded.error or RecordedError("", "The recording has no answer")).error()


def _differences(recorded: RecordedStep, now: RecordedStep) -> Iterator[str]:
    """Yield what is not as it was recorded, what matters most first."""
    if recorded.shared != now.shared:
        yield f"{recorded.shared} earlier messages were as before, and {now.shared} are"
    for old, new in zip(recorded.messages, now.messages, strict=False):
        if old != new:
            yield _difference(old, new)
    if len(recorded.messages) != len(now.messages):
        yield f"there were {len(recorded.messages)} new messages, and are {len(now.messages)}"
    yield from _tool_differences(recorded.tools, now.tools)
    if recorded.output != now.output:
        yield "the answer must have another schema"


def _tool_differences(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in new:
            yield f"the tool {name!r} is missing"
        elif name not in old:
            yield f"the tool {name!r} is new"
        elif old[name] != new[name]:
            yield f"the tool {name!r} has another description or schema"


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return where two messages differ, in few words."""
    role = old.get("role", "strange")
    if role != new["role"]:
        return f"the role of a message was {role!r}, and is {new['role']!r}"
    whose = f"the result of {old['name']!r}" if "name" in old else f"the {role} message"
    one, other = str(old.get("text", "")), str(new.get("text", ""))
    if one == other:
        return f"{whose} has the same text, but is another"
    start = next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    return f"{whose} was {_part(one, start)}, and is {_part(other, start)}"


def _part(text: str, place: int) -> str:
    """Return the text around a place."""
    start, end = max(0, place - _BEFORE), place + _AFTER
    before, after = "..." if start else "", "..." if end < len(text) else ""
    return repr(f"{before}{text[start:end]}{after}")
