"""Access below one root: both ways to open, and what each rejects."""

import errno
import fcntl
import gc
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from weakincentives.posix import rooted
from weakincentives.posix.descriptors import read_range
from weakincentives.posix.rooted import RootedDirectory, explain_error


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a" / "b" / "f").write_text("content")
    (tmp_path / "root" / "link").symlink_to("a")
    (tmp_path / "root" / "a" / "file-link").symlink_to("b/f")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("secret")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "root" / "pipe")
    return tmp_path / "root"


@pytest.fixture(params=["openat2", "steps", "no openat2", "no proc", "busy kernel"])
def root(
    request: pytest.FixtureRequest, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RootedDirectory]:
    """A root on kernels of different age and setup."""
    if request.param == "no openat2":
        monkeypatch.setattr(rooted, "_openat2", lambda *_: -errno.ENOSYS)
    if request.param == "no proc":
        monkeypatch.setattr(rooted, "HAS_PROC", False)
    directory = RootedDirectory(tree, kernel=request.param != "steps")
    if request.param == "busy kernel":
        monkeypatch.setattr(rooted, "_openat2", lambda *_: -errno.EAGAIN)
    yield directory
    directory.close()


def content(root: RootedDirectory, path: str) -> bytes:
    descriptor, found = root.open_file(path)
    try:
        return read_range(descriptor, 0, found.st_size)
    finally:
        os.close(descriptor)


def test_a_file_is_opened_for_reading_only(root: RootedDirectory) -> None:
    descriptor, found = root.open_file("a/b/f")
    assert stat.S_ISREG(found.st_mode)
    assert os.read(descriptor, 100) == b"content"
    with pytest.raises(OSError, match="Bad file"):
        os.write(descriptor, b"x")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_directories_and_parents_are_opened(root: RootedDirectory) -> None:
    for path, names in {"": {"a", "link", "out", "pipe"}, "a": {"b", "file-link"}}.items():
        descriptor = root.open_directory(path)
        with os.scandir(descriptor) as entries:
            assert {entry.name for entry in entries} == names
        os.close(descriptor)
    for path in ("a/b/new", "new", "a/new"):
        parent, name = root.open_parent(path)
        assert name == "new"
        assert stat.S_ISDIR(os.fstat(parent).st_mode)
        os.close(parent)


def test_metadata_does_not_follow_links(root: RootedDirectory, tree: Path) -> None:
    assert root.lstat("")[0].st_ino == tree.stat().st_ino
    assert root.lstat("a/b/f")[0].st_size == 7
    found, target = root.lstat("link")
    assert stat.S_ISLNK(found.st_mode)
    assert target == "a"
    assert root.lstat("a/file-link")[1] == "b/f"


@pytest.mark.parametrize(
    "path", ["link/b/f", "out/f", "a/file-link", "link", "out", "a/file-link/x", "pipe", "a"]
)
def test_only_regular_files_are_opened_and_no_link_is_followed(
    root: RootedDirectory, path: str
) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        root.open_file(path)
    assert caught.value.errno in {errno.ELOOP, errno.EPERM, errno.ENOTDIR}


@pytest.mark.parametrize("name", ["link", "out", "pipe", "a", "missing"])
def test_what_has_replaced_a_listed_file_is_not_read(root: RootedDirectory, name: str) -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match=r".") as caught:  # at once: nobody writes to the pipe
        root.open_listed(root.descriptor, name)
    assert caught.value.errno in {errno.ELOOP, errno.EPERM, errno.ENOENT}
    assert open_descriptors() == before


def test_a_listed_file_with_another_device_is_opened_unless_it_is_a_mount(
    root: RootedDirectory, tree: Path
) -> None:
    (tree / "f").write_text("content")
    root._device = -1  # as for a file in the lower layer of an overlay

    def opens(open_it: Callable[[int, str], tuple[int, os.stat_result]]) -> bool:
        try:
            os.close(open_it(root.descriptor, "f")[0])
        except OSError as error:
            assert error.errno == errno.EXDEV
            return False
        return True

    before = open_descriptors()
    assert opens(root.open_listed) == opens(root.open_entry)
    assert open_descriptors() == before


