"""A dictionary whose copies share: what has changed lies over what has not.

Copying a large one costs the changes since its last rebuild and not the entries, so
a directory of a thousand names can be kept in a hundred states for little memory.
"""

from typing import Generic, TypeVar

V = TypeVar("V")

_SMALL = 64  # copied whole: for few names nothing is cheaper
_MAX_CHANGES = 32  # with an eighth of the entries, how many changes before a rebuild


class LayeredDict(Generic[V]):
    """Names and values; a copy is cheap, and neither side sees the other's changes."""

    __slots__ = ("_base", "_changes", "_owned")

    def __init__(self) -> None:
        """Start empty."""
        self._base: dict[str, V] = {}
        self._changes: dict[str, V | None] = {}  # None: removed
        self._owned = True

    def get(self, name: str) -> V | None:
        """Return the value of `name`, or None."""
        if self._changes and name in self._changes:
            return self._changes[name]
        return self._base.get(name)

    def __setitem__(self, name: str, value: V) -> None:
        """Set the value of `name`."""
        if self._owned:
            self._base[name] = value
        else:
            self._change(name, value)

    def __delitem__(self, name: str) -> None:
        """Remove `name`, which is there."""
        if self._owned:
            del self._base[name]
        else:
            self._change(name, None)

    def items(self) -> list[tuple[str, V]]:
        """Return every name with its value."""
        if not self._changes:
            return list(self._base.items())
        return list(self._merged().items())

    def copy(self) -> "LayeredDict[V]":
        """Return another one with the same entries; this one must not change any more."""
        twin: LayeredDict[V] = LayeredDict()
        if self._owned and len(self._base) <= _SMALL:
            twin._base = self._base.copy()
        else:
            twin._base = self._base
            twin._changes = self._changes.copy()
            twin._owned = False
        return twin

    def _change(self, name: str, value: V | None) -> None:
        self._changes[name] = value
        if len(self._changes) > _MAX_CHANGES + len(self._base) // 8:
            self._base = self._merged()
            self._changes = {}
            self._owned = True

    def _merged(self) -> dict[str, V]:
        merged = self._base.copy()
        for name, value in self._changes.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = value
        return merged
