"""Every byte of an archive is unpacked and compared before anybody sees one."""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from weakincentives.filesystem.archive.format import (
    DEFAULT_ARCHIVE_LIMITS,
    LOCAL,
    LOCAL_SIGNATURE,
    STORED,
    ArchiveError,
    ArchiveLimits,
    ZipMember,
    decode_manifest,
    summarize,
)
from weakincentives.filesystem.archive.parallel import parallel_map
from weakincentives.filesystem.archive.tree import ArchivedFile, ArchivedFolder, ArchiveTree
from weakincentives.filesystem.archive.zip_reader import (
    ZipReader,
    damage_error,
    raw_directory,
    read_members,
)
from weakincentives.filesystem.manifest import (
    MANIFEST,
    ArchiveDocument,
    ArchiveManifest,
)
from weakincentives.posix import DEFAULT_CODEC, Codec, check_time, open_regular, shorten_path

_KEPT_BYTES = 64 * 1024 * 1024  # content that stays in memory once it has been checked
_WHOLE = 4 * 1024 * 1024  # bytes, packed or not: what is larger is unpacked piece by piece
_SPAN = 256 * 1024  # packed bytes of several entries that are read at once
_OFFSET = ZipMember._fields.index("offset")


class _Item(NamedTuple):
    """An entry, the file that it is (None: none, or the manifest), and whether that is kept."""

    member: ZipMember
    file: ArchivedFile | None
    is_kept: bool


class ArchiveVerifier:
    """One pass over the entries of an archive, in the order in which they are stored."""

    def __init__(self, reader: ZipReader, members: Iterable[ZipMember], codec: Codec) -> None:
        """Refuse entries that overlap by what they declare."""
        self._reader = reader
        self._codec = codec
        self._members = sorted(members, key=itemgetter(_OFFSET))
        free = 0
        for member in self._members:
            if member.offset < free:
                raise _overlaps(member)
            free = member.least_end
            if free > reader.end:
                raise damage_error(member, "reaches into the directory")

    def run(self, files: Mapping[str, ArchivedFile]) -> None:
        """Compare everything with what is declared; small files keep their content.

        Raises:
            ArchiveError: Something is not as it is declared.
        """
        free = 0
        with closing(parallel_map(self._verified, self._batches(files))) as verified:
            for first, end in verified:
                if first.offset < free:
                    raise _overlaps(first)
                free = end

    def _batches(self, files: Mapping[str, ArchivedFile]) -> Iterator[list[_Item]]:
        """Yield entries that lie near each other; a large one comes alone."""
        batch: list[_Item] = []
        begin = unpacked = 0
        room = _KEPT_BYTES
        for member in self._members:
            is_large = _is_large(member)
            is_far = member.least_end - begin > _SPAN or unpacked + member.size > _WHOLE
            if batch and (is_large or is_far):
                yield batch
                batch, unpacked = [], 0
            if not batch:
                begin = member.offset
            file = files.get(member.name)
            is_kept = file is not None and not is_large and member.size <= room
            if is_kept:
                room -= member.size
            batch.append(_Item(member, file, is_kept))
            unpacked += _WHOLE + 1 if is_large else member.size
        if batch:
            yield batch

    def _verified(self, batch: list[_Item]) -> tuple[ZipMember, int]:
        """Verify a batch; return its first entry, and where the last one ends."""
        check_time("Archive")
        first = batch[0].member
        if _is_large(first):
            return first, self._verify_large(first, batch[0].file)
        buffer = self._reader.range(first.offset, batch[-1].member.least_end - first.offset)
        view = memoryview(buffer)
        free = first.offset
        for member, file, is_kept in batch:
            if member.offset < free:
                raise _overlaps(member)
            start = self._start(buffer, member, member.offset - first.offset)
            free = start + member.packed_size
            if file is None:
                continue
            begin = start - first.offset
            data = self._content(member, view[begin : begin + member.packed_size])
            _compare(file, hashlib.sha256(data).hexdigest())
            file.start = start
            if is_kept:
                file.data = data
        return first, free

    def _start(self, buffer: bytes, member: ZipMember, at: int) -> int:
        """Return where the packed bytes begin after the header at `at`, which is checked."""
        name = member.name.encode()
        if len(buffer) >= at + LOCAL.size:
            fields = LOCAL.unpack_from(buffer, at)
            _, flags, method, crc, packed_size, size, _, _ = member[0:8]
            said = (flags, method, *fields[4:6], crc, packed_size, size, len(name), 0)
            is_same = fields[0] == LOCAL_SIGNATURE and fields[2:] == said
            if is_same and buffer.startswith(name, at + LOCAL.size):
                return member.offset + LOCAL.size + len(name)
        return self._reader.located(member)

    def _content(self, member: ZipMember, packed: memoryview) -> bytes:
        data = None
        if len(packed) == member.packed_size:
            is_stored = member.method == STORED
            data = bytes(packed) if is_stored else self._codec.inflate(packed, member.size)
        if data is None:
            return self._reader.read(member)  # which finds out what is wrong
        if self._codec.crc32(data) != member.crc:
            raise damage_error(member, "is damaged, its checksum is wrong")
        return data

    def _verify_large(self, member: ZipMember, file: ArchivedFile | None) -> int:
        start = self._reader.located(member)
        if file is not None:
            digest = hashlib.sha256()
            for piece in self._reader.pieces(member, start):
                digest.update(piece)
            _compare(file, digest.hexdigest())
            file.start = start
        return start + member.packed_size


