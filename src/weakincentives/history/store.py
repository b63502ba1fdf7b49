"""A history on disk: the log of its steps, and the objects of their files.

It is a directory: a git repository, which may also have the snapshots of the workspace, and in
it the log `steps`. Or it is one file, made to be sent: a log that has a pack with all objects too.
A step has small new objects in its own record, so one append makes it durable; large ones are in a
pack before the step is appended. The format is specified in `docs/reference/history.md`.
"""

import fcntl
import os
import struct
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self
from uuid import uuid4

from weakincentives import gitstore
from weakincentives.errors import SnapshotError
from weakincentives.history.log import LogError, LogRecord, RecordLog
from weakincentives.history.steps import TimelineError
from weakincentives.posix import is_locked, lock

SIGNATURE = b"wink-steps 2\n"
"""The first bytes of the log; the number is the version of the format."""
HEADER, STEP, PACK, INDEX, END = b"H", b"S", b"P", b"I", b"E"
PIECE_SIZE = 4 * 1024 * 1024
"""Bytes of a pack in a record; only the last piece is shorter."""
_MAX_EMBEDDED = 1024 * 1024  # bytes of new objects in a record
_STEPS = "steps"
_USERS = "steps.lock"
_LENGTH = struct.Struct(">I")
_OBJECT = struct.Struct(">20sI")  # id and size of an object in a record
_MAX_PAYLOADS = 4  # records that are held in memory
_MAX_COMPUTED = 64 * 1024 * 1024  # bytes of trees in memory
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class StepObjects:
    """The new content of one step: what is small is for its record, the rest in a pack."""

    def __init__(
        self, begin_pack: Callable[[], gitstore.PackTransaction], is_known: Callable[[str], bool]
    ) -> None:
        """Store what is not known.

        Args:
            begin_pack: Called if there is too much for a record.
            is_known: Returns whether a record has an object.
        """
        self._begin_pack = begin_pack
        self._is_known = is_known
        self.known: set[str] = set()
        """Further content that is stored already, by id."""
        self._left = _MAX_EMBEDDED
        self.embedded: dict[str, bytes] = {}
        self.packed: dict[str, None] = {}
        self.pack: gitstore.PackTransaction | None = None
        """The pack, if something is in it."""

    def __contains__(self, object_id: str) -> bool:
        """Return whether an object is stored already, or with this step."""
        is_new = object_id in self.embedded or object_id in self.packed
        return is_new or object_id in self.known or self._is_known(object_id)

    def add(self, data: bytes) -> str:
        """Add a blob; return its id."""
        object_id = gitstore.hash_object("blob", data)
        if object_id in self:
            return object_id
        if len(data) <= self._left:
            self._left -= len(data)
            self.embedded[object_id] = data
        else:
            self.packed[self._open().add("blob", data)] = None
        return object_id

    def add_large(self, size: int, chunks: Iterable[bytes]) -> str:
        """Add a blob that is not held in memory; return its id.

        Raises:
            ValueError: The chunks have another total size.
        """
        object_id = self._open().add_blob(size, chunks)
        self.packed[object_id] = None
        return object_id

    def begin(self) -> gitstore.PackTransaction:
        """Return the pack; from now on everything is in it."""
        self._left = -1
        return self._open()

    def _open(self) -> gitstore.PackTransaction:
        if self.pack is None:
            self.pack = self._begin_pack()
        return self.pack

    def take_pack(self) -> gitstore.PackTransaction:
        """Return the pack, to be stored by the caller."""
        pack = self.begin()
        self.pack = None
        return pack

    def close(self) -> None:
        """Drop what was not stored; idempotent."""
        if self.pack is not None:
            self.pack.__exit__(None, None, None)


class _ObjectPlace(NamedTuple):
    """Where an object is: the record, and the bytes in its payload."""

    offset: int
    start: int
    size: int


class StoredStep(NamedTuple):
    """A step as it is in the log: its number, and its JSON."""

    number: int
    data: bytes


def has_steps(path: Path) -> bool:
    """Return whether there is a history at a path, and not only the snapshots of a workspace."""
    return steps_file(path).exists()


def steps_file(path: Path) -> Path:
    """Return the file that grows with every step of a history."""
    return path / _STEPS if path.is_dir() else path


