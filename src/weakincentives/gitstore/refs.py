"""Git refs: the names that keep commits alive.

We write one file for each ref. Git may have moved refs into `packed-refs`, so both are read.
A ref is an object id or it is damaged; symbolic refs are not followed.
"""

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from weakincentives.errors import SnapshotError
from weakincentives.gitstore.directory import GitDirectory
from weakincentives.posix import AtomicFile, fault_point, open_regular, read_regular, sync_directory

MAIN = "refs/heads/main"
PINS = "refs/wink/"
_PACKED = "packed-refs"
_SHALLOW = "shallow"
_MAX_REF = 1024
_MAX_PACKED = 256 * 1024 * 1024
_LOOSE = re.compile(rb"([0-9a-f]{40})\n?")
_PACKED_LINE = re.compile(r"([0-9a-f]{40}) (refs/\S+)")


class Refs:
    """The refs of a repository; hold its lock to change them."""

    def __init__(self, directory: GitDirectory, *, durable: bool = True) -> None:
        """Read and write the refs in `directory`."""
        self._directory = directory
        self._durable = durable

    def read(self, name: str) -> str | None:
        """Return the object id of a ref, or None if there is no such ref.

        Raises:
            SnapshotError: The ref is damaged, or symbolic.
        """
        data = self._read_file(name)
        if data is None:
            return self._read_packed_refs().get(name)
        match = _LOOSE.fullmatch(data)
        if match is None:
            raise SnapshotError(f"Ref is damaged: {name!r}")
        return match[1].decode()

    def read_all(self, prefix: str = "refs/") -> dict[str, str | None]:
        """Return the ids of all refs below `prefix` by name; None for a damaged one."""
        found: dict[str, str | None] = {}
        for name in self._iter_loose(prefix.rstrip("/")):
            data = self._read_file(name)
            if data is not None:  # else it was removed since it was listed
                match = _LOOSE.fullmatch(data)
                found[name] = match[1].decode() if match else None
        # last: git writes packed-refs before it removes the files
        for name, ref in self._read_packed_refs().items():
            if name.startswith(prefix):
                found.setdefault(name, ref)
        return found

    def write(self, name: str, ref: str) -> None:
        """Create or change a ref atomically."""
        with self.prepare(ref) as file:
            if self._durable:
                os.fsync(file.descriptor)
            self.publish(file, name)

    def prepare(self, ref: str) -> AtomicFile:
        """Return a file for `publish`; the caller syncs it first."""
        return AtomicFile(self._directory.path, ref.encode() + b"\n")

    def publish(self, file: AtomicFile, name: str, *, durable: bool = True) -> None:
        """Create or change a ref atomically; its file has been synced if `durable`."""
        durable = durable and self._durable and name != MAIN
        try:
            self._directory.publish(file, name, durable=durable)
        except FileNotFoundError:  # git removes directories that become empty
            (self._directory.path / name).parent.mkdir(0o700, parents=True)
            self._directory.publish(file, name, durable=durable)

    def delete(self, names: Collection[str]) -> None:
        """Remove refs; idempotent."""
        packed = self._read_packed_refs()
        if not packed.keys().isdisjoint(names):
            # first: otherwise the packed value would reappear when the file is gone
            lines = [f"{ref} {name}\n" for name, ref in sorted(packed.items()) if name not in names]
            self._directory.replace(_PACKED, "".join(lines).encode(), durable=self._durable)
        paths = [self._directory.path / name for name in names]
        for path in paths:
            path.unlink(missing_ok=True)
            fault_point("refs.deleted")
        if self._durable:
            for parent in {path.parent for path in paths}:
                sync_directory(parent)

    def read_detached_head(self) -> str | None:
        """Return the commit of a detached HEAD, or None if HEAD is on a branch."""
        match = _LOOSE.fullmatch(self._read_file("HEAD") or b"")
        return match[1].decode() if match else None

    def is_head_on_main(self) -> bool:
        """Return whether HEAD points to the main branch."""
        return (self._read_file("HEAD") or b"").strip() == b"ref: " + MAIN.encode()

    def write_shallow(self, commits: Collection[str]) -> None:
        """Record in `shallow` the commits whose parents git must not look for."""
        path = self._directory.path / _SHALLOW
        data = "".join(f"{ref}\n" for ref in sorted(commits)).encode()
        if not commits:
            path.unlink(missing_ok=True)
        elif not has_content(path, data):
            self._directory.replace(_SHALLOW, data, durable=self._durable)

    def _read_file(self, name: str) -> bytes | None:
        """Return the beginning of a file: None if missing, empty if it is not a regular file."""
        try:
            descriptor, _ = open_regular(self._directory.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return b""
        try:
            return os.read(descriptor, _MAX_REF)
        finally:
            os.close(descriptor)

    def _iter_loose(self, prefix: str) -> Iterator[str]:
        pending = [prefix]
        while pending:
            directory = pending.pop()
            try:
                entries = list(os.scandir(self._directory.path / directory))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                name = f"{directory}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif not entry.name.startswith(".") and not entry.name.endswith(".lock"):
                    yield name

    def _read_packed_refs(self) -> dict[str, str]:
        try:
            data = read_regular(self._directory.path / _PACKED, _MAX_PACKED)
            lines = data.decode().splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotError(f"Refs file is damaged: {_PACKED!r}: {error}") from error
        found: dict[str, str] = {}
        for line in lines:
            match = _PACKED_LINE.fullmatch(line)
            if match is not None:
                found[match[2]] = match[1]
            elif not line.startswith(("#", "^")):
                raise SnapshotError(f"Refs file is damaged: {_PACKED!r}")
        return found


def has_content(path: Path, data: bytes) -> bool:
    """Return whether a file exists and has exactly this content."""
    try:
        return read_regular(path, len(data)) == data
    except OSError:
        return False  # missing, larger, or not a regular file
