"""What is in an archive: a tree that has been checked in full, down to every byte."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weakincentives.filesystem.archives.format import (
    DEFAULT_ARCHIVE_LIMITS,
    MANIFEST,
    ArchiveError,
    ArchiveLimits,
    ArchiveManifest,
    Manifest,
    decode_manifest,
)
from weakincentives.filesystem.archives.tree import ArchivedFolder, ArchiveTree
from weakincentives.filesystem.archives.verifying import Verification
from weakincentives.filesystem.archives.zipdirectory import listed, raw_directory
from weakincentives.filesystem.archives.zipreader import ZipReader
from weakincentives.filesystem.archives.ziprecords import ZipMember
from weakincentives.filesystem.compression import BEST, Codec
from weakincentives.filesystem.regular import open_regular


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """A checked archive; `descriptor` is the open file, which the holder closes."""

    manifest: ArchiveManifest
    root: ArchivedFolder
    descriptor: int


def read_archive(
    path: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS, *, codec: Codec = BEST
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
        members = listed(directory, count)
        reader = ZipReader(descriptor, end)
        verification = Verification(reader, members, codec)
        manifest = read_manifest(reader, members, limits)
        summary = manifest.summary()
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
) -> Manifest:
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
