"""Fields that a type does not have: refused, because a misspelt one would be lost silently.

msgspec ignores unknown fields of dataclasses. What to look for is worked out once
per type; types without a dataclass inside cost nothing.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
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


class _UnknownFieldsError(Exception):
    """Fields that a dataclass does not have, on their way up to the top."""

    def __init__(self, names: Sequence[str], known: frozenset[str]) -> None:
        super().__init__()
        self._names = names
        self._known = known
        self._place = ""

    def inside(self, part: str) -> None:
        """Put `part` before the place so far."""
        dot = "." if self._place and not self._place.startswith("[") else ""
        self._place = part + dot + self._place

    def as_error(self) -> SerdeError:
        return SerdeError(*(unknown_field(each, self._known, self._place) for each in self._names))


def check_fields(value: object, kind: Any) -> None:
    """Return if every field in `value` is one that `kind` has there.

    Raises:
        SerdeError: Some are not.
    """
    check = _check_of(kind)
    if check is None:
        return
    try:
        check(value)
    except _UnknownFieldsError as found:
        raise found.as_error() from None


@lru_cache(maxsize=1024)
def _check_of(kind: Any) -> _Check | None:
    return _check(inspect.type_info(kind), {})


class _Fields:
    """The check of one dataclass; it may contain itself."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        self.inner: list[tuple[str, _Check]] = []

    def __call__(self, value: Any) -> None:
        # most values are plain dictionaries, and asking for more costs more
        if type(value) is not dict and not isinstance(value, Mapping):
            return
        names = cast("Set[str]", value.keys())
        if not names <= self.known:
            raise _UnknownFieldsError(sorted(names - self.known, key=str), self.known)
        for name, check in self.inner:
            if name in value:
                _check_part(check, value[name], name)


def _check(info: inspect.Type, seen: dict[Any, _Fields]) -> _Check | None:
    """Return what looks for unknown fields in values of a type; None if it can have none."""
    match info:
        case inspect.DataclassType():
            return _dataclass_check(info, seen)
        case inspect.UnionType(types=types):
            return _union_check([_check(each, seen) for each in types])
        case inspect.CollectionType(item_type=item):
            return _items_check(_check(item, seen))
        case inspect.TupleType(item_types=items):
            return _positions_check([_check(each, seen) for each in items])
        case inspect.DictType(value_type=item):
            return _values_check(_check(item, seen))
        case inspect.Metadata(type=inner):
            return _check(inner, seen)
        case _:
            return None


def _check_part(check: _Check, value: Any, part: str) -> None:
    try:
        check(value)
    except _UnknownFieldsError as found:
        found.inside(part)
        raise


def _dataclass_check(info: inspect.DataclassType, seen: dict[Any, _Fields]) -> _Check:
    if info.cls in seen:
        return seen[info.cls]
    made = seen[info.cls] = _Fields()
    made.known = frozenset(each.encode_name for each in info.fields)
    for each in info.fields:
        check = _check(each.type, seen)
        if check is not None:
            made.inner.append((each.encode_name, check))
    return made


def _union_check(checks: Sequence[_Check | None]) -> _Check | None:
    """Return the checks of a union as one: each looks only at values of its own shape."""
    wanted = [each for each in checks if each is not None]
    if len(wanted) <= 1:
        return wanted[0] if wanted else None

    def check(value: Any) -> None:
        for each in wanted:
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
                found.inside(f"[{position}]")
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


T = TypeVar("T")
_DEPTH = "Nested too deeply"
_ESCAPED = re.compile("\\\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def encode(value: object) -> bytes:
    """Return `value` as JSON in UTF-8.

    Raises:
        SerdeError: It holds what JSON cannot say, or refers to itself.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=to_json_value)
    except UnicodeEncodeError:
        # a lone surrogate: the name of a file whose bytes are no UTF-8
        return _encoded_slowly(value)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerdeError(str(error)) from error
    if b"null" in data:
        # msgspec writes numbers that JSON lacks as null: they would be lost
        _encoded_slowly(value)
    return data


def decode(data: bytes | str, kind: type[T]) -> T:
    """Return the `kind` that the JSON in `data` describes.

    Raises:
        SerdeError: It is not JSON, or not a `kind`; the message names the fields.
    """
    return convert(_parse(data), kind)


def to_builtins(value: object) -> object:
    """Return `value` as dictionaries, lists, tuples, strings, numbers, booleans and None.

    Raises:
        SerdeError: It holds what JSON cannot say, or refers to itself.
    """
    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=to_json_value)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise SerdeError(str(error)) from error


def convert(value: object, kind: type[T], *, lax: bool = False) -> T:
    """Return `value`, as `to_builtins` or a JSON parser gives it, as a `kind`.

    With `lax`, numbers and truth values may be texts.

    Raises:
        SerdeError: It is not a `kind`; the message names the fields.
    """
    try:
        made = msgspec.convert(value, kind, strict=not lax, dec_hook=from_json_value, str_keys=True)
        check_fields(value, kind)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except msgspec.ValidationError as fault:
        raise validation_error(value, kind, fault) from None
    except (TypeError, NameError) as error:
        raise SerdeError(f"Type cannot be read from JSON: {error}") from error
    return made


def _parse(data: bytes | str) -> object:
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as fault:
        # what it says of half a character depends on what follows
        text = data if isinstance(data, str) else data.decode("latin-1")
        if _ESCAPED.search(text) is None:
            raise SerdeError(f"Not JSON: {fault}") from None
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except ValueError as fault:
        raise SerdeError(f"Not JSON: {fault}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _encoded_slowly(value: object) -> bytes:
    try:
        text = json.dumps(
            to_builtins(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except RecursionError:
        raise SerdeError(_DEPTH) from None
    except ValueError as error:
        if isinstance(error, SerdeError):
            raise
        raise SerdeError("No JSON for a number that is infinite, or none") from None
    return _SURROGATE.sub(_escape, text).encode("utf-8", "surrogatepass")


def _escape(found: re.Match[str]) -> str:
    r"""Return a surrogate as `\ud800`, but for the second of a pair.

    As two escapes a pair would be read as the one character that it is in UTF-16.
    """
    is_second = "\ud800" <= found.string[found.start() - 1] <= "\udbff" <= found[0]
    return found[0] if is_second else f"\\u{ord(found[0]):04x}"
