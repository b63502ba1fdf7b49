"""What arrives from a provider, taken as it comes: what is missing or odd is empty."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

MAX_DEPTH = 100
"""How deep an answer may be nested: what comes after us must be able to walk it."""
MAX_NODES = 500_000
"""How many objects and lists an answer may have: each takes far more memory than its text."""
_MOST = 10**15
_DIGITS = 18  # what fits into 64 bits


class AnswerError(ValueError):
    """What a provider sends is no answer; the message says why."""


def json_object(data: str) -> Mapping[str, Any] | None:
    """Return the JSON object that a text is, or None if it is none.

    Numbers that no other program would read are left out: NaN, infinity, and what does not
    fit into 64 bits is a fraction.

    Raises:
        AnswerError: It is nested too deeply, or has too many parts.
    """
    if data.count("[") + data.count("{") > MAX_NODES:
        raise AnswerError(f"it has more than {MAX_NODES} objects and lists")
    try:
        said = json.loads(data, parse_int=_integer, parse_float=_number, parse_constant=_nothing)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    if _is_deep(cast("object", said)):
        raise AnswerError(f"it is nested more than {MAX_DEPTH} levels deep")
    return cast("dict[str, Any]", said)


def json_text(value: object) -> str:
    """Return a value as JSON, or what can be said of it."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return f"a {type(value).__name__}"


def as_count(value: object) -> int:
    """Return a number of things; nothing that is no number, or absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MOST else 0


def as_text(value: object) -> str:
    """Return a text."""
    return value if isinstance(value, str) else ""


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return an object of JSON."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def as_items(value: object) -> list[Any]:
    """Return a list."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def sendable(text: str) -> str:
    """Return text that UTF-8 can say: halves of a character are joined, or replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sendable_json(value: object) -> Any:
    """Return a copy of a JSON value that can be sent: escapes may stand for half a character."""
    return json.loads(sendable(json.dumps(value, ensure_ascii=False)))


def whole_characters(pieces: Iterable[str]) -> Iterator[str]:
    """Yield pieces of text in which no character is cut in half, and none is empty."""
    held = ""
    for piece in pieces:
        said = held + piece
        held = said[-1:] if "\ud800" <= said[-1:] <= "\udbff" else ""
        said = said.removesuffix(held)
        if said:
            yield sendable(said)
    if held:
        yield sendable(held)


def distinct(ids: Sequence[str]) -> list[str]:
    """Return ids with every later one of the same told apart; no id stays none."""
    used = set(ids)
    found: set[str] = set()
    made: list[str] = []
    for each in ids:
        name, number = each, 2
        if each in found:
            while name in used:
                name, number = f"{each}-{number}", number + 1
            used.add(name)
        if each:
            found.add(each)
        made.append(name)
    return made


def _integer(digits: str) -> int | float | None:
    return int(digits) if len(digits) <= _DIGITS else _number(digits)


def _number(digits: str) -> float | None:
    found = float(digits)
    return found if math.isfinite(found) else None


def _nothing(_: str) -> None:
    return None


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
