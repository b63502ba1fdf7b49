"""Session snapshots: all slices at one moment, as a value and serialized as JSON.

The JSON names the type of each slice. The loader looks these names up among the types that
the caller passes and those of this package: nothing that the data names is imported or called.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.runtime.events import PromptExecuted, PromptRendered, ToolInvoked
from weakincentives.runtime.session.items import Items, create_items
from weakincentives.runtime.session.state import CapturedState
from weakincentives.runtime.session.store import check_slice_type
from weakincentives.serde import SerdeError, convert, decode, encode

FORMAT = "wink-session"
VERSION = 1

KindT = TypeVar("KindT", bound=type[Any])

_KNOWN: list[type[Any]] = [FilesystemSnapshot, PromptExecuted, PromptRendered, ToolInvoked]


def register_type(kind: KindT) -> KindT:
    """Let snapshots load slices of a type in a higher layer of this package."""
    _KNOWN.append(kind)
    return kind


Types: TypeAlias = Iterable[type[Any]] | Mapping[str, type[Any]]
"""Types of slices, or types by their names in stored data."""
Unknown: TypeAlias = Literal["error", "data"]
"""What becomes of a slice whose type is unknown: an error, or `UnknownItem`s."""


@register_type
@dataclass(frozen=True, slots=True)
class UnknownItem:
    """An item of a slice whose type is not known here; it is stored again as it was.

    Args:
        type: The name of the type in the data.
        data: The item, as JSON values.
        log: Whether the slice is a log.
    """

    type: str
    data: Any
    log: bool = False


class SnapshotFormatError(WinkError, ValueError):
    """Data is not a session snapshot that this version can load."""


class UnknownTypeError(SnapshotFormatError):
    """A slice has an unknown type."""

    def __init__(self, name: str) -> None:
        """Name the type as in the data."""
        super().__init__(f"Slice type is not among those given: {name!r}")
        self.type_name = name


class Slices(Mapping[type[Any], tuple[Any, ...]]):
    """The items of each slice by type, converted to tuples on access."""

    def __init__(self, items: Mapping[type[Any], Items[Any]]) -> None:
        """Wrap `items`."""
        self._items = items

    def __getitem__(self, kind: type[Any]) -> tuple[Any, ...]:
        """Return the items of one slice."""
        return self._items[kind].as_tuple()

    def __iter__(self) -> Iterator[type[Any]]:
        """Iterate over the types."""
        return iter(self._items)

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self._items)

    def __repr__(self) -> str:
        """Return the types and their numbers of items."""
        counts = (f"{kind.__qualname__}: {len(each)}" for kind, each in self._items.items())
        return f"Slices({', '.join(counts)})"

    @property
    def items_by_type(self) -> Mapping[type[Any], Items[Any]]:
        """The items as the session stores them."""
        return self._items


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All slices of a session at one moment."""

    snapshot_id: UUID
    session_id: UUID
    created_at: datetime
    tag: str | None = None
    slices: Mapping[type[Any], tuple[Any, ...]] = field(hash=False)
    logs: frozenset[type[Any]] = frozenset()
    """The types of the slices that are logs."""

    def __str__(self) -> str:
        """Return the tag and the id."""
        return f"{self.tag or 'snapshot'} ({self.snapshot_id})"

    @property
    def captured_state(self) -> CapturedState:
        """The state that a session restores."""
        if isinstance(self.slices, Slices):
            return CapturedState(self.slices.items_by_type, self.logs)
        return CapturedState(
            {kind: create_items(each) for kind, each in self.slices.items()}, self.logs
        )

    def to_json(self) -> str:
        """Serialize the snapshot as JSON.

        Raises:
            SerdeError: An item contains a value that JSON cannot represent.
        """
        document = _Document(
            format=FORMAT,
            version=VERSION,
            snapshot_id=self.snapshot_id,
            session_id=self.session_id,
            created_at=self.created_at,
            tag=self.tag,
            slices=[
                _StoredSlice(each.name, each.is_log, each.check())
                for each in list_slices(self.slices, self.logs)
            ],
        )
        return encode(document).decode("utf-8", "surrogatepass")

    @classmethod
    def from_json(
        cls, text: str | bytes, types: Iterable[type[Any]] | Mapping[str, type[Any]] = ()
    ) -> "Snapshot":
        """Return the snapshot that `to_json` wrote.

        Args:
            text: The JSON.
            types: The types of the slices, in addition to those of this package; or types by
                their names in the data, if a type has moved.

        Raises:
            SnapshotFormatError: It is not a snapshot, has another version, or has a slice
                whose type is not among `types`.
        """
        return read_snapshot(text, types)


class NamedSlice(NamedTuple):
    """A slice as it is stored, under the name of its type; `kind` is None for unknown data."""

    name: str
    kind: type[Any] | None
    is_log: bool
    items: tuple[Any, ...]

    def check(self) -> list[Any]:
        """Return the items.

        Raises:
            SerdeError: One of them is of a subclass, which could not be loaded.
        """
        for each in self.items if self.kind is not None else ():
            if type(each) is not self.kind:
                raise SerdeError(
                    f"A slice of {self.name.partition(':')[2]} cannot store a subclass: {each!r}"
                )
        return list(self.items)


