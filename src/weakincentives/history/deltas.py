"""Deltas: how a value of JSON objects and arrays differs from the one before it.

A history keeps what changes beside the files, such as sessions and conversations, without knowing
what it means. Dataclasses count as objects, and tuples as arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import msgspec

from weakincentives.errors import WinkError

_MAX_DEPTH = 32  # below it, values are stored whole


class DeltaError(WinkError, ValueError):
    """A delta changes what is not there."""


class Delta(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The difference of two values: the new one as a whole, or that of an object or array.

    Args:
        whole: The new value, alone.
        fields: The fields of an object that are new or differ.
        removed: The fields that are gone.
        start: How many items of an array stay at its beginning.
        inner: How the next one differs, if it stays.
        items: The items that follow.
        stop: How many stay at its end.
    """

    whole: tuple[Any, ...] = ()
    fields: dict[str, "Delta"] = {}
    removed: tuple[str, ...] = ()
    start: int = 0
    inner: "Delta | None" = None
    items: tuple[Any, ...] = ()
    stop: int = 0

    def apply(self, before: object, drafts: dict[int, list[Any]] | None = None) -> Any:
        """Return the value after the change; `before` stays as it is.

        Args:
            before: The value.
            drafts: The lists made so far by applying deltas one after the other, by identity.
                They are changed in place, so that a list that grows is not copied each time.

        Raises:
            DeltaError: It has no such fields or items.
        """
        if self.whole:
            return self.whole[0]
        if self.fields or self.removed:
            return self._apply_fields(before, drafts)
        if not isinstance(before, list | tuple):
            raise DeltaError("A step changes a list that is not there")
        known = cast("Sequence[Any]", before)
        inner = []
        if self.inner is not None:
            inner = [self.inner.apply(_item(known, self.start), drafts)]
        end = max(self.start + len(inner), len(known) - self.stop)
        made = None if drafts is None else drafts.get(id(known))
        if made is None:
            made = list(known)
            if drafts is not None:
                drafts[id(made)] = made
        made[self.start : end] = [*inner, *self.items]
        return made

    def _apply_fields(self, before: object, drafts: dict[int, list[Any]] | None) -> dict[str, Any]:
        if not isinstance(before, dict):
            raise DeltaError("A step changes an object that is not there")
        known = cast("dict[str, Any]", before)
        changed = {name: each.apply(known.get(name), drafts) for name, each in self.fields.items()}
        kept = {name: value for name, value in known.items() if name not in self.removed}
        return {**kept, **changed}


def find_delta(before: Any, after: Any, depth: int = 0) -> Delta | None:
    """Return how a value differs from the one before it; None if it is the same."""
    if before is after:
        return None
    old, new = _fields_of(before), _fields_of(after)
    if depth < _MAX_DEPTH:
        if old is not None and new is not None and type(before) is type(after):
            return _compare_fields(old, new, depth)
        if isinstance(before, list | tuple) and isinstance(after, list | tuple):
            sequences = cast("tuple[Sequence[Any], Sequence[Any]]", (before, after))
            return _compare_items(*sequences, depth)
    return None if before == after else Delta(whole=(after,))


def _compare_fields(old: Mapping[str, Any], new: Mapping[str, Any], depth: int) -> Delta | None:
    changed: dict[str, Delta] = {}
    for name, value in new.items():
        found = Delta(whole=(value,))
        if name in old:
            found = find_delta(old[name], value, depth + 1)
        if found is not None:
            changed[name] = found
    removed = tuple(name for name in old if name not in new)
    return Delta(fields=changed, removed=removed) if changed or removed else None


def _compare_items(old: Sequence[Any], new: Sequence[Any], depth: int) -> Delta | None:
    """Return the shortest middle part that differs."""
    shorter = min(len(old), len(new))
    start = _shared_length(old, new, shorter)
    stop = _shared_length(old[start:][::-1], new[start:][::-1], shorter - start)
    if start + stop == len(old) == len(new):
        return None
    items, inner = tuple(new[start : len(new) - stop]), None
    if len(items) == 1 and len(old) == len(new):
        inner = find_delta(old[start], items[0], depth + 1)
    if inner is None or inner.whole:
        return Delta(start=start, items=items, stop=stop)
    return Delta(start=start, inner=inner, stop=stop)


def _shared_length(first: Sequence[Any], second: Sequence[Any], most: int) -> int:
    """Return how many items both begin with; an item that is equal but another one counts too."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (old, new) in pairs if old is not new and old != new), most)


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, dict):
        found = cast("dict[Any, Any]", value)
        return found if all(isinstance(name, str) for name in found) else None
    if not is_dataclass(value) or isinstance(value, type):
        return None
    names = (each.name for each in fields(value) if not each.name.startswith("_"))
    return {name: getattr(value, name) for name in names}


def _item(items: Sequence[Any], place: int) -> object:
    if not 0 <= place < len(items):
        raise DeltaError("A step changes an item that is not there")
    return items[place]
