"""Session snapshots: all slices at one moment, as a value and serialized as JSON.

The JSON names the type of each slice. The loader looks these names up among the types that
the caller passes and those of this package: nothing that the data names is imported or called.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.posix import check_time
from weakincentives.runtime.events import PromptExecuted, PromptRendered, ToolInvoked
from weakincentives.runtime.session.reducers import Items, check_slice_type, create_items
from weakincentives.serde import SerdeError, convert, decode, encode

FORMAT = "wink-session"
VERSION = 1
_BATCH_SIZE = 64  # items encoded at once

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


class VersionError(SnapshotFormatError):
    """Data has another version of the format."""


class UnknownTypeError(SnapshotFormatError):
    """A slice has an unknown type."""

    def __init__(self, name: str) -> None:
        """Name the type as in the data."""
        super().__init__(f"Slice type is not among those given: {name!r}")
        self.type_name = name


class Slices(Mapping[type[Any], tuple[Any, ...]]):
    """The items of each slice by type, converted to tuples on access."""

    def __init__(self, items: Mapping[type[Any], Items[Any]]) -> None:
        """Wrap `items`, as the session stores them."""
        self.items_by_type: Mapping[type[Any], Items[Any]] = items

    def __getitem__(self, kind: type[Any]) -> tuple[Any, ...]:
        """Return the items of one slice."""
        return self.items_by_type[kind].as_tuple()

    def __iter__(self) -> Iterator[type[Any]]:
        """Iterate over the types."""
        return iter(self.items_by_type)

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.items_by_type)

    def __repr__(self) -> str:
        """Return the types and their numbers of items."""
        counts = (f"{kind.__qualname__}: {len(each)}" for kind, each in self.items_by_type.items())
        return f"Slices({', '.join(counts)})"


LoadedSlices: TypeAlias = tuple[Slices, frozenset[type[Any]]]
"""Typed slices, and the types of those that are logs."""


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
    def items(self) -> Mapping[type[Any], Items[Any]]:
        """The items as a session stores them."""
        if isinstance(self.slices, Slices):
            return self.slices.items_by_type
        return {kind: create_items(each) for kind, each in self.slices.items()}

    def to_json(self) -> str:
        """Serialize the snapshot as JSON.

        Raises:
            SerdeError: An item contains a value that JSON cannot represent.
        """
        return b"".join(encode_snapshot(self)).decode("utf-8", "surrogatepass")

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
        document = read_document(text)
        slices, logs = load_slices(document.stored, types)
        return cls(
            snapshot_id=document.snapshot_id,
            session_id=document.session_id,
            created_at=document.created_at,
            tag=document.tag,
            slices=slices,
            logs=logs,
        )


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """A slice as it is stored: items that are JSON values, or become some."""

    log: bool
    items: Sequence[Any]


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it is stored, with its slices by the names of their types."""

    session_id: UUID
    parent_id: UUID | None
    created_at: datetime
    tags: Mapping[str, str]
    slices: Mapping[str, StoredSlice]


@dataclass(frozen=True, slots=True)
class _NamedSlice:
    type: str
    log: bool
    items: list[Any]


@dataclass(frozen=True, slots=True)
class SessionDocument:
    """The JSON of a snapshot, whose items are JSON values."""

    format: str
    version: int
    snapshot_id: UUID
    session_id: UUID
    created_at: datetime
    tag: str | None
    slices: list[_NamedSlice]

    @property
    def stored(self) -> dict[str, StoredSlice]:
        """The slices by the names of their types."""
        return {each.type: StoredSlice(each.log, each.items) for each in self.slices}


def store_slices(snapshot: Snapshot) -> dict[str, StoredSlice]:
    """Return slices as they are stored, sorted by name; unknown data is in its own slices again."""
    found = {
        type_name(kind): StoredSlice(kind in snapshot.logs, items)
        for kind, items in snapshot.slices.items()
        if kind is not UnknownItem
    }
    unknown: dict[str, list[UnknownItem]] = {}
    for each in snapshot.slices.get(UnknownItem, ()):
        unknown.setdefault(each.type, []).append(each)
    for name, items in unknown.items():
        known = found[name].items if name in found else ()
        found[name] = StoredSlice(items[0].log, (*known, *(each.data for each in items)))
    return dict(sorted(found.items()))


