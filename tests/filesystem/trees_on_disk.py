"""Directory trees on disk: create, read and damage them.

Nothing of the package is used here. What is there is found by system calls on names in
bytes, from directory to directory, so that no path is too long.
"""

import os
import random
import socket
import stat
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.filesystem.generated_trees import (
    ODD,
    PLAIN,
    RESERVED,
    Children,
    Directory,
    Link,
    Node,
    Trees,
)

# by path: kind with permissions, and the content of a file or the target of a link
State: TypeAlias = dict[bytes, tuple[int, bytes]]


def lay_out(root: Path, children: Children) -> None:
    """Make a tree in an empty directory."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        _fill(descriptor, children)
    finally:
        os.close(descriptor)


def _fill(directory: int, children: Children) -> None:
    for name, node in children.items():
        make(directory, name, node)


def make(directory: int, name: bytes, node: Node) -> None:
    """Make one entry, with everything below."""
    if isinstance(node, Link):
        os.symlink(node.target, name, dir_fd=directory)
        return
    if isinstance(node, Directory):
        os.mkdir(name, 0o700, dir_fd=directory)
        descriptor = os.open(name, os.O_RDONLY, dir_fd=directory)
        try:
            _fill(descriptor, node.children)
            os.fchmod(descriptor, node.mode)
        finally:
            os.close(descriptor)
        return
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        os.write(descriptor, node.content)
        os.fchmod(descriptor, node.mode)
    finally:
        os.close(descriptor)


def state_of(root: Path) -> State:
    """Return everything that is below `root`, hidden or not."""
    found: State = {}
    descriptor = os.open(root, os.O_RDONLY)
    try:
        _observe(descriptor, b"", found)
    finally:
        os.close(descriptor)
    return found


def _observe(directory: int, prefix: bytes, found: State) -> None:
    for name in names_in(directory):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        path, content = prefix + name, b""
        if stat.S_ISLNK(status.st_mode):
            found[path] = (stat.S_IFLNK, os.readlink(name, dir_fd=directory))
            continue
        if stat.S_ISDIR(status.st_mode):
            with _opened(directory, name) as inner:
                _observe(inner, path + b"/", found)
        elif stat.S_ISREG(status.st_mode):
            with _opened(directory, name) as inner:
                content = os.read(inner, status.st_size + 1)
        found[path] = (status.st_mode, content)


@contextmanager
def _opened(directory: int, name: bytes) -> Generator[int, None, None]:
    """Open a file or directory; one that is closed to its owner is open for a while."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    mode, needed = stat.S_IMODE(found.st_mode), 0o700 if stat.S_ISDIR(found.st_mode) else 0o400
    is_closed = mode & needed != needed and os.geteuid() != 0
    if is_closed:
        os.chmod(name, mode | needed, dir_fd=directory)
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        yield descriptor
    finally:
        if is_closed:
            os.fchmod(descriptor, mode)
        os.close(descriptor)


def names_in(directory: int) -> list[bytes]:
    """Return the names in an open directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(os.fsencode(entry.name) for entry in entries)


def without_specials(state: State) -> State:
    """Return the files, directories and links."""
    return {path: entry for path, entry in state.items() if not _is_special(entry[0])}


def specials(state: State) -> set[bytes]:
    """Return the paths of pipes and sockets."""
    return {path for path, (mode, _) in state.items() if _is_special(mode)}


def _is_special(mode: int) -> bool:
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def difference(found: State, expected: State) -> str:
    """Return what differs, for a person."""
    paths = sorted(
        path for path in found.keys() | expected if found.get(path) != expected.get(path)
    )
    lines = [f"{path!r}: {found.get(path)!r:.80}, not {expected.get(path)!r:.80}" for path in paths]
    return "; ".join(lines[:5])


def clear(root: Path) -> None:
    """Remove everything below `root`."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        for name in names_in(descriptor):
            _remove(descriptor, name)
    finally:
        os.close(descriptor)


def _remove(directory: int, name: bytes) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=directory)
        return
    os.chmod(name, 0o700, dir_fd=directory)
    with _opened(directory, name) as inner:
        for child in names_in(inner):
            _remove(inner, child)
    os.rmdir(name, dir_fd=directory)


# --- spoiling ---


