"""The directory tree of an archive, built from its manifest and its ZIP entries."""

import unicodedata
from dataclasses import dataclass, field
from typing import TypeAlias

from weakincentives.filesystem.archive.format import (
    FILES_PREFIX,
    RATIO_FREE_BYTES,
    ArchiveError,
    ArchiveLimits,
    ZipMember,
    check_path,
    check_paths,
    check_records,
    check_target,
    entry_name,
    parse_mode,
    unescape,
    unescape_all,
)
from weakincentives.filesystem.manifest import (
    DIRECTORY_PERMISSIONS,
    EXECUTABLE_PERMISSIONS,
    FILE_PERMISSIONS,
    MANIFEST,
    ArchiveDocument,
    ArchiveManifest,
    FileRecord,
)
from weakincentives.posix import parent_of, shorten_path


@dataclass(slots=True, eq=False)
class ArchivedFile:
    """A file; `data` is its content if it is cached in memory."""

    member: ZipMember
    permissions: int
    sha256: str = ""
    """Empty if the manifest has none."""
    start: int = -1
    data: bytes | None = None


@dataclass(slots=True, eq=False)
class ArchivedLink:
    """A symbolic link."""

    target: str


@dataclass(slots=True, eq=False)
class ArchivedFolder:
    """A directory."""

    permissions: int = DIRECTORY_PERMISSIONS
    children: "dict[str, ArchivedNode]" = field(default_factory=dict[str, "ArchivedNode"])


ArchivedNode: TypeAlias = ArchivedFile | ArchivedLink | ArchivedFolder


class ArchiveTree:
    """Builds the tree, and checks it against the limits."""

    def __init__(self, limits: ArchiveLimits) -> None:
        """Start with an empty root."""
        self._limits = limits
        self.root: ArchivedFolder = ArchivedFolder()
        self.files: dict[str, ArchivedFile] = {}
        """The files by ZIP name."""
        self._entries = 0
        self._last = ("", self.root)

    def add_manifest(self, members: list[ZipMember], manifest: ArchiveDocument) -> None:
        """Add what a full manifest declares; the ZIP must have exactly these entries."""
        entries = {member.name: member for member in members}
        entries.pop(MANIFEST, None)
        records = manifest.files or []
        check_records(records)
        paths = unescape_all([record.path for record in records])
        check_paths(paths)
        for path, record in zip(paths, records, strict=True):
            self._add_declared_file(path, record, entries)
        for link in manifest.links:
            path, target = unescape(link.path), unescape(link.target)
            check_path(path)
            check_target(target, path)
            self._add(path, ArchivedLink(target))
        declared: set[str] = set()
        for folder in manifest.directories:
            path = unescape(folder.path)
            if path in declared:
                raise _duplicate_error(path)
            declared.add(path)
            entries.pop(f"{FILES_PREFIX}{entry_name(folder.path)}/", None)
            self._add_folder(path, parse_mode(folder.mode, path))
        for name in entries:
            raise ArchiveError(f"Entry is not in the manifest: {shorten_path(name)!r}")

    def add_members(self, members: list[ZipMember]) -> None:
        """Add every entry of a ZIP with a plain manifest, which declares no files."""
        for member in members:
            name = member.name.removeprefix(FILES_PREFIX)
            if member.name in (MANIFEST, FILES_PREFIX):
                continue
            if name == member.name:
                raise ArchiveError(
                    f"Entry is neither {MANIFEST!r} nor below {FILES_PREFIX!r}:"
                    f" {shorten_path(name)!r}"
                )
            if member.is_directory:
                self._add_folder(name.removesuffix("/"), DIRECTORY_PERMISSIONS)
            else:
                check_path(name)
                is_executable = member.mode & 0o100
                default = EXECUTABLE_PERMISSIONS if is_executable else FILE_PERMISSIONS
                file = ArchivedFile(member, default)
                self._add(name, file)
                self.files[member.name] = file
        _check_collisions(self.root)

    def check(self, summary: ArchiveManifest, size: int) -> None:
        """Compare the entries with the manifest and the limits; `size` is the archive's."""
        total = sum(file.member.size for file in self.files.values())
        if total > self._limits.max_total_bytes:
            raise ArchiveError(
                f"Archive has more than {self._limits.max_total_bytes} bytes: {total}"
            )
        if total > RATIO_FREE_BYTES + self._limits.max_ratio * size:
            raise ArchiveError(f"Archive of {size} bytes would decompress to {total} bytes")
        if (len(self.files), total) != (summary.file_count, summary.total_bytes):
            raise ArchiveError(
                f"Manifest declares {summary.file_count} files with {summary.total_bytes} bytes,"
                f" but the archive has {len(self.files)} with {total}"
            )

    def _add_declared_file(
        self, path: str, record: FileRecord, entries: dict[str, ZipMember]
    ) -> None:
        name = FILES_PREFIX + (entry_name(record.path) if record.entry is None else record.entry)
        member = entries.pop(name, None)
        if member is None or member.size != record.size or name[-1] == "/":
            raise ArchiveError(
                f"File is missing, or has another size: {shorten_path(record.path)!r}"
            )
        permissions = parse_mode(record.mode, record.path)
        file = self.files[name] = ArchivedFile(member, permissions, record.sha256)
        self._add(path, file)

    def _add_folder(self, path: str, permissions: int) -> None:
        check_path(path)
        known = self._folder(parent_of(path), path).children.get(path.rpartition("/")[2])
        if type(known) is ArchivedFolder:
            known.permissions = permissions
        else:
            self._add(path, ArchivedFolder(permissions))

    def _add(self, path: str, node: ArchivedNode) -> None:
        """Add a node at a path that has been checked."""
        parent, _, name = path.rpartition("/")
        last, folder = self._last
        children = (folder if last == parent else self._folder(parent, path)).children
        if name in children:
            raise _duplicate_error(path)
        self._count()
        children[name] = node

    def _folder(self, parent: str, path: str) -> ArchivedFolder:
        """Return the directory `parent`; create it if it is missing."""
        folder = self.root
        for segment in parent.split("/") if parent else ():
            child = folder.children.get(segment)
            if child is None:
                self._count()
                child = folder.children[segment] = ArchivedFolder()
            elif type(child) is not ArchivedFolder:
                raise ArchiveError(f"Path passes through a file or link: {shorten_path(path)!r}")
            folder = child
        self._last = (parent, folder)
        return folder

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.max_entries:
            raise ArchiveError(
                f"Archive has more than {self._limits.max_entries} entries, including directories"
            )


def _check_collisions(root: ArchivedFolder) -> None:
    """Raise if two names differ only in case or Unicode normal form: some systems merge them."""
    pending = [root]
    while pending:
        folder = pending.pop()
        known: dict[str, str] = {}
        for name, node in folder.children.items():
            other = known.setdefault(_fold(name), name)
            if other != name:
                raise ArchiveError(f"Names are the same on some systems: {other!r} and {name!r}")
            if type(node) is ArchivedFolder:
                pending.append(node)


def _fold(name: str) -> str:
    if name.isascii():
        return name.casefold()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _duplicate_error(path: str) -> ArchiveError:
    return ArchiveError(f"Archive has a path twice: {shorten_path(path)!r}")
