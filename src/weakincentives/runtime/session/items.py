"""A persistent (immutable) sequence with structural sharing and O(1) append.

A value is a shared list and a length. The owner of the newest value appends to the list and
gets a value that is one longer; every earlier value still sees only its own length. Anyone
else, or the owner of an earlier value, appends to a copy.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

KeyOf: TypeAlias = Callable[[Any], Hashable]


class _Index:
    """The position of the last item with each key, in the indexed part of a list."""

    __slots__ = ("positions", "size")

    def __init__(self) -> None:
        self.positions: dict[Hashable, int] = {}
        self.size = 0

    def copy(self) -> "_Index":
        copy = _Index()
        copy.positions, copy.size = self.positions.copy(), self.size
        return copy


class Items(Generic[T]):
    """An immutable sequence; the `owner` of a value may append in place.

    An owner must append from one thread at a time.
    """

    __slots__ = ("_indexes", "_length", "_list", "_owner", "_tuple")

    def __init__(
        self, shared: list[T], length: int, owner: object, indexes: dict[KeyOf, _Index]
    ) -> None:
        """Wrap the first `length` items of a list to which its owner may append."""
        self._list = shared
        self._length = length
        self._owner = owner
        self._indexes = indexes
        self._tuple: tuple[T, ...] | None = None

    def __len__(self) -> int:
        """Return the number of items."""
        return self._length

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items."""
        return iter(self.as_tuple())

    def latest(self) -> T | None:
        """Return the last item; None if there is none."""
        return self._list[self._length - 1] if self._length else None

    def as_tuple(self) -> tuple[T, ...]:
        """Return the items as a tuple, which is cached."""
        if self._tuple is None:
            self._tuple = tuple(self._list[: self._length])
        return self._tuple

    def with_item(self, item: T, owner: object) -> "Items[T]":
        """Return a sequence with `item` appended."""
        if not self._can_append_in_place(owner):
            return create_items([*self._list[: self._length], item], owner)
        self._list.append(item)
        return Items(self._list, self._length + 1, owner, self._indexes)

    def with_item_at(self, position: int, item: T, key_of: KeyOf, owner: object) -> "Items[T]":
        """Return a sequence with `item` at `position`, in place of one with the same key."""
        copy = self._list[: self._length]
        copy[position] = item
        has_index = self._can_append_in_place(owner) and key_of in self._indexes
        indexes = {key_of: self._indexes[key_of].copy()} if has_index else {}
        return Items(copy, len(copy), owner, indexes)

    def without(self, position: int, owner: object) -> "Items[T]":
        """Return a sequence without the item at `position`."""
        copy = self._list[: self._length]
        del copy[position]
        return Items(copy, len(copy), owner, {})

    def position(self, key_of: KeyOf, key: Hashable, owner: object) -> int | None:
        """Return the position of the last item with a key; None if there is none."""
        if self._can_append_in_place(owner):
            return self._index_by(key_of).get(key)
        for position in range(self._length - 1, -1, -1):
            if key_of(self._list[position]) == key:
                return position
        return None

    def shared_length(self, other: "Items[T]") -> int:
        """Return how many items at the beginning are the same objects as in `other`."""
        shorter = min(len(self), len(other))
        if self._list is other._list:  # noqa: SLF001 # of the same class
            return shorter
        pairs = zip(self.as_tuple(), other.as_tuple(), strict=False)
        return next((at for at, (one, two) in enumerate(pairs) if one is not two), shorter)

    def _can_append_in_place(self, owner: object) -> bool:
        return self._owner is owner and len(self._list) == self._length

    def _index_by(self, key_of: KeyOf) -> dict[Hashable, int]:
        index = self._indexes.setdefault(key_of, _Index())
        for position in range(index.size, self._length):
            index.positions[key_of(self._list[position])] = position
            index.size = position + 1
        return index.positions


def create_items(items: Iterable[T], owner: object = None) -> Items[T]:
    """Return a new sequence of `items`; `owner` may append to it in place."""
    copy = list(items)
    return Items(copy, len(copy), owner, {})
