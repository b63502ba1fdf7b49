"""What is in an archive: a tree that has been checked in full, down to every byte."""

import hashlib
import os
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from weakincentives.filesystem.archives.format import (
    DEFAULT_ARCHIVE_LIMITS,
    FILES,
    MANIFEST,
    RATIO_FREE_BYTES,
    ArchiveError,
    ArchiveLimits,
    ArchiveManifest,
    Manifest,
    check_path,
    check_record,
    check_target,
    decode_manifest,
    entry_of,
    permissions_of,
    unescape,
)
from weakincentives.filesystem.archives.zipreader import ZipReader
from weakincentives.filesystem.archives.ziprecords import ZipMember
from weakincentives.filesystem.paths import brief, parent_of

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KEPT_BYTES = 64 * 1024 * 1024  # content that stays in memory once it has been checked
_KEPT_FILE = 1024 * 1024  # larger files are read again when they are asked for


class ArchivedFile:
    """A file; `data` is its content if that is kept in memory."""

    __slots__ = ("data", "member", "permissions", "sha256")

    def __init__(self, member: ZipMember, permissions: int, sha256: str = "") -> None:
        """Describe a file; no `sha256` means that the archive does not tell."""
        self.member = member
        self.permissions = permissions
        self.sha256 = sha256
        self.data: bytes | None = None


class ArchivedLink:
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(self, target: str) -> None:
        """Point to `target`."""
        self.target = target


class ArchivedFolder:
    """A directory."""

    __slots__ = ("children", "permissions")

    def __init__(self, permissions: int = 0o755) -> None:
        """Start empty."""
        self.children: dict[str, ArchivedNode] = {}
        self.permissions = permissions


ArchivedNode: TypeAlias = ArchivedFile | ArchivedLink | ArchivedFolder


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """A checked archive; `descriptor` is the open file, which the holder closes."""

    manifest: ArchiveManifest
    root: ArchivedFolder
    descriptor: int


def read_archive(path: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS) -> ArchiveState:
    """Check an archive and return what is in it.

    Raises:
        ArchiveError: It is not an archive, is damaged, lies, is too large, or holds
            something that must not be in a workspace.
        OSError: It cannot be read.
    """
    descriptor = open_archive(path)
    try:
        reader = ZipReader(descriptor, limits)
        manifest = read_manifest(reader, limits)
        summary = manifest.summary()
        tree = _Tree(limits)
        if manifest.files is None:
            tree.add_foreign(reader.members)
        else:
            tree.add_declared(reader.members, manifest)
        tree.check(summary, reader.size)
        tree.verify(reader)
    except BaseException:
        os.close(descriptor)
        raise
    return ArchiveState(summary, tree.root, descriptor)