def _is_large(member: ZipMember) -> bool:
    return member.size > _WHOLE or member.packed_size > _WHOLE


def _compare(file: ArchivedFile, digest: str) -> None:
    if file.sha256 not in ("", digest):
        name = shorten_path(file.member.name)
        raise ArchiveError(f"File is damaged, its sha256 is wrong: {name!r}")
    file.sha256 = digest


def _overlaps(member: ZipMember) -> ArchiveError:
    return damage_error(member, "overlaps another one")


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """A checked archive; `descriptor` is the open file, which the holder closes."""

    manifest: ArchiveManifest
    root: ArchivedFolder
    descriptor: int


def read_archive(
    path: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS, *, codec: Codec = DEFAULT_CODEC
) -> ArchiveState:
    """Check an archive and return what is in it.

    Raises:
        ArchiveError: It is not an archive, is damaged, lies, is too large, or holds
            something that must not be in a workspace.
        OSError: It cannot be read.
    """
    descriptor = open_archive(path)
    try:
        size = os.fstat(descriptor).st_size
        directory, count, end = raw_directory(descriptor, size, limits)
        members = read_members(directory, count)
        reader = ZipReader(descriptor, end)
        verification = ArchiveVerifier(reader, members, codec)
        manifest = read_manifest(reader, members, limits)
        summary = summarize(manifest)
        tree = ArchiveTree(limits)
        if manifest.files is None:
            tree.add_foreign(members)
        else:
            tree.add_declared(members, manifest)
        tree.check(summary, size)
        verification.run(tree.files)
    except BaseException:
        os.close(descriptor)
        raise
    return ArchiveState(summary, tree.root, descriptor)


def open_archive(path: Path) -> int:
    """Open a regular file for reading, and nothing else.

    Raises:
        ArchiveError: It is a link, a directory, a pipe, a device.
    """
    try:
        return open_regular(path)[0]
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        raise ArchiveError(f"Archive is not a regular file: {str(path)!r}") from None


def read_manifest(
    reader: ZipReader, members: Sequence[ZipMember], limits: ArchiveLimits
) -> ArchiveDocument:
    """Return the manifest of an archive.

    Raises:
        ArchiveError: There is none, or none that is valid.
    """
    for member in reversed(members):
        if member.name == MANIFEST:
            break
    else:
        raise ArchiveError(f"Archive has no manifest: {MANIFEST!r} is missing")
    if member.size > limits.max_manifest_bytes:
        raise ArchiveError(
            f"Manifest is larger than {limits.max_manifest_bytes} bytes: {member.size}"
        )
    return decode_manifest(reader.read(member), limits)
