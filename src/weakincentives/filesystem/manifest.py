"""The manifest of a stored workspace: `manifest.json`, beside the content in `files/`.

Snapshots (git trees) and archives (ZIP files) share this layout, its version, and the rule for
default permissions. The manifest adds what the container cannot store by itself:

- A git tree has names, content ids and links. `SnapshotManifest` adds the permissions that git
  has no mode for, all twelve bits of them, and the names of special files.
- A ZIP file has names and content. `ArchiveDocument` adds a SHA-256, the nine permission bits and
  the exact name of every file, links and directories. `ArchiveManifest` is its summary.

Names that are not UTF-8 are lone surrogates in a snapshot's manifest, and percent-encoded in an
archive's, because not every JSON parser accepts lone surrogates.
"""

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Self

import msgspec

MANIFEST = "manifest.json"
FILES = "files"
VERSION = "1"
DIRECTORY_PERMISSIONS = 0o755
"""The permissions of a directory that the manifest does not mention."""
FILE_PERMISSIONS = 0o644
EXECUTABLE_PERMISSIONS = 0o755
DEFAULT_PERMISSIONS = frozenset({FILE_PERMISSIONS, EXECUTABLE_PERMISSIONS})
"""The permissions of a file that a snapshot's manifest does not mention."""
_ALL_BITS = 0o7777


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The manifest of a snapshot: permissions that git has no mode for, and special files."""

    modes: dict[str, int]
    specials: tuple[str, ...]
    version: str = VERSION

    def encode(self) -> bytes:
        """Return the JSON in ASCII; name bytes that are not UTF-8 are escaped surrogates."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parse the JSON of a manifest.

        Raises:
            ValueError: It is not a manifest, or has another version.
        """
        try:
            found = msgspec.convert(json.loads(data), cls)
        except RecursionError:
            raise ValueError("Manifest is nested too deeply") from None
        if found.version != VERSION:
            raise ValueError(
                f"Manifest has version {found.version!r}; this program reads version {VERSION!r}"
            )
        for path, mode in found.modes.items():
            if not 0 <= mode <= _ALL_BITS:
                raise ValueError(f"Manifest has invalid permissions for {path!r}: {mode}")
        return found


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """The summary of an archive: its version, its date and its size."""

    version: str
    created_at: datetime
    file_count: int
    total_bytes: int


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class FileRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A file in an archive's manifest; `entry` is its ZIP name where that is not `path`."""

    path: str
    size: _Count
    sha256: str
    mode: str
    packed_crc32: str | None = None
    entry: str | None = None


class LinkRecord(msgspec.Struct, frozen=True, gc=False):
    """A symbolic link in an archive's manifest."""

    path: str
    target: str


class DirectoryRecord(msgspec.Struct, frozen=True, gc=False):
    """A directory in an archive's manifest: empty, or with other than default permissions."""

    path: str
    mode: str


class ArchiveDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The JSON document of an archive's manifest; a plain one has no `files`.

    `packer` is the library that compressed the files.
    """

    version: str
    created_at: str
    file_count: _Count
    total_bytes: _Count
    files: list[FileRecord] | None = None
    links: list[LinkRecord] = msgspec.field(default_factory=list[LinkRecord])
    directories: list[DirectoryRecord] = msgspec.field(default_factory=list[DirectoryRecord])
    packer: str = "zlib"
