"""Shared by the attacks: workspaces with an outside, hostile entries, small disks."""

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

from weakincentives.filesystem import DEFAULT_LIMITS, BaseFilesystem, HostFilesystem, Limits
from weakincentives.posix import RESERVED_PREFIX, rooted

Opener = Literal["openat2", "steps"]
Fingerprint = dict[str, tuple[int, int, int, str]]

ROOT = Path(__file__).parents[2]
SECRET = "the-secret-that-must-not-leave"


@dataclass(frozen=True)
class Place:
    """A workspace and what is around it."""

    workspace: Path
    outside: Path
    twin: Path

    @classmethod
    def laid_out(cls, base: Path) -> "Place":
        place = cls(base / "ws", base / "outside", base / "ws-evil")
        for directory in (place.workspace, place.outside, place.twin):
            directory.mkdir()
        (place.outside / "s.txt").write_text(SECRET)
        (place.outside / "inner").mkdir()
        (place.outside / "inner" / "s.txt").write_text(SECRET)
        (place.twin / "f").write_text(SECRET)
        (place.workspace / "a").mkdir()
        (place.workspace / "a" / "f.txt").write_text("inside\n")
        return place

    def surroundings(self) -> Fingerprint:
        return fingerprint(self.outside) | fingerprint(self.twin)


def fingerprint(path: Path) -> Fingerprint:
    """Return what is at and below `path`: kinds, modes, sizes, times and content."""
    found: Fingerprint = {}
    for each in [path, *sorted(path.rglob("*"))]:
        status = each.lstat()
        content = each.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        digest = hashlib.sha256(content).hexdigest()
        found[str(each)] = (status.st_mode, status.st_size, status.st_mtime_ns, digest)
    return found


def opened(
    root: Path, opener: Opener, *, cross_mounts: bool = False, limits: Limits = DEFAULT_LIMITS
) -> HostFilesystem:
    """Open a workspace as on a kernel with, or without, `openat2`."""
    if opener == "openat2":
        return HostFilesystem(root, cross_mounts=cross_mounts, limits=limits)
    with mock.patch.object(rooted, "_kernel_has_openat2", return_value=False):
        return HostFilesystem(root, cross_mounts=cross_mounts, limits=limits)


def visible(fs: BaseFilesystem) -> dict[str, bytes | str | None]:
    """Return the whole workspace as its user sees it: bytes, link targets, None for the rest."""
    state: dict[str, bytes | str | None] = {}
    pending = [""]
    while pending:
        for entry in fs.list(pending.pop()):
            assert RESERVED_PREFIX not in entry.path
            state[entry.path] = None
            if entry.is_file:
                state[entry.path] = fs.read_bytes(entry.path).content
            elif entry.is_directory:
                pending.append(entry.path)
            elif entry.is_symlink:
                state[entry.path] = fs.stat(entry.path).link_target
    return state


def temporary_names(root: Path) -> list[str]:
    """Return the hidden names that are on the disk."""
    return [
        name
        for _, directories, files in os.walk(root)
        for name in directories + files
        if name.startswith(RESERVED_PREFIX)
    ]


def make_special(kind: str, path: Path) -> None:
    """Make a pipe, socket or device; of a device, the test needs root."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        mode, number = (stat.S_IFCHR, (1, 3)) if kind == "character" else (stat.S_IFBLK, (7, 0))
        os.mknod(path, mode | 0o666, os.makedev(*number))


@contextmanager
def temporary(*, light: bool = False) -> Iterator[Path]:
    """Make a directory that is gone afterwards; a light one is in memory where it can be."""
    memory = Path("/dev/shm")
    parent = memory if light and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="wink-safety-", dir=parent))
    try:
        yield path
    finally:
        for point in mounts_below(path):
            subprocess.run(["umount", "--lazy", point], check=True)
        try:
            shutil.rmtree(path)
        except (OSError, RecursionError):  # locked, or too deep for a recursive function
            subprocess.run(["chmod", "-R", "u+rwx", "--", path], check=False)
            subprocess.run(["rm", "-rf", "--", path], check=True)


@contextmanager
def mounted(path: Path, size: str = "1m") -> Iterator[None]:
    """Mount a small disk at `path`; the test needs root."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        if path.is_mount():
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def mounts_below(path: Path) -> list[Path]:
    """Return where other file systems are mounted below `path`, innermost first."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else []
    points = [Path(line.split()[1]) for line in lines]
    return [point for point in reversed(points) if point != path and point.is_relative_to(path)]