def test_a_listed_file_is_opened_even_if_somebody_has_a_lease_on_it(
    root: RootedDirectory, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "leased").write_text("content")
    holder = os.open(tree / "leased", os.O_RDWR)
    open_now = os.open

    def open_leased(path: str, flags: int, **options: int) -> int:
        if flags & os.O_NONBLOCK and fcntl.fcntl(holder, fcntl.F_GETLEASE) != fcntl.F_UNLCK:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)  # the holder gives it up
            raise BlockingIOError(errno.EAGAIN, "held")
        return open_now(path, flags, **options)

    fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    monkeypatch.setattr(os, "open", open_leased)
    descriptor, found = root.open_listed(root.descriptor, "leased")
    assert os.read(descriptor, 100) == b"content"
    assert found.st_size == len("content")
    os.close(descriptor)
    os.close(holder)


@pytest.mark.parametrize("path", ["link", "out", "a/b/f", "pipe", "link/b", "missing", "a/b/f/x"])
def test_only_directories_are_opened_as_such(root: RootedDirectory, path: str) -> None:
    for opened in (root.open_directory, lambda path: root.open_parent(f"{path}/x")):
        with pytest.raises(OSError, match=r".") as caught:
            opened(path)
        assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENOENT}


@pytest.mark.parametrize("path", ["a\ud800b", "a/\ud800/c", "\udfff"])
def test_what_cannot_be_a_name_is_not_there(root: RootedDirectory, path: str) -> None:
    for operation in (root.open_file, root.open_directory, root.open_parent, root.lstat):
        with pytest.raises(FileNotFoundError):
            operation(path)


def test_undecodable_names_are_found(root: RootedDirectory, tree: Path) -> None:
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff")).write_text("odd")
    assert content(root, "\udcff") == b"odd"