def list_slices(
    slices: Mapping[type[Any], tuple[Any, ...]], logs: Collection[type[Any]]
) -> list[NamedSlice]:
    """Return slices as they are stored, sorted by name; unknown data is in its own slices again."""
    found = {
        type_name(kind): NamedSlice(type_name(kind), kind, kind in logs, items)
        for kind, items in slices.items()
        if kind is not UnknownItem
    }
    for item in slices.get(UnknownItem, ()):
        before = found.get(item.type)
        items = (item.data,) if before is None else (*before.items, item.data)
        found[item.type] = NamedSlice(item.type, None, item.log, items)
    return [found[name] for name in sorted(found)]


@dataclass(frozen=True, slots=True)
class _StoredSlice:
    type: str
    log: bool
    items: list[Any]


@dataclass(frozen=True, slots=True)
class _Document:
    format: str
    version: int
    snapshot_id: UUID
    session_id: UUID
    created_at: datetime
    tag: str | None
    slices: list[_StoredSlice]


def read_snapshot(
    text: str | bytes,
    types: Types = (),
    *,
    find: Callable[[str], type[Any] | None] = lambda _name: None,
    unknown: Unknown = "error",
) -> Snapshot:
    """Return the snapshot that `to_json` wrote, like `Snapshot.from_json`.

    `find` looks up types that are not among `types`.
    """
    registry = _build_registry(types)
    document = _parse_document(text)
    stored = [(each.type, each.log, each.items) for each in document.slices]
    slices, logs = load_slices(stored, registry, find=find, unknown=unknown)
    return Snapshot(
        snapshot_id=document.snapshot_id,
        session_id=document.session_id,
        created_at=document.created_at,
        tag=document.tag,
        slices=slices,
        logs=logs,
    )


def load_slices(
    stored: Iterable[tuple[str, bool, list[Any]]],
    types: Types = (),
    *,
    find: Callable[[str], type[Any] | None],
    unknown: Unknown,
) -> tuple[Slices, frozenset[type[Any]]]:
    """Return slices from their names, whether each is a log, and their items as JSON values.

    Returns:
        The slices, and the types of those that are logs.

    Raises:
        SnapshotFormatError: A type is unknown or appears twice, or an item does not match it.
    """
    registry = _build_registry(types)
    slices: dict[type[Any], Items[Any]] = {}
    logs: set[type[Any]] = set()
    others: list[UnknownItem] = []
    for name, log, items in stored:
        kind = registry.get(name) or find(name)
        if kind in slices:
            raise SnapshotFormatError(f"Slice type appears twice: {name!r}")
        try:
            if kind is None:
                raise UnknownTypeError(name)
            slices[kind] = create_items(_load_items(name, items, kind))
        except SnapshotFormatError:
            if unknown == "error":
                raise
            others += [UnknownItem(name, each, log) for each in items]
            continue
        if log:
            logs.add(kind)
    if others:
        slices[UnknownItem] = create_items(tuple(others))
    return Slices(slices), frozenset(logs)


def find_imported_type(name: str) -> type[Any] | None:
    """Return the frozen dataclass with this name in a module that is already imported, or None.

    Nothing is imported and no attribute is computed: only names that the module and its
    classes define are found.
    """
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for segment in path.split("."):
        # getattr could run code
        found = getattr(found, "__dict__", {}).get(segment)
        if not isinstance(found, type):
            return None
    try:
        check_slice_type(found)
    except TypeError:
        return None
    return found if isinstance(found, type) and type_name(found) == name else None


def type_name(kind: type[Any]) -> str:
    """Return the name of a type in stored data."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _build_registry(types: Iterable[type[Any]] | Mapping[str, type[Any]]) -> dict[str, type[Any]]:
    found = {type_name(kind): kind for kind in _KNOWN}
    if isinstance(types, Mapping):
        given = list(cast("Mapping[str, type[Any]]", types).items())
    else:
        given = [(type_name(each), each) for each in types]
    for name, kind in given:
        if found.setdefault(name, kind) is not kind:
            raise ValueError(f"Two types have the same name: {name!r}")
    return found


def _parse_document(text: str | bytes) -> _Document:
    try:
        data = decode(text, object)
        _check_version(data)
        document = convert(data, _Document)
    except SerdeError as error:
        raise SnapshotFormatError(f"Not a session snapshot: {error}") from error
    if document.created_at.tzinfo is None:
        raise SnapshotFormatError(f"Date has no time zone: {document.created_at.isoformat()!r}")
    return document


def _check_version(data: object) -> None:
    match data:
        case {"format": str(name), "version": int(version)} if name == FORMAT:
            if version != VERSION:
                raise SnapshotFormatError(
                    f"Session snapshot has version {version!r}, this program reads {VERSION!r}"
                )
        case _:
            raise SnapshotFormatError(f"Not a session snapshot: no format {FORMAT!r} and version")


def _load_items(name: str, items: list[Any], kind: type[Any]) -> tuple[Any, ...]:
    several: Any = tuple[kind, ...]
    try:
        return convert(items, several)
    except SerdeError as error:
        raise SnapshotFormatError(f"Slice {name!r}: {error}") from error
