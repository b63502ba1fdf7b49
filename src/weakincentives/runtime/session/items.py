"""Items: an immutable sequence that grows in place where nobody can see it.

A value is a list and a length. Its owner appends to the list and gets a value that
is one longer; every earlier value still sees its own length. So appending costs O(1)
and keeping a value costs nothing, however long it is. Whoever is not the owner, or
holds an earlier value, appends to a copy.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

KeyOf: TypeAlias = Callable[[Any], Hashable]


class _Index:
    """Where the last item with each key is, in the part of a list that was looked at."""

    __slots__ = ("positions", "seen")

    def __init__(self) -> None:
        self.positions: dict[Hashable, int] = {}
        self.seen = 0

    def copy(self) -> "_Index":
        made = _Index()
        made.positions, made.seen = self.positions.copy(), self.seen
        return made


class Items(Generic[T]):
    """A sequence that never changes; `owner` arguments say who asks for the next one.

    An owner asks from one thread at a time.
    """

    __slots__ = ("_indexes", "_length", "_list", "_owner", "_tuple")

    def __init__(
        self, shared: list[T], length: int, owner: object, indexes: dict[KeyOf, _Index]
    ) -> None:
        """Hold the first `length` items of a list that its owner may append to."""
        self._list = shared
        self._length = length
        self._owner = owner
        self._indexes = indexes
        self._tuple: tuple[T, ...] | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return self._length

    def __iter__(self) -> Iterator[T]:
        """Iterate over them."""
        return iter(self.as_tuple())

    def latest(self) -> T | None:
        """Return the last one; None where there is none."""
        return self._list[self._length - 1] if self._length else None

    def as_tuple(self) -> tuple[T, ...]:
        """Return them as a tuple, made once."""
        if self._tuple is None:
            self._tuple = tuple(self._list[: self._length])
        return self._tuple

    def appended(self, item: T, owner: object) -> "Items[T]":
        """Return these and `item`."""
        if not self._is_newest_of(owner):
            return items_of([*self._list[: self._length], item], owner)
        self._list.append(item)
        return Items(self._list, self._length + 1, owner, self._indexes)

    def replaced(self, position: int, item: T, key_of: KeyOf, owner: object) -> "Items[T]":
        """Return these with `item` in place of one with the same key."""
        own = self._list[: self._length]
        own[position] = item
        kept = self._is_newest_of(owner) and key_of in self._indexes
        indexes = {key_of: self._indexes[key_of].copy()} if kept else {}
        return Items(own, len(own), owner, indexes)

    def without(self, position: int, owner: object) -> "Items[T]":
        """Return these but for one."""
        kept = self._list[: self._length]
        del kept[position]
        return Items(kept, len(kept), owner, {})

    def position(self, key_of: KeyOf, key: Hashable, owner: object) -> int | None:
        """Return where the last item with a key is; None where there is none."""
        if self._is_newest_of(owner):
            return self._indexed(key_of).get(key)
        for position in range(self._length - 1, -1, -1):
            if key_of(self._list[position]) == key:
                return position
        return None

    def _is_newest_of(self, owner: object) -> bool:
        return self._owner is owner and len(self._list) == self._length

    def _indexed(self, key_of: KeyOf) -> dict[Hashable, int]:
        index = self._indexes.setdefault(key_of, _Index())
        for position in range(index.seen, self._length):
            index.positions[key_of(self._list[position])] = position
            index.seen = position + 1
        return index.positions


def items_of(items: Iterable[T], owner: object = None) -> Items[T]:
    """Return `items`; `owner` may append to them in place."""
    own = list(items)
    return Items(own, len(own), owner, {})
