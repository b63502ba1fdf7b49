"""Encode dataclasses as JSON and decode them, with unknown fields rejected.

msgspec does the work. It ignores unknown fields of dataclasses, so a misspelled field would be
lost silently; a check that is derived once per type rejects them. Types without a dataclass
inside need no check. Lone surrogates, which stand for file name bytes that are not UTF-8, survive
a round trip.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from weakincentives.serde.validation import (
    SerdeError,
    from_json_value,
    to_json_value,
    unknown_field,
    validation_error,
)

_Check: TypeAlias = Callable[[Any], None]
T = TypeVar("T")
MAX_NESTING = 200
"""Levels of arrays and objects in JSON; each is a call for whoever walks over the value."""
_TOO_DEEP = f"Nested too deeply, at most {MAX_NESTING} levels are possible"
_JSON_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPED_SURROGATE = re.compile("\\\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# a float in MessagePack, the exponent of which is that of NaN and infinity
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


class _UnknownFieldsError(Exception):
    """Unknown fields of a dataclass; the path to them is added while it propagates."""

    def __init__(self, names: Sequence[str], known: frozenset[str]) -> None:
        super().__init__()
        self._names = names
        self._known = known
        self._path = ""

    def prepend(self, part: str) -> None:
        """Put `part` before the path so far."""
        dot = "." if self._path and not self._path.startswith("[") else ""
        self._path = part + dot + self._path

    def to_error(self) -> SerdeError:
        return SerdeError(*(unknown_field(each, self._known, self._path) for each in self._names))


def check_fields(value: object, kind: Any) -> None:
    """Check that `value` has no fields that `kind` does not have.

    Raises:
        SerdeError: It has some.
    """
    check = _cached_check(kind)
    if check is None:
        return
    try:
        check(value)
    except _UnknownFieldsError as found:
        raise found.to_error() from None


@lru_cache(maxsize=1024)
def _cached_check(kind: Any) -> _Check | None:
    return _build_check(inspect.type_info(kind), {})


class _DataclassCheck:
    """The check of one dataclass; it may be recursive."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        self.inner: list[tuple[str, _Check]] = []

    def __call__(self, value: Any) -> None:
        # most values are plain dictionaries, and an isinstance check of Mapping is slow
        if type(value) is not dict and not isinstance(value, Mapping):
            return
        names = cast("Set[str]", value.keys())
        if not names <= self.known:
            raise _UnknownFieldsError(sorted(names - self.known, key=str), self.known)
        for name, check in self.inner:
            if name in value:
                _check_part(check, value[name], name)


def _build_check(info: inspect.Type, seen: dict[Any, _DataclassCheck]) -> _Check | None:
    """Return a function that raises on unknown fields; None if a type cannot have any."""
    match info:
        case inspect.DataclassType():
            return _dataclass_check(info, seen)
        case inspect.UnionType(types=types):
            return _union_check([_build_check(each, seen) for each in types])
        case inspect.CollectionType(item_type=item):
            return _items_check(_build_check(item, seen))
        case inspect.TupleType(item_types=items):
            return _positions_check([_build_check(each, seen) for each in items])
        case inspect.DictType(value_type=item):
            return _values_check(_build_check(item, seen))
        case inspect.Metadata(type=inner):
            return _build_check(inner, seen)
        case _:
            return None


def _check_part(check: _Check, value: Any, part: str) -> None:
    try:
        check(value)
    except _UnknownFieldsError as found:
        found.prepend(part)
        raise


def _dataclass_check(info: inspect.DataclassType, seen: dict[Any, _DataclassCheck]) -> _Check:
    if info.cls in seen:
        return seen[info.cls]
    result = seen[info.cls] = _DataclassCheck()
    result.known = frozenset(each.encode_name for each in info.fields)
    for each in info.fields:
        check = _build_check(each.type, seen)
        if check is not None:
            result.inner.append((each.encode_name, check))
    return result


def _union_check(checks: Sequence[_Check | None]) -> _Check | None:
    """Combine the checks of a union; each ignores values of another shape."""
    combined = [each for each in checks if each is not None]
    if len(combined) <= 1:
        return combined[0] if combined else None

    def check(value: Any) -> None:
        for each in combined:
            each(value)

    return check


def _items_check(item: _Check | None) -> _Check | None:
    if item is None:
        return None

    def check(value: Any) -> None:
        if isinstance(value, list | tuple):
            position = -1
            try:
                for position, each in enumerate(cast("Sequence[Any]", value)):  # noqa: B007 # read below
                    item(each)
            except _UnknownFieldsError as found:
                found.prepend(f"[{position}]")
                raise

    return check


def _positions_check(items: Sequence[_Check | None]) -> _Check | None:
    if not any(items):
        return None

    def check(value: Any) -> None:
        if isinstance(value, list | tuple):
            pairs = zip(items, cast("Sequence[Any]", value), strict=False)
            for position, (item, each) in enumerate(pairs):
                if item is not None:
                    _check_part(item, each, f"[{position}]")

    return check


