"""Fields that a type does not have: refused, because a misspelt one would be lost silently.

msgspec ignores unknown fields of dataclasses. What to look for is worked out once
per type; types without a dataclass inside cost nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

from msgspec import inspect

from weakincentives.serde.problems import SerdeError, unknown_field

_Check: TypeAlias = Callable[[object, str], None]


def check_fields(value: object, kind: Any) -> None:
    """Return if every field in `value` is one that `kind` has there.

    Raises:
        SerdeError: Some are not.
    """
    check = _check_of(kind)
    if check is not None:
        check(value, "")


@lru_cache(maxsize=1024)
def _check_of(kind: Any) -> _Check | None:
    return _check(inspect.type_info(kind), {})


class _Fields:
    """The check of one dataclass; it may contain itself."""

    def __init__(self) -> None:
        self.known: frozenset[str] = frozenset()
        self.inner: list[tuple[str, _Check]] = []

    def __call__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            return
        data = cast("Mapping[str, object]", value)
        unknown = data.keys() - self.known
        if unknown:
            raise SerdeError(*(unknown_field(each, self.known, place) for each in sorted(unknown)))
        for name, check in self.inner:
            if name in data:
                check(data[name], f"{place}.{name}" if place else name)


def _check(info: inspect.Type, seen: dict[Any, _Fields]) -> _Check | None:
    """Return what looks for unknown fields in values of a type; None if it can have none."""
    match info:
        case inspect.DataclassType():
            return _dataclass_check(info, seen)
        case inspect.UnionType(types=types):
            return _first_check([_check(each, seen) for each in types])
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


def _first_check(checks: Sequence[_Check | None]) -> _Check | None:
    """Return the checks of a union as one: each looks only at values of its own shape."""
    wanted = [each for each in checks if each is not None]
    if len(wanted) <= 1:
        return wanted[0] if wanted else None

    def check(value: object, place: str) -> None:
        for each in wanted:
            each(value, place)

    return check


def _items_check(item: _Check | None) -> _Check | None:
    if item is None:
        return None

    def check(value: object, place: str) -> None:
        if isinstance(value, list | tuple):
            for position, each in enumerate(cast("Sequence[object]", value)):
                item(each, f"{place}[{position}]")

    return check


def _positions_check(items: Sequence[_Check | None]) -> _Check | None:
    if not any(items):
        return None

    def check(value: object, place: str) -> None:
        if isinstance(value, list | tuple):
            for position, (item, each) in enumerate(
                zip(items, cast("Sequence[object]", value), strict=False)
            ):
                if item is not None:
                    item(each, f"{place}[{position}]")

    return check


def _values_check(item: _Check | None) -> _Check | None:
    if item is None:
        return None

    def check(value: object, place: str) -> None:
        if isinstance(value, Mapping):
            for key, each in cast("Mapping[object, object]", value).items():
                item(each, f"{place}[{key!r}]")

    return check
