"""Our backends as subjects: the public API, called the way a user calls it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import weakincentives.filesystem as filesystem
from benchmarks.gitids import ExpectedTree
from benchmarks.peer_git import GIT, git, isolated
from benchmarks.subject import Subject
from benchmarks.undo import Undo


class _Ours(Subject):
    """What both backends share, because it is one protocol."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def list_folder(self, path: str) -> object:
        return self.fs.list(path)

    def names(self, raw: Any) -> list[str]:
        return [entry.name for entry in raw]

    def read(self, path: str) -> object:
        return self.fs.read(path)

    def text(self, raw: Any) -> str:
        return raw.content

    def read_page(self, path: str, offset: int, limit: int) -> object:
        return self.fs.read(path, offset=offset, limit=limit)

    def page(self, raw: Any) -> tuple[str, int]:
        return raw.content, raw.total_lines

    def write(self, path: str, text: str) -> object:
        return self.fs.write(path, text)

    def glob(self, pattern: str) -> object:
        return self.fs.glob(pattern)

    def paths(self, raw: Any) -> list[str]:
        return [match.path for match in raw if match.is_file]

    def grep(self, pattern: str) -> object:
        return self.fs.grep(pattern)

    def hits(self, raw: Any) -> list[tuple[str, int]]:
        return [(match.path, match.line_number) for match in raw]

    def close(self) -> None:
        self.fs.close()


class OurHost(_Ours):
    """HostFilesystem on a directory."""

    name = "ours (host)"

    def __init__(self, root: Path) -> None:
        """Open the directory."""
        super().__init__(filesystem.HostFilesystem(root))


class OurMemory(_Ours):
    """InMemoryFilesystem."""

    name = "ours (memory)"

    def __init__(self, package: Any = filesystem) -> None:
        """Start empty, with the limits on size lifted."""
        super().__init__(package.InMemoryFilesystem(limits=_unlimited(package)))

    def load(self, files: Mapping[str, bytes]) -> None:
        """Fill an empty filesystem, untimed."""
        for path, content in files.items():
            self.fs.write_bytes(path, content)

    def hydrate(self, root: str) -> object:
        """Bring a whole host directory in."""
        mount = filesystem.HostMount(host_path=root)
        return self.fs.hydrate_from_host(mount, allowed_roots=(root,))

    def total(self, raw: object) -> tuple[int, int]:
        """How many files and bytes came in."""
        files = self.fs.glob("**")
        return len(files), sum(self.fs.stat(match.path).size_bytes for match in files)


class OurUndo(Undo):
    """Snapshots of HostFilesystem, in a place of their own."""

    name = "ours (host)"
    exclusive = False

    def __init__(self, root: Path, place: Path) -> None:
        """Open the directory, and keep its history in `place`."""
        self.place = place
        store = place / "store"
        self.fs = filesystem.HostFilesystem(root, git_dir=store, exclusive=self.exclusive)

    def snapshot(self) -> object:
        """Take a snapshot."""
        return self.fs.snapshot()

    def restore(self, snapshot: Any) -> object:
        """Restore one; the state before is kept as well, so that this can be undone."""
        return self.fs.restore(snapshot)

    def tree_of(self, snapshot: Any) -> str:
        """What git itself reads in our store, or (without git) what we read there."""
        if GIT is None:
            return ExpectedTree(everything(self.fs.view(snapshot))).id
        place = ["--git-dir", snapshot.git_dir]
        return git(isolated(self.place), *place, "rev-parse", f"{snapshot.commit_ref}:files")

    def write(self, path: str, content: bytes) -> None:
        """Write through the protocol."""
        self.fs.write_bytes(path, content)

    def close(self) -> None:
        """Let go of the directory."""
        self.fs.close()


class OurExclusiveUndo(OurUndo):
    """The same with the promise that nobody else changes the directory."""

    name = "ours (host, exclusive)"
    exclusive = True


class OurSandboxUndo(OurExclusiveUndo):
    """The same, with changes by confined commands: the kernel reports them."""

    name = "ours (host, after a sandbox)"

    def __init__(self, root: Path, place: Path) -> None:
        """Let the first snapshot add the watches, as after a first command."""
        super().__init__(root, place)
        with self.fs.changed_by_others(confined=True):
            pass

    def outside(self) -> AbstractContextManager[object]:
        """As BubblewrapSandbox says that a command runs."""
        return self.fs.changed_by_others(confined=True)


def everything(fs: Any) -> Iterator[tuple[str, bytes]]:
    """Read every file of a filesystem or of a snapshot."""
    pending = ["."]
    while pending:
        for entry in fs.list(pending.pop()):
            if entry.is_directory:
                pending.append(entry.path)
            else:
                yield entry.path, fs.read_bytes(entry.path).content


def _unlimited(package: Any) -> Any:
    return package.Limits(max_write_length=2**40, max_total_bytes=None, max_files=None)