def _values_check(item: _Check | None) -> _Check | None:
    if item is None:
        return None

    def check(value: Any) -> None:
        if isinstance(value, Mapping):
            for key, each in cast("Mapping[Any, Any]", value).items():
                _check_part(item, each, f"[{key!r}]")

    return check


def encode(value: object) -> bytes:
    """Return `value` as JSON in UTF-8.

    Raises:
        SerdeError: It contains a value that JSON cannot represent, or a reference cycle.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=to_json_value)
    except UnicodeEncodeError:
        # a lone surrogate, from a file name that is not UTF-8
        return _encode_slowly(value)
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerdeError(str(error)) from error
    if b"null" in data and _may_have_infinity(value):
        # msgspec encodes NaN and infinity as null; the slow path raises instead
        _encode_slowly(value)
    _check_brackets(data)
    return data


def _may_have_infinity(value: object) -> bool:
    """Return False if no number in `value` is NaN or infinite: MessagePack can represent these."""
    try:
        data = msgspec.msgpack.encode(value, enc_hook=to_json_value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return True  # what JSON can represent and MessagePack cannot
    return _NOT_FINITE.search(data) is not None


def decode(data: bytes | str, kind: type[T]) -> T:
    """Parse JSON as a `kind`.

    Raises:
        SerdeError: It is not JSON, or does not match `kind`; the message names the fields.
    """
    return convert(_parse(data), kind)


def to_builtins(value: object) -> object:
    """Return `value` as dictionaries, lists, tuples, strings, numbers, booleans and None.

    Raises:
        SerdeError: It contains a value that JSON cannot represent, or a reference cycle.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=to_json_value)
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerdeError(str(error)) from error


def convert(value: object, kind: type[T], *, lax: bool = False) -> T:
    """Convert builtin values, as from `to_builtins` or a JSON parser, to a `kind`.

    With `lax`, numbers and booleans may be strings.

    Raises:
        SerdeError: They do not match `kind`; the message names the fields.
    """
    try:
        result = msgspec.convert(
            value, kind, strict=not lax, dec_hook=from_json_value, str_keys=True
        )
        check_fields(value, kind)
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except msgspec.ValidationError as fault:
        raise validation_error(value, kind, fault) from None
    except (TypeError, NameError) as error:
        raise SerdeError(f"Type cannot be read from JSON: {error}") from error
    return result


def _parse(data: bytes | str) -> object:
    try:
        found = msgspec.json.decode(data)
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as fault:
        # msgspec rejects lone surrogates with varying messages; json accepts them
        text = data if isinstance(data, str) else data.decode("latin-1")
        if _ESCAPED_SURROGATE.search(text) is None:
            raise SerdeError(f"Not JSON: {fault}") from None
    else:
        if not _has_few_brackets(data):
            _check_levels(found)
        return found
    try:
        found = json.loads(data, parse_constant=_reject_constant)
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except ValueError as fault:
        raise SerdeError(f"Not JSON: {fault}") from None
    _check_levels(found)
    return found


def _check_levels(value: object) -> None:
    """Raise if parsed JSON has too many levels, however deep the stack is now."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING + 1):
        level = [
            each
            for above in level
            if type(above) is dict or type(above) is list
            for each in cast("Collection[Any]", above.values() if type(above) is dict else above)
        ]
        if not level:
            return
    raise SerdeError(_TOO_DEEP)


def _has_few_brackets(data: bytes | str) -> bool:
    """Return whether JSON cannot have too many levels, because it has too few brackets."""
    text = data.encode("utf-8", "replace") if isinstance(data, str) else data
    return text.count(b"[") + text.count(b"{") <= MAX_NESTING


def _check_brackets(data: bytes) -> None:
    """Raise if encoded JSON has too many levels, so that it could not be decoded."""
    if _has_few_brackets(data):
        return
    depth = 0
    for bracket in _JSON_STRING.sub(b"", data).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_NESTING:
            raise SerdeError(_TOO_DEEP)


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _encode_slowly(value: object) -> bytes:
    try:
        text = json.dumps(
            to_builtins(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except ValueError as error:
        if isinstance(error, SerdeError):
            raise
        raise SerdeError("NaN and infinity cannot be encoded as JSON") from None
    data = _SURROGATE.sub(_escape, text).encode("utf-8", "surrogatepass")
    _check_brackets(data)
    return data


def _escape(found: re.Match[str]) -> str:
    r"""Return a surrogate as `\ud800`, unless it is the second of a pair.

    A pair of escapes would be decoded as one character.
    """
    is_second = "\ud800" <= found.string[found.start() - 1] <= "\udbff" <= found[0]
    return found[0] if is_second else f"\\u{ord(found[0]):04x}"