def open_archive(path: Path) -> int:
    """Open a regular file for reading, and nothing else.

    Raises:
        ArchiveError: It is a link, a directory, a pipe, a device.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ArchiveError(f"Archive is not a regular file: {str(path)!r}")
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArchiveError(f"Archive is not a regular file: {str(path)!r}")
    return descriptor


def read_manifest(reader: ZipReader, limits: ArchiveLimits) -> Manifest:
    """Return the manifest of an archive.

    Raises:
        ArchiveError: There is none, or none that is valid.
    """
    for member in reversed(reader.members):
        if member.name == MANIFEST:
            break
    else:
        raise ArchiveError(f"Archive has no manifest: {MANIFEST!r} is missing")
    if member.size > limits.max_manifest_bytes:
        raise ArchiveError(
            f"Manifest is larger than {limits.max_manifest_bytes} bytes: {member.size}"
        )
    return decode_manifest(reader.read(member), limits)


class _Tree:
    """The tree while it is put together."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self.root = ArchivedFolder()
        self._files: list[ArchivedFile] = []
        self._entries = 0
        self._last = ("", self.root)

    def add_declared(self, members: list[ZipMember], manifest: Manifest) -> None:
        """Add what the manifest declares; the entries of the ZIP must be that and no more."""
        entries = {member.name: member for member in members if member.name != MANIFEST}
        for record in manifest.files or ():
            check_record(record)
            name = entry_of(record.path) if record.entry is None else record.entry
            member = entries.pop(FILES + name, None)
            if member is None or member.is_directory or member.size != record.size:
                raise ArchiveError(f"File is missing, or has another size: {brief(record.path)!r}")
            permissions = permissions_of(record.mode, record.path)
            self._add_file(unescape(record.path), member, permissions, record.sha256)
        for link in manifest.links:
            path, target = unescape(link.path), unescape(link.target)
            check_target(target, path)
            self._add(path, ArchivedLink(target))
        declared: set[str] = set()
        for folder in manifest.directories:
            path = unescape(folder.path)
            if path in declared:
                raise _twice(path)
            declared.add(path)
            entries.pop(f"{FILES}{entry_of(folder.path)}/", None)
            self._add_folder(path, permissions_of(folder.mode, path))
        for name in entries:
            raise ArchiveError(f"Entry is not in the manifest: {brief(name)!r}")

    def add_foreign(self, members: list[ZipMember]) -> None:
        """Add every entry of a ZIP whose manifest declares none."""
        for member in members:
            name = member.name.removeprefix(FILES)
            if member.name in (MANIFEST, FILES):
                continue
            if name == member.name:
                raise ArchiveError(
                    f"Entry is neither {MANIFEST!r} nor below {FILES!r}: {brief(name)!r}"
                )
            if member.is_directory:
                self._add_folder(name.removesuffix("/"), 0o755)
            else:
                self._add_file(name, member, 0o755 if member.mode & 0o100 else 0o644, "")
        _refuse_twins(self.root)

    def check(self, summary: ArchiveManifest, size: int) -> None:
        """Compare what the entries declare with the manifest, and with what is allowed."""
        total = sum(file.member.size for file in self._files)
        if total > self._limits.max_total_bytes:
            raise ArchiveError(
                f"Archive holds more than {self._limits.max_total_bytes} bytes: {total}"
            )
        if total > RATIO_FREE_BYTES + self._limits.max_ratio * size:
            raise ArchiveError(f"Archive of {size} bytes would unfold to {total}")
        if (len(self._files), total) != (summary.file_count, summary.total_bytes):
            raise ArchiveError(
                f"Manifest declares {summary.file_count} files of {summary.total_bytes} bytes,"
                f" there are {len(self._files)} of {total}"
            )

    def verify(self, reader: ZipReader) -> None:
        """Unpack everything once; keep what is small."""
        room = _KEPT_BYTES
        for file in self._files:
            if file.member.size <= min(_KEPT_FILE, room):
                file.data = reader.read(file.member)
                room -= len(file.data)
                found = hashlib.sha256(file.data)
            else:
                found = hashlib.sha256()
                for piece in reader.pieces(file.member):
                    found.update(piece)
            if file.sha256 not in ("", found.hexdigest()):
                name = brief(file.member.name)
                raise ArchiveError(f"File is damaged, its sha256 is wrong: {name!r}")
            file.sha256 = found.hexdigest()

    def _add_file(self, path: str, member: ZipMember, permissions: int, sha256: str) -> None:
        file = ArchivedFile(member, permissions, sha256)
        self._add(path, file)
        self._files.append(file)

    def _add_folder(self, path: str, permissions: int) -> None:
        check_path(path)
        known = self._folder(parent_of(path), path).children.get(path.rpartition("/")[2])
        if type(known) is ArchivedFolder:
            known.permissions = permissions
        else:
            self._add(path, ArchivedFolder(permissions))

    def _add(self, path: str, node: ArchivedNode) -> None:
        check_path(path)
        parent, _, name = path.rpartition("/")
        children = self._folder(parent, path).children
        if name in children:
            raise _twice(path)
        self._count()
        children[name] = node

    def _folder(self, parent: str, path: str) -> ArchivedFolder:
        """Return the directory `parent`, made if it is not there yet."""
        if self._last[0] == parent:
            return self._last[1]
        folder = self.root
        for segment in parent.split("/") if parent else ():
            child = folder.children.get(segment)
            if child is None:
                self._count()
                child = folder.children[segment] = ArchivedFolder()
            elif type(child) is not ArchivedFolder:
                raise ArchiveError(f"Path leads through a file or link: {brief(path)!r}")
            folder = child
        self._last = (parent, folder)
        return folder

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.max_entries:
            raise ArchiveError(
                f"Archive unfolds to more than {self._limits.max_entries} entries, directories"
                " included"
            )


def _refuse_twins(root: ArchivedFolder) -> None:
    """Refuse names that some file systems take for one: other case, other normal form."""
    pending = [root]
    while pending:
        folder = pending.pop()
        known: dict[str, str] = {}
        for name, node in folder.children.items():
            twin = known.setdefault(_folded(name), name)
            if twin != name:
                raise ArchiveError(f"Names are the same on some systems: {twin!r} and {name!r}")
            if type(node) is ArchivedFolder:
                pending.append(node)


def _folded(name: str) -> str:
    if name.isascii():
        return name.casefold()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _twice(path: str) -> ArchiveError:
    return ArchiveError(f"Archive has a path twice: {brief(path)!r}")
