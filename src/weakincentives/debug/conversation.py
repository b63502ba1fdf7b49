"""The conversation of a run as one reads it: pages of messages, with Markdown as nodes.

The result of a call stands where it was given, with the arguments of the call.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from weakincentives.characters import strip_escapes
from weakincentives.debug.content import Mask
from weakincentives.debug.highlight import Token, highlight, highlight_output, path_of
from weakincentives.debug.rows import changed_files, create_row
from weakincentives.markdown import Node, markdown_nodes
from weakincentives.redaction import mask_values
from weakincentives.runtime.timeline import StepRecord, call_subject, step_command

PAGE = 200
"""Messages that are shown at once."""
_ESCAPE = "\x1b"
_MAX_STRING = 100_000
_MAX_CODE = 20_000  # characters of a block that is highlighted


class Conversed(Protocol):
    """A recording with messages."""

    def step(self, number: int) -> StepRecord:
        """Return a step."""
        ...

    def messages(self, number: int) -> Sequence[Any]:
        """Return the conversation after a step."""
        ...


def list_messages(recording: Conversed, chain: Sequence[int]) -> list[tuple[int, Any]]:
    """Return the conversation after the last step of a chain, each message with its step.

    What happened beside it stands between the messages; without any, all calls of MCP clients do.
    """
    messages = recording.messages(chain[-1])
    owners: list[int] = []
    for number in chain:
        change = recording.step(number).messages
        if change is not None and change.whole:
            owners = [number] * len(cast("Sequence[Any]", change.whole[0]))
        elif change is not None:
            replaced = change.inner is not None
            end = max(change.start + replaced, len(owners) - change.stop)
            owners[change.start : end] = [number] * (replaced + len(change.items))
    found = list(zip(owners, messages, strict=False))
    found += [
        (step.number, describe_beside(step))
        for step in map(recording.step, chain)
        if is_beside(step) and not (step.kind == "tool" and messages)
    ]
    return sorted(found, key=lambda each: each[0])


def is_beside(step: StepRecord) -> bool:
    """Return whether a step is told beside the conversation, or instead of one."""
    is_call = step.kind == "tool" and step.messages is None
    return step.kind in ("test", "files", "context") or step.undoes is not None or is_call


def describe_beside(step: StepRecord) -> dict[str, Any]:
    """Return a step that is not in the conversation as a message in it."""
    details = step.details
    return {
        "role": "tool" if step.kind == "tool" else "note",
        "name": details.get("tool") or step.kind,
        "title": step.title,
        "text": details.get("result_message") or details.get("error") or details.get("text") or "",
        "success": step.success,
    }


def describe_messages(
    recording: Conversed,
    found: Sequence[tuple[int, Any]],
    *,
    mask: Mask,
    masks: bool,
    formats: bool = True,
) -> list[dict[str, Any]]:
    """Return messages for the page, each with its step and what came of its call."""
    calls: dict[str, Mapping[str, Any]] = {}
    described: list[dict[str, Any]] = []
    for number, message in found:
        given = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        calls |= {str(each.get("call_id")): each for each in _calls(given)}
        shown = bounded({name: each for name, each in given.items() if name != "extras"})
        if given.get("role") in ("tool", "note"):
            step = recording.step(number)
            call = calls.get(str(given.get("call_id")))
            arguments = step.details.get("params") if call is None else call.get("arguments")
            shown |= _describe_call(step, arguments)
            shown["text"] = strip_escapes(str(shown.get("text", "")))
        shown = mask_values(shown) if masks else shown
        if given.get("role") in ("tool", "note"):
            shown["output"] = find_output(recording.step(number), mask)
        if formats and given.get("role") not in ("tool", "note"):
            shown["nodes"] = format_text(mask(str(given.get("text") or "")))
        described.append(shown | {"n": number})
    return described


def _calls(message: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found = cast("Sequence[Any]", message.get("tool_calls") or ())
    return [cast("Mapping[str, Any]", each) for each in found if isinstance(each, Mapping)]


def _describe_call(step: StepRecord, arguments: object) -> dict[str, Any]:
    """Return what a call was about, and what it did; the step of a shared result is another's."""
    given = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
    row = create_row(step)
    return {
        "arguments": bounded(given or arguments),
        "subject": call_subject(given),
        "command": row.command,
        "command_failed": row.command_failed,
        "ms": row.ms,
        "files": dict(changed_files(step)),
    }


def find_output(step: StepRecord, mask: Mask) -> list[Token]:
    """Return what a step printed in colours; nothing if a secret in it has to be masked."""
    command = step_command(step)
    texts = [str(step.details.get(name) or "") for name in ("result_message", "error", "text")]
    found = [
        "" if command is None else command.styled,
        *(each for each in texts if _ESCAPE in each),
    ]
    styled = next(filter(None, found), "")[:_MAX_STRING]
    plain = strip_escapes(styled)
    return highlight_output(styled) if mask(plain) == plain else []


def format_text(text: str) -> list[Node] | None:
    """Return Markdown as nodes, its code highlighted; None if it is too long."""
    return markdown_nodes(text, _highlight)


def _highlight(language: str, text: str) -> list[Any]:
    return highlight(path_of(language), text, colours=len(text) <= _MAX_CODE)


def bounded(value: Any) -> Any:
    """Return a JSON value whose strings are not too long to show."""
    if isinstance(value, str):
        left = len(value) - _MAX_STRING
        return value if left <= 0 else f"{value[:_MAX_STRING]}\n… {left:,} more characters"
    if isinstance(value, Mapping):
        return {str(key): bounded(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [bounded(each) for each in cast("Sequence[Any]", value)]
    return value
