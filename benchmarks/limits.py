"""The physical limits: the least work that any answer needs, written as plainly as possible."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

RG = shutil.which("rg")


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
