"""The physical limits: the least work that any answer needs, written as plainly as possible."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

try:
    from isal import isal_zlib
except ImportError:
    isal_zlib = None

RG = shutil.which("rg")
# GNU find's walk is in C; elsewhere the same walk in Python has to do
FIND = shutil.which("find") if sys.platform == "linux" else None
WALK = "walk by find, in C" if FIND else "scandir walk with stat"


def scandir_walk(root: Path) -> list[str]:
    """Walk a tree with `scandir` and no `stat`: the names of all files."""
    found: list[str] = []
    pending = [str(root)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    found.append(entry.name)
    return found


def walk_status(root: Path, output: int = subprocess.DEVNULL) -> int:
    """Look at every entry: inode, size and both times, to a descriptor. 0 when all is well."""
    if FIND is None:
        return _scandir_status(str(root))
    command = [FIND, str(root), "-printf", r"%i %s %T@ %C@\n"]
    return subprocess.run(command, stdout=output, check=False).returncode


def _scandir_status(root: str) -> int:
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return 0


def scandir_list(folder: str) -> list[str]:
    """Read one directory, with the kind of each entry."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def read_file(path: str) -> bytes:
    """Open, read, close."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def read_all(root: Path) -> int:
    """Read every file below `root`; return how many bytes that were."""
    return sum(len(content) for _, content in walk_contents(root))


def walk_contents(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below `root` with its bytes."""
    pending = [(str(root), "")]
    while pending:
        place, prefix = pending.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, f"{prefix}{entry.name}/"))
                elif entry.is_file(follow_symlinks=False):
                    yield prefix + entry.name, read_file(entry.path)


def write_file(path: str, content: bytes) -> int:
    """Create or replace the content in place: not atomic, nothing better is possible."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        return os.write(descriptor, content)
    finally:
        os.close(descriptor)


def write_and_rename(path: str, content: bytes) -> int:
    """Write a temporary file and move it into place: the least an atomic write can do."""
    temporary = f"{path}.new"
    written = write_file(temporary, content)
    os.rename(temporary, path)  # noqa: PTH104 - the limit is the bare system call
    return written


def name_and_date() -> tuple[UUID, datetime]:
    """A new id and the time: what a snapshot needs even if it keeps nothing."""
    return uuid4(), datetime.now(UTC)


def deflate_isal(data: bytes) -> bytes:
    """Deflate one buffer with isal, at its default level."""
    assert isal_zlib is not None
    return isal_zlib.compress(data)


def inflate_isal(data: bytes) -> bytes:
    """Inflate one buffer with isal."""
    assert isal_zlib is not None
    return isal_zlib.decompress(data)


def match_paths(paths: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """One pass of a compiled expression over a flat list of paths."""
    match = pattern.fullmatch
    return [path for path in paths if match(path)]


def find_bytes(contents: Mapping[str, bytes], needle: bytes) -> list[str]:
    """The files that hold `needle`, by one `bytes.find` each."""
    return [path for path, content in contents.items() if content.find(needle) >= 0]


def ripgrep_count(root: Path, pattern: str) -> dict[str, int]:
    """Let `rg` count the matching lines of every file, ignore files off, hidden files on."""
    command = [str(RG), "--no-config", "-uu", "--count", "-e", pattern, "."]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    counts: dict[str, int] = {}
    for line in done.stdout.decode(errors="surrogateescape").splitlines():
        path, _, number = line.rpartition(":")
        counts[path.removeprefix("./")] = int(number)
    return counts
