"""Refs: the names that keep commits alive, as git stores them.

We write one file for each. Git may have moved them into `packed-refs`, so both are
read. What is in them is data: a ref is an id or it is damaged, and none is followed.
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
    """The refs of a repository; who changes them holds its lock."""

    def __init__(self, directory: GitDirectory, *, durable: bool = True) -> None:
        """Read and write the refs in `directory`."""
        self._directory = directory
        self._durable = durable

    def read(self, name: str) -> str | None:
        """Return the id that a ref holds, or None if there is no such ref.

        Raises:
            SnapshotError: The ref is damaged, or points to another one.
        """
        data = self._content(name)
        if data is None:
            return self._packed().get(name)
        match = _LOOSE.fullmatch(data)
        if match is None:
            raise SnapshotError(f"Ref is damaged: {name!r}")
        return match[1].decode()

    def found(self, prefix: str = "refs/") -> dict[str, str | None]:
        """Return all refs whose names start so, with their ids, None where one is damaged."""
        found: dict[str, str | None] = {}
        for name in self._loose(prefix.rstrip("/")):
            data = self._content(name)
            if data is not None:  # else it has been removed since it was listed
                match = _LOOSE.fullmatch(data)
                found[name] = match[1].decode() if match else None
        # last: git writes them there before it removes the files
        for name, ref in self._packed().items():
            if name.startswith(prefix):
                found.setdefault(name, ref)
        return found

    def write(self, name: str, ref: str) -> None:
        """Create or change a ref in one step."""
        with self.prepared(ref) as file:
            if self._durable:
                os.fsync(file.descriptor)
            self.publish(file, name)

    def prepared(self, ref: str) -> AtomicFile:
        """Return a file for `publish`, which is not on the disk yet."""
        return AtomicFile(self._directory.path, ref.encode() + b"\n")

    def publish(self, file: AtomicFile, name: str) -> None:
        """Create or change a ref in one step; its file is on the disk."""
        durable = self._durable and name != MAIN
        try:
            self._directory.publish(file, name, durable=durable)
        except FileNotFoundError:  # git removes directories that it has emptied
            (self._directory.path / name).parent.mkdir(0o700, parents=True)
            self._directory.publish(file, name, durable=durable)

    def delete(self, names: Collection[str]) -> None:
        """Remove refs; those that are not there are none the less gone."""
        packed = self._packed()
        if not packed.keys().isdisjoint(names):
            # first: otherwise the old value would come back when the file is gone
            lines = [f"{ref} {name}\n" for name, ref in sorted(packed.items()) if name not in names]
            self._directory.replace(_PACKED, "".join(lines).encode(), durable=self._durable)
        paths = [self._directory.path / name for name in names]
        for path in paths:
            path.unlink(missing_ok=True)
            fault_point("refs.deleted")
        if self._durable:
            for parent in {path.parent for path in paths}:
                sync_directory(parent)

    def detached_head(self) -> str | None:
        """Return the commit that a person has put HEAD on, if it is on no branch."""
        match = _LOOSE.fullmatch(self._content("HEAD") or b"")
        return match[1].decode() if match else None

    def head_is_ours(self) -> bool:
        """Return whether HEAD leads to the main branch."""
        return (self._content("HEAD") or b"").strip() == b"ref: " + MAIN.encode()

    def write_shallow(self, commits: Collection[str]) -> None:
        """Say for which commits git must not look for the parents."""
        path = self._directory.path / _SHALLOW
        data = "".join(f"{ref}\n" for ref in sorted(commits)).encode()
        if not commits:
            path.unlink(missing_ok=True)
        elif not _holds(path, data):
            self._directory.replace(_SHALLOW, data, durable=self._durable)

    def _content(self, name: str) -> bytes | None:
        """Return the beginning of a file, None if there is none; what is no file is empty."""
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

    def _loose(self, prefix: str) -> Iterator[str]:
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

    def _packed(self) -> dict[str, str]:
        try:
            data = read_regular(self._directory.path / _PACKED, _MAX_PACKED)
            lines = data.decode().splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise SnapshotError(f"File of refs is damaged: {_PACKED!r}: {error}") from error
        found: dict[str, str] = {}
        for line in lines:
            match = _PACKED_LINE.fullmatch(line)
            if match is not None:
                found[match[2]] = match[1]
            elif not line.startswith(("#", "^")):
                raise SnapshotError(f"File of refs is damaged: {_PACKED!r}")
        return found


def _holds(path: Path, data: bytes) -> bool:
    try:
        return read_regular(path, len(data)) == data
    except OSError:
        return False  # there is none, or another