def encode_snapshot(snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the JSON of a snapshot in pieces.

    Raises:
        SerdeError: An item contains a value that JSON cannot represent.
    """
    head = {
        "format": FORMAT,
        "version": VERSION,
        "snapshot_id": snapshot.snapshot_id,
        "session_id": snapshot.session_id,
        "created_at": snapshot.created_at,
        "tag": snapshot.tag,
    }
    _check_types(snapshot)
    yield encode(head)[:-1] + b',"slices":['
    comma = b""
    for name, each in store_slices(snapshot).items():
        start = {"type": name, "log": each.log}
        yield comma + encode(start)[:-1] + b',"items":['
        yield from _encode_items(name, each.items)
        yield b"]}"
        comma = b","
    yield b"]}"


def _check_types(snapshot: Snapshot) -> None:
    for kind, items in snapshot.slices.items():
        for each in items:
            if type(each) is not kind:  # a subclass could not be loaded
                name = kind.__qualname__
                raise SerdeError(f"A slice of {name} cannot store a subclass: {each!r}")


def _encode_items(name: str, items: Sequence[Any]) -> Iterator[bytes]:
    for start in range(0, len(items), _BATCH_SIZE):
        check_time("Dump")
        try:
            data = encode(items[start : start + _BATCH_SIZE])
        except SerdeError as error:
            raise SerdeError(f"Slice {name!r}: {error}") from error
        yield (b"," if start else b"") + data[1:-1]


def load_slices(
    stored: Mapping[str, StoredSlice],
    types: Types = (),
    find: Callable[[str], type[Any] | None] = lambda _name: None,
    unknown: Unknown = "error",
) -> LoadedSlices:
    """Return slices whose items are JSON values as typed ones.

    `find` looks up types that are not among `types`.

    Returns:
        The slices, and the types of those that are logs.

    Raises:
        SnapshotFormatError: A type is unknown or appears twice, or an item does not match it.
    """
    registry = _build_registry(types)
    slices: dict[type[Any], Items[Any]] = {}
    logs: set[type[Any]] = set()
    others: list[UnknownItem] = []
    for name, each in stored.items():
        kind = registry.get(name) or find(name)
        if kind in slices:
            raise SnapshotFormatError(f"Slice type appears twice: {name!r}")
        try:
            if kind is None:
                raise UnknownTypeError(name)
            slices[kind] = create_items(_load_items(name, each.items, kind))
        except SnapshotFormatError:
            if unknown == "error":
                raise
            others += [UnknownItem(name, item, each.log) for item in each.items]
            continue
        if each.log:
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


def read_document(text: str | bytes) -> SessionDocument:
    """Return the JSON of a snapshot that `to_json` wrote, whatever types it names.

    Raises:
        SnapshotFormatError: It is not a snapshot, has another version, or a type twice.
    """
    try:
        data = decode(text, object)
        check_version(data, FORMAT, VERSION, "Session snapshot")
        document = convert(data, SessionDocument)
    except SerdeError as error:
        raise SnapshotFormatError(f"Not a session snapshot: {error}") from error
    if len(document.stored) != len(document.slices):
        raise SnapshotFormatError("Slice type appears twice")
    if document.created_at.tzinfo is None:
        raise SnapshotFormatError(f"Date has no time zone: {document.created_at.isoformat()!r}")
    return document


def check_version(data: object, wanted: str, version: int, what: str) -> None:
    """Check that stored data has this format and version; `what` names it.

    Raises:
        SnapshotFormatError: It has another one.
    """
    match data:
        case {"format": str(name), "version": int(found)} if name == wanted:
            if found != version:
                raise VersionError(f"{what} has version {found!r}, this program reads {version!r}")
        case _:
            raise SnapshotFormatError(f"Not a {what.lower()}: no format {wanted!r} and version")


def _load_items(name: str, items: Sequence[Any], kind: type[Any]) -> tuple[Any, ...]:
    several: Any = tuple[kind, ...]
    try:
        return convert(items, several)
    except SerdeError as error:
        raise SnapshotFormatError(f"Slice {name!r}: {error}") from error
