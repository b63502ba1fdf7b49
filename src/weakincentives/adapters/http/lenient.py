"""Lenient decoding of provider responses: missing or odd values become empty ones."""

import json
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol, cast

from weakincentives.adapters.http.errors import Endpoint, incomplete_response
from weakincentives.adapters.messages import Completion, StopReason
from weakincentives.runtime import TokenUsage

MAX_STREAM = 64 * 1024 * 1024
"""Maximum bytes of a streamed response."""
MAX_BODY = 8 * 1024 * 1024
"""Maximum bytes of a response that is not streamed; parsed JSON takes many times the memory."""
MAX_ERROR_BODY = 128 * 1024
"""How many bytes of an error response are read."""
MAX_DEPTH = 100
"""Maximum nesting of a response, so that later code can walk it recursively."""
MAX_NODES = 500_000
"""Maximum objects and lists in a response: each takes far more memory than its text."""
MESSAGE_STOP_REASONS: Mapping[str, StopReason] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "paused",
    "refusal": "refused",
}
"""The stop reasons of Anthropic's Messages API."""
_MAX_COUNT = 10**15
_MAX_DIGITS = 18  # of an integer that fits into 64 bits


class ResponseError(ValueError):
    """A response cannot be used; the message says why."""


class ResponseDecoder(Protocol):
    """Builds a completion from the chunks of a response."""

    @property
    def has_ended(self) -> bool:
        """Whether the server said that the answer is complete."""
        ...

    @property
    def defect(self) -> str | None:
        """Why the response is not an answer, or None."""
        ...

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Add a chunk of a stream, and return its new text."""
        ...

    def add_response(self, response: Mapping[str, Any]) -> str:
        """Add a response that is not streamed, and return its text."""
        ...

    def completion(self) -> Completion:
        """Return the completion."""
        ...


def collect_completion(
    decoder: ResponseDecoder,
    texts: Generator[str],
    endpoint: Endpoint,
    on_text: Callable[[str], None] | None,
) -> Completion:
    """Exhaust `texts`, which feeds `decoder`; pass text on, and return the completion.

    Raises:
        TransientError: The response is not an answer.
    """
    with closing(texts):
        for text in whole_characters(texts):
            if on_text is not None:
                on_text(text)
    if decoder.defect is not None:
        raise incomplete_response(endpoint, decoder.defect)
    return decoder.completion()


def json_object(data: str) -> Mapping[str, Any] | None:
    """Parse a JSON object; return None if the text is not one.

    Numbers that other programs cannot read are replaced: NaN and infinity by null, integers
    of more than 64 bits by floats.

    Raises:
        ResponseError: It is nested too deeply, or has too many objects.
    """
    if data.count("[") + data.count("{") > MAX_NODES:
        raise ResponseError(f"it has more than {MAX_NODES} objects and lists")
    try:
        value = json.loads(
            data,
            parse_int=lambda text: int(text) if len(text) <= _MAX_DIGITS else _parse_float(text),
            parse_float=_parse_float,
            parse_constant=lambda _: None,
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if _is_deep(cast("object", value)):
        raise ResponseError(f"it is nested more than {MAX_DEPTH} levels deep")
    return cast("dict[str, Any]", value)


def json_text(value: object) -> str:
    """Return a value as JSON, or the name of its type if it has no JSON."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def as_count(value: object) -> int:
    """Return a count, or 0 for anything that is not a sensible number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MAX_COUNT else 0


def message_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return a usage of Anthropic's Messages API, which counts cached tokens separately."""
    cached = as_count(usage.get("cache_read_input_tokens"))
    stored = as_count(usage.get("cache_creation_input_tokens"))
    sent, received = (as_count(usage.get(f"{each}_tokens")) for each in ("input", "output"))
    return TokenUsage(sent + cached + stored, received, cached, stored)


def as_text(value: object) -> str:
    """Return a string, or an empty one for anything else."""
    return value if isinstance(value, str) else ""


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def as_items(value: object) -> list[Any]:
    """Return a list, or an empty one for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def sendable(text: str) -> str:
    """Return text that UTF-8 can encode: surrogates are joined, or replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sendable_json(value: object) -> Any:
    """Return a copy of a JSON value without lone surrogates, which escapes may contain."""
    return json.loads(sendable(json.dumps(value, ensure_ascii=False)))


def whole_characters(pieces: Iterable[str]) -> Iterator[str]:
    """Yield non-empty pieces of text that never split a surrogate pair."""
    held = ""
    for piece in pieces:
        text = held + piece
        held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        text = text.removesuffix(held)
        if text:
            yield sendable(text)
    if held:
        yield sendable(held)


def distinct(ids: Sequence[str]) -> list[str]:
    """Return the ids with a suffix on every repeated one; empty ids stay empty."""
    reserved = set(ids)
    seen: set[str] = set()
    result: list[str] = []
    for each in ids:
        name, number = each, 2
        if each in seen:
            while name in reserved:
                name, number = f"{each}-{number}", number + 1
            reserved.add(name)
        if each:
            seen.add(each)
        result.append(name)
    return result


def _parse_float(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _is_deep(value: object) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in cast("Iterable[Any]", node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True