@pytest.mark.parametrize("levels", [5, 100])
def test_long_paths_are_opened_in_parts(
    root: RootedDirectory, tree: Path, levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooted, "_MAX_PATH", 30)
    before = open_descriptors()
    current = os.open(tree, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("segment", dir_fd=current)
        deeper = os.open("segment", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = deeper
    os.close(os.open("f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=current))
    os.symlink(".", "here", dir_fd=current)
    os.close(current)
    path = "/".join(["segment"] * levels)
    assert content(root, f"{path}/f") == b""
    assert root.lstat(f"{path}/here")[1] == "."
    with pytest.raises(OSError, match=r".") as caught:
        root.open_file(f"{path}/here/f")
    assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR}
    with pytest.raises(OSError, match=r".") as caught:
        root.open_file(f"{path}/{'n' * 300}/f")
    assert caught.value.errno == errno.ENAMETOOLONG
    assert open_descriptors() == before


def test_nothing_stays_open_whatever_happens(root: RootedDirectory, tree: Path) -> None:
    before = open_descriptors()
    for path in ("a/b/f", "link/b/f", "out/f", "pipe", "missing", "a/b/f/x", "a\ud800", "a"):
        for operation in (root.open_file, root.open_directory, root.open_parent, root.lstat):
            try:
                result = operation(path)
            except OSError:
                continue
            first = result if isinstance(result, int) else result[0]
            if isinstance(first, int):
                os.close(first)
    assert open_descriptors() == before


@pytest.mark.parametrize("kernel", [True, False])
def test_a_root_is_closed_with_its_owner(tree: Path, kernel: bool) -> None:
    before = open_descriptors()
    directory = RootedDirectory(tree, kernel=kernel)
    assert open_descriptors() == before + 1
    del directory
    gc.collect()
    assert open_descriptors() == before


def test_a_closed_root_does_not_use_the_number_again(tree: Path) -> None:
    directory = RootedDirectory(tree)
    number = directory.descriptor
    directory.close()
    directory.close()
    held = [os.open(tree.parent / "outside", os.O_RDONLY) for _ in range(3)]
    try:
        assert number in held
        for operation in (directory.open_file, directory.open_directory, directory.lstat):
            with pytest.raises(OSError, match="Bad file"):
                operation("f")
    finally:
        for each in held:
            os.close(each)


def magic_roots(held: int) -> list[str]:
    return [
        "/proc/self/cwd",
        "/proc/self/root",
        "/proc/self/root/tmp",
        "/proc/thread-self/cwd",
        f"/proc/self/fd/{held}",
        f"/dev/fd/{held}",
        f"/proc/{os.getpid()}/cwd",
    ]


@pytest.mark.parametrize("kernel", [True, False])
def test_a_root_through_a_link_of_the_kernel_is_refused(tree: Path, kernel: bool) -> None:
    held = os.open(tree, os.O_RDONLY)
    (tree / "to-magic").symlink_to("/proc/self/cwd")
    (tree / "to-link").symlink_to("to-magic")
    try:
        for path in [*magic_roots(held), str(tree / "to-magic"), str(tree / "to-link")]:
            with pytest.raises(PermissionError, match="magic link of the kernel"):
                RootedDirectory(Path(path), kernel=kernel)
    finally:
        os.close(held)


@pytest.mark.parametrize("kernel", [True, False])
def test_ordinary_roots_are_opened(
    tree: Path, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree)
    (tree / "chain").symlink_to("link")
    (tree / "absolute").symlink_to(tree / "a")
    for path in ("a", "link", "chain", "absolute", "a/../a", "./a", str(tree / "a")):
        root = RootedDirectory(Path(path), kernel=kernel)
        assert content(root, "b/f") == b"content"
        root.close()


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", FileNotFoundError),
        ("a/b/f", NotADirectoryError),
        ("pipe", NotADirectoryError),
        ("self", OSError),
        ("a\0b", ValueError),
    ],
)
def test_what_is_no_directory_is_no_root(
    tree: Path, kernel: bool, path: str, error: type[Exception]
) -> None:
    (tree / "self").symlink_to("self")
    with pytest.raises(error):
        RootedDirectory(tree / path, kernel=kernel)


def test_a_name_swapped_between_two_looks_is_looked_at_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readlink = os.readlink
    swaps: list[Callable[[], object]] = [
        lambda: ((tree / "link").unlink(), (tree / "link").write_text("now a file"))
    ]

    def after_swap(name: str, *, dir_fd: int) -> str:
        if swaps:
            swaps.pop()()
        return readlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", after_swap)
    root = RootedDirectory(tree)
    found, target = root.lstat("link")
    assert stat.S_ISREG(found.st_mode)
    assert target is None
    root.close()


def test_a_file_swapped_for_a_pipe_is_not_read_without_proc(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooted, "HAS_PROC", False)
    root = RootedDirectory(tree)
    real = os.stat

    def then_swap(path: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        found = real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        (tree / "a" / "b" / "f").unlink()
        os.mkfifo(tree / "a" / "b" / "f")
        return found

    before = open_descriptors()
    monkeypatch.setattr(os, "stat", then_swap)
    with pytest.raises(PermissionError, match="Not a regular file"):
        root.open_file("a/b/f")
    monkeypatch.undo()
    assert open_descriptors() == before
    root.close()


def test_a_range_is_read_in_pieces_and_ends_with_the_file(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 2), at))
    descriptor = os.open(tree / "a" / "b" / "f", os.O_RDONLY)
    assert read_range(descriptor, 0, 7) == b"content"
    assert read_range(descriptor, 1, 3) == b"ont"
    assert read_range(descriptor, 4, 100) == b"ent"
    assert read_range(descriptor, 100, 5) == b""
    os.close(descriptor)


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (errno.ELOOP, PermissionError, "Symbolic links are not followed"),
        (errno.EXDEV, PermissionError, "cross_mounts=True"),
        (errno.ENOENT, FileNotFoundError, "No such file"),
        (errno.ENOSPC, OSError, "No space left"),
        (errno.EIO, OSError, "Input/output error"),
    ],
)
def test_errors_name_the_path_in_the_workspace(code: int, error: type[OSError], text: str) -> None:
    found = explain_error(OSError(code, os.strerror(code), ".wink-tmp-1"), "dir/name")
    assert type(found) is error
    assert text in str(found)
    assert found.filename == "dir/name"