class HistoryStore:
    """The log and the objects of a history: a directory, or a file that can only be read."""

    def __init__(self, path: Path, *, read_only: bool = True, durable: bool = True) -> None:
        """Open a history; `create` makes a new one.

        Raises:
            TimelineError: It is not a history, or has another version.
            OSError: It cannot be read.
        """
        self.path: Path = path
        self.header: bytes | None = None
        """The header, once it was read."""
        self.is_complete: bool = path.is_dir()
        """Whether a file has all its steps, so far as it was read; a directory may grow."""
        self.computed: dict[str, tuple[str, bytes]] = {}
        """Objects that follow from others and are not stored, by id: kind and content."""
        self._computed_size = 0
        self._stack = ExitStack()
        self._places: dict[str, _ObjectPlace] = {}
        self._payloads: OrderedDict[int, bytes] = OrderedDict()
        self._pieces: dict[bytes, list[tuple[int, int]]] = {PACK: [], INDEX: []}
        self._objects: gitstore.ObjectStore | None = None
        self.repository: gitstore.Repository | None = None
        with self._stack, _translate_errors():
            if path.is_symlink():
                raise TimelineError(f"History is a link, which is not followed: {str(path)!r}")
            log = steps_file(path)
            if path.is_dir():
                if read_only:
                    log.lstat()  # before the repository, which may belong to a filesystem only
                self.repository = gitstore.Repository.open(path, durable=durable)
                self._stack.callback(self.repository.close)
            if not read_only:  # by a shared lock, others know of the recording
                descriptor = os.open(path / _USERS, _LOCK_FILE, 0o600)
                self._stack.callback(os.close, descriptor)
                lock(descriptor, fcntl.LOCK_SH)
            self.log: RecordLog = self._stack.enter_context(
                RecordLog(log, SIGNATURE, durable=durable, read_only=read_only)
            )
            self._stack = self._stack.pop_all()

    @classmethod
    def create(cls, path: Path, root: Path, *, durable: bool) -> Self:
        """Return a new history in a directory, which may have the snapshots of `root` already.

        Raises:
            FileExistsError: It has steps already, or is a file.
            TimelineError: It is a directory of somebody else.
        """
        if os.path.lexists(path / _STEPS) or path.is_file():
            raise FileExistsError(f"History exists already: {str(path)!r}")
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        with _translate_errors():
            gitstore.Repository.create(path, root=root, durable=durable).close()
        return cls(path, read_only=False, durable=durable)

    @property
    def is_recording(self) -> bool:
        """Whether a process is recording to it."""
        return is_locked(self.path / _USERS)

    @property
    def objects(self) -> gitstore.ObjectStore:
        """Everything that the steps refer to.

        Raises:
            ObjectError: The pack of a file is damaged.
        """
        if self._objects is None:
            base = self._open_pack() if self.repository is None else self.repository.objects
            self._objects = gitstore.LayeredObjects(base, self._find)
        return self._objects

    def read_new(self) -> Iterator[StoredStep]:
        """Yield the steps that other processes have appended since the last call."""
        for record in self.log.read_new():
            if record.kind == HEADER:
                self.header = self.header or record.payload
            elif record.kind == STEP:
                yield StoredStep(record.number, self._index(record))
            elif record.kind == END:
                self.is_complete = True
            elif record.kind in self._pieces:
                self._pieces[record.kind].append((record.offset, len(record.payload)))

    def append_header(self, data: bytes) -> None:
        """Append the header of a new history."""
        self.log.append(HEADER, lambda _: data)

    def append(self, make: Callable[[int], bytes], objects: StepObjects | None = None) -> int:
        """Append a step with its new content; `make` returns the step for its number.

        Raises:
            LogError: It is too large.
            OSError: It could not be written.
        """
        if objects is not None and objects.pack is not None:
            entries = [gitstore.TreeEntry(each, gitstore.FILE, each) for each in objects.packed]
            pack = objects.take_pack()
            self.keep(pack.add("tree", gitstore.encode_tree(entries)), pack)
        embedded = {} if objects is None else objects.embedded
        payloads: list[bytes] = []

        def encode(number: int) -> bytes:
            payloads.append(encode_step(make(number), embedded))
            return payloads[0]

        number = self.log.append(STEP, encode)
        self._index(LogRecord(STEP, number, payloads[0], self.log.written_at))
        return number

    def begin_objects(self) -> StepObjects:
        """Return where the content of the next step is collected."""
        assert self.repository is not None
        begin_pack = self.repository.objects.begin_pack
        return StepObjects(begin_pack, self._places.__contains__)

    def compute(self, kind: str, data: bytes) -> str:
        """Hold an object that is not stored, to be read like the others; return its id."""
        object_id = gitstore.hash_object(kind, data)
        if object_id not in self.computed:
            self.computed[object_id] = kind, data
            self._computed_size += len(data)
        return object_id

    def trim(self, tree: str) -> bool:
        """Forget the computed objects that a tree does not need, if they are large together."""
        if self._computed_size <= _MAX_COMPUTED:
            return False
        before, self.computed, self._computed_size = self.computed, {}, 0
        pending = [tree]
        while pending:
            object_id = pending.pop()
            if object_id in before and object_id not in self.computed:
                kind, data = before[object_id]
                self.compute(kind, data)
                pending += (
                    [each.id for each in gitstore.decode_tree(data)] if kind == "tree" else []
                )
        return True

    def keep(self, tree: str, pack: gitstore.PackTransaction) -> None:
        """Store a pack, and keep what a tree refers to."""
        assert self.repository is not None
        with pack:
            self.repository.keep(f"step-{uuid4().hex}", tree, pack)

    def close(self) -> None:
        """Close the files; idempotent."""
        self._stack.close()

    def _find(self, object_id: str) -> tuple[str, int, bytes] | None:
        """Return an object that is computed, or in the record of a step."""
        if object_id in self.computed:
            kind, data = self.computed[object_id]
            return kind, len(data), data
        place = self._places.get(object_id)
        if place is None:
            return None
        try:
            payload = self._payload(place.offset)
        except LogError as error:
            raise gitstore.ObjectError(f"Object is damaged: {object_id!r}: {error}") from error
        return "blob", place.size, payload[place.start : place.start + place.size]

    def _payload(self, offset: int) -> bytes:
        found = self._payloads.get(offset)
        if found is None:
            found = self._payloads[offset] = self.log.read(offset).payload
            if len(self._payloads) > _MAX_PAYLOADS:
                self._payloads.popitem(last=False)
        return found

    def _index(self, record: LogRecord) -> bytes:
        """Remember where the objects of a step are; return its JSON."""
        payload = record.payload
        if len(payload) < _LENGTH.size:
            return b""
        at = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
        data = payload[_LENGTH.size : at]
        while at + _OBJECT.size <= len(payload):
            key, size = _OBJECT.unpack_from(payload, at)
            at += _OBJECT.size
            self._places.setdefault(key.hex(), _ObjectPlace(record.offset, at, size))
            at += size
        return data

    def _open_pack(self) -> gitstore.ObjectStore:
        """Return the objects in the pack of a file."""
        pieces = self._pieces[PACK]
        index = b"".join(self.log.read(offset).payload for offset, _ in self._pieces[INDEX])
        if any(size != PIECE_SIZE for _, size in pieces[:-1]):
            raise gitstore.ObjectError(f"The pack has lost a part: {str(self.path)!r}")
        size = sum(size for _, size in pieces)
        try:
            return gitstore.PackedObjects(
                gitstore.PackReader(self._read_pack, size, index, str(self.path))
            )
        except gitstore.PackError as error:
            raise gitstore.ObjectError(f"The files of the steps are damaged: {error}") from error

    def _read_pack(self, offset: int, size: int) -> bytes:
        number, start = divmod(offset, PIECE_SIZE)
        return self._payload(self._pieces[PACK][number][0])[start : start + size]


@contextmanager
def _translate_errors() -> Generator[None, None, None]:
    """Turn errors of the log and of the repository into those of a timeline."""
    try:
        yield
    except (LogError, SnapshotError) as error:
        raise TimelineError(str(error).replace("wink-steps file", "timeline")) from error


def encode_step(step: bytes, embedded: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """Return the payload of a record: a step and the objects in it."""
    parts = [_LENGTH.pack(len(step)), step]
    for object_id, data in embedded.items():
        parts += [_OBJECT.pack(bytes.fromhex(object_id), len(data)), data]
    return b"".join(parts)