class _Place(NamedTuple):
    """An entry on the disk, in a directory that is open."""

    directory: int
    name: bytes
    mode: int


def spoil(root: Path, trees: Trees, choice: random.Random) -> None:
    """Change a few things below `root`, as somebody would who owns it all."""
    for _ in range(choice.randint(1, 8)):
        with _somewhere(root, choice) as place:
            choice.choice(_SPOILERS)(place, trees, choice)


@contextmanager
def _somewhere(root: Path, choice: random.Random) -> Iterator[_Place]:
    """Go down from the root for a while; the directory can be written to meanwhile."""
    with ExitStack() as above:
        current = os.open(root, os.O_RDONLY)
        above.callback(os.close, current)
        while True:
            names = names_in(current)
            name = choice.choice(names) if names else b"new"
            mode = os.stat(name, dir_fd=current, follow_symlinks=False).st_mode if names else 0
            if not stat.S_ISDIR(mode) or choice.random() < 0.4:
                break
            current = above.enter_context(_opened(current, name))
        yield _Place(current, name, mode)


def _delete(place: _Place, trees: Trees, choice: random.Random) -> None:
    if place.mode:
        _remove(place.directory, place.name)


def _replace(place: _Place, trees: Trees, choice: random.Random) -> None:
    _delete(place, trees, choice)
    make(place.directory, place.name, trees.node(choice, 2))


def _replace_by_special(place: _Place, trees: Trees, choice: random.Random) -> None:
    _delete(place, trees, choice)
    make_special(place.directory, place.name, choice)


def make_special(directory: int, name: bytes, choice: random.Random) -> None:
    """Make a pipe or a socket."""
    if choice.random() < 0.5:
        os.mkfifo(name, 0o640, dir_fd=directory)
        return
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.bind(b"/proc/self/fd/%d/%s" % (directory, name))
        except OSError:  # the name is too long for a socket
            os.mkfifo(name, dir_fd=directory)


def _overwrite(place: _Place, trees: Trees, choice: random.Random) -> None:
    """Write other bytes into the same file, of the same size and with the same time."""
    if not stat.S_ISREG(place.mode):
        _replace(place, trees, choice)
        return
    os.chmod(place.name, 0o600, dir_fd=place.directory)
    descriptor = os.open(place.name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=place.directory)
    try:
        found = os.fstat(descriptor)
        size = found.st_size + choice.choice([0, 0, 1])
        os.pwrite(descriptor, choice.randbytes(size), 0)
        os.fchmod(descriptor, stat.S_IMODE(place.mode))
        os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(descriptor)


def _chmod(place: _Place, trees: Trees, choice: random.Random) -> None:
    if stat.S_ISREG(place.mode) or stat.S_ISDIR(place.mode):
        mode = trees.mode(choice, place.mode)
        os.chmod(place.name, mode, dir_fd=place.directory)


def _add(place: _Place, trees: Trees, choice: random.Random) -> None:
    taken = names_in(place.directory)
    for name, node in trees.some(choice, 2).items():
        if name not in taken:
            make(place.directory, name, node)


def _rename(place: _Place, trees: Trees, choice: random.Random) -> None:
    names = names_in(place.directory)
    goal = choice.choice([*PLAIN, *RESERVED, *ODD])
    if place.mode and goal not in names:
        os.rename(place.name, goal, src_dir_fd=place.directory, dst_dir_fd=place.directory)


def _swap(place: _Place, trees: Trees, choice: random.Random) -> None:
    """Let two entries change places."""
    names = names_in(place.directory)
    if len(names) < 2 or b"third" in names:
        return
    first, second = choice.sample(names, 2)
    for source, goal in ((first, b"third"), (second, first), (b"third", second)):
        os.rename(source, goal, src_dir_fd=place.directory, dst_dir_fd=place.directory)


def _hard_link(place: _Place, trees: Trees, choice: random.Random) -> None:
    names = names_in(place.directory)
    if stat.S_ISREG(place.mode) and b"twin" not in names:
        os.link(place.name, b"twin", src_dir_fd=place.directory, dst_dir_fd=place.directory)


_SPOILERS = [
    *(_delete, _delete, _replace, _replace, _replace_by_special, _overwrite, _overwrite),
    *(_chmod, _chmod, _add, _add, _rename, _swap, _hard_link),
]
