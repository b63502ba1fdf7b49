"""HostFilesystem only: a root on disk, leftovers, other programs beside it."""

import errno
import gc
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    READ_ENTIRE_FILE,
    BackendUnavailableError,
    Filesystem,
    FilesystemEvent,
    HostFilesystem,
    HostMount,
    LimitExceededError,
    Limits,
)
from weakincentives.posix import RESERVED_PREFIX, fault_hook

# a name of this machine whose maker is long gone: no process has such a number
LEFT = f"{RESERVED_PREFIX}{Path('/proc/self/ns/pid').stat().st_ino:x}-999999999-1-"


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[HostFilesystem]:
    with HostFilesystem(tmp_path) as filesystem:
        yield filesystem


def test_the_root_is_reported_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ws").mkdir()
    (tmp_path / "link").symlink_to("ws")
    for given in ("ws", "./ws", "link", str(tmp_path / "ws"), tmp_path / "ws"):
        with HostFilesystem(given) as fs:
            assert fs.root == str(given)
            assert isinstance(fs, Filesystem)


def test_the_older_keyword_names_work(tmp_path: Path) -> None:
    with HostFilesystem(_root=tmp_path, _read_only=True, _git_dir=tmp_path / "git") as fs:
        assert fs.read_only
        assert fs.root == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_root_is_needed(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="root"):
        HostFilesystem()
    with pytest.raises(FileNotFoundError):
        HostFilesystem(tmp_path / "missing")


def test_files_are_plain_files_for_other_programs(fs: HostFilesystem, tmp_path: Path) -> None:
    fs.write("a/b/f", "text\n")
    assert (tmp_path / "a" / "b" / "f").read_text() == "text\n"
    (tmp_path / "a" / "g").write_text("from outside")
    assert fs.read("a/g").content == "from outside"
    assert [entry.path for entry in fs.list("a")] == ["a/b", "a/g"]


def test_new_files_and_directories_follow_the_umask(fs: HostFilesystem, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        fs.write("d/f", "x")
        fs.copy("d", "e")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("d/f", "d", "e/f", "e")]
    assert modes == [0o640, 0o750, 0o640, 0o750]


@pytest.mark.parametrize("in_savepoint", [False, True])
def test_extended_attributes_survive_writing_and_appending(
    fs: HostFilesystem, tmp_path: Path, in_savepoint: bool
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    os.setxattr(path, "user.mine", b"label")
    with fs.savepoint() if in_savepoint else nullcontext():
        fs.write("a.txt", "two")
        fs.write("a.txt", "three", mode="append")
    assert os.getxattr(path, "user.mine") == b"label"


@pytest.mark.parametrize("in_savepoint", [False, True])
def test_an_attribute_that_is_set_during_a_write_is_carried_over(
    fs: HostFilesystem, tmp_path: Path, in_savepoint: bool
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")

    def label(point: str) -> None:
        if point == "store.written":  # the new file has the attributes that there were
            os.setxattr(path, "user.mine", b"label")

    with fs.savepoint() if in_savepoint else nullcontext(), fault_hook(label):
        fs.write("a.txt", "two")
    assert path.read_text() == "two"
    assert os.getxattr(path, "user.mine") == b"label"


@pytest.mark.parametrize("function", ["listxattr", "getxattr"])
@pytest.mark.parametrize("change", ["write", "restore"])
def test_a_file_whose_attributes_cannot_be_read_is_not_replaced(
    fs: HostFilesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, change: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = fs.snapshot()
    path.write_text("two")
    os.setxattr(path, "user.mine", b"label")

    def fail(*_: object, **__: object) -> object:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patch, pytest.raises((OSError, SnapshotError)):
        patch.setattr(os, function, fail)
        if change == "write":
            fs.write("a.txt", "three")
        else:
            fs.restore(before)
    assert path.read_text() == "two"
    assert os.getxattr(path, "user.mine") == b"label"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444])
def test_permissions_survive_writing_appending_moving_and_copying(
    fs: HostFilesystem, tmp_path: Path, mode: int
) -> None:
    fs.write("f", "x")
    (tmp_path / "f").chmod(mode)
    is_refused = os.geteuid() != 0 and not mode & 0o200
    with pytest.raises(PermissionError) if is_refused else nullcontext():
        fs.write("f", "y")
    with pytest.raises(PermissionError) if is_refused else nullcontext():
        fs.write("f", "z", mode="append")
    fs.copy("f", "copied")
    fs.move("f", "moved")
    assert fs.stat("copied").permissions == mode
    assert fs.stat("moved").permissions == mode


@pytest.mark.parametrize("bits", [0o4755, 0o2755, 0o6711])
def test_a_copy_never_runs_with_the_rights_of_another(
    fs: HostFilesystem, tmp_path: Path, bits: int
) -> None:
    fs.write("f", "x")
    (tmp_path / "f").chmod(bits)
    fs.copy("f", "g")
    fs.write("f", "y")
    for name in ("f", "g"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == bits & 0o777


def test_metadata_is_that_of_the_disk(fs: HostFilesystem, tmp_path: Path) -> None:
    fs.write("f", "12345")
    os.utime(tmp_path / "f", (1_000_000_000, 1_000_000_000))
    found = fs.stat("f")
    assert found.size_bytes == 5
    assert found.modified_at == datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)
    assert found.permissions == stat.S_IMODE((tmp_path / "f").stat().st_mode)


def test_a_stat_that_is_out_of_date_has_no_hash(fs: HostFilesystem) -> None:
    fs.write("f", "one")
    found = fs.stat("f")
    assert found.content_hash == fs.content_hash("f")
    fs.write("f", "two")
    assert found.content_hash is None
    fs.delete("f")
    assert found.content_hash is None


def test_leftovers_are_removed_by_the_next_who_comes(tmp_path: Path) -> None:
    (tmp_path / f"{LEFT}1").write_text("left")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / f"{LEFT}2" / "deep").mkdir(parents=True)
    HostFilesystem(tmp_path).close()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]


def test_leftovers_are_removed_by_listing_too(fs: HostFilesystem, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for look in (lambda: fs.list("a"), lambda: fs.glob("**"), lambda: fs.grep("x")):
        left = tmp_path / "a" / f"{LEFT}3"
        left.write_text("x")
        assert look() == ()
        assert not left.exists()


def test_the_sweep_at_the_start_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weakincentives.filesystem.host.filesystem._MAX_SWEPT_ENTRIES", 5)
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / f"{LEFT}3").write_text("")
    with HostFilesystem(tmp_path) as fs:
        assert len(list(tmp_path.rglob(".wink-tmp-*"))) > 0
        assert fs.glob("**") == ()
    assert list(tmp_path.rglob(".wink-tmp-*")) == []


def test_reserved_names_of_others_cannot_be_reached(fs: HostFilesystem, tmp_path: Path) -> None:
    name = f".wink-tmp-0-{os.getpid()}-0-0"
    (tmp_path / name).mkdir()
    (tmp_path / name / "f").write_text("x")
    for path in (name, f"{name}/f"):
        assert not fs.exists(path)
        for operation in (fs.read, fs.stat, fs.list, fs.delete):
            with pytest.raises(FileNotFoundError):
                operation(path)
    assert (tmp_path / name / "f").exists()


def test_a_quota_counts_what_other_programs_wrote(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x" * 900)
    with HostFilesystem(tmp_path, limits=Limits(max_total_bytes=1_000)) as fs:
        with pytest.raises(LimitExceededError, match="quota"):
            fs.write("f", "x" * 200)
        (tmp_path / "there").unlink()
        fs.write("f", "x" * 200)


def test_an_entry_that_vanishes_while_it_is_listed_is_left_out(
    fs: HostFilesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.write("a", "x")
    fs.write("b", "x")
    scandir = os.scandir

    def then_vanish(descriptor: int) -> object:
        found = scandir(descriptor)
        monkeypatch.undo()
        entries = list(found)
        (tmp_path / "a").unlink()
        return _Entries(entries)

    monkeypatch.setattr(os, "scandir", then_vanish)
    assert [entry.name for entry in fs.list()] == ["b"]


class _Entries(list["os.DirEntry[str]"]):
    """What `scandir` returns."""

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None: ...


def test_events_carry_hashes_and_sizes_from_the_disk(fs: HostFilesystem) -> None:
    events: list[FilesystemEvent] = []
    fs.subscribe(events.append)
    fs.write("d/f", "one")
    fs.write("d/f", "two!", mode="append")
    fs.copy("d", "e")
    fs.move("e", "g")
    fs.delete("g", recursive=True)
    assert [type(event).__name__ for event in events] == [
        "DirectoryCreated",
        "FileWritten",
        "FileWritten",
        "DirectoryCreated",
        "FileWritten",
        "EntryMoved",
        "FileDeleted",
    ]
    digest = fs.content_hash("d/f")
    assert [getattr(event, "after_hash", None) for event in events][2] == digest
    assert [getattr(event, "after_hash", None) for event in events][4] == digest


@pytest.mark.parametrize(
    "data",
    [
        b"a\r\nb\rc\x0cd\x1ce\n",
        "a\u2028b\u2029c\x85d\n".encode(),
        b"\xef\xbb\xbfa\nb",
        b"\n\n",
        b"",
    ],
)
def test_text_comes_back_byte_for_byte(fs: HostFilesystem, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    page = fs.read("f", limit=READ_ENTIRE_FILE)
    assert page.content.encode() == data
    assert page.total_lines == data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    pages = [fs.read("f", offset=line, limit=1).content for line in range(page.total_lines)]
    assert "".join(pages).encode() == data


FAILURES: dict[str, Callable[[HostFilesystem], object]] = {
    "read": lambda fs: fs.read("missing"),
    "write": lambda fs: fs.write("f/x", ""),
    "create": lambda fs: fs.write("f", "", mode="create"),
    "list": lambda fs: fs.list("f"),
    "delete": lambda fs: fs.delete("d"),
    "move": lambda fs: fs.move("missing", "x"),
    "mkdir": lambda fs: fs.mkdir("f"),
}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_no_error_tells_where_the_workspace_is(
    fs: HostFilesystem, tmp_path: Path, fail: Callable[[HostFilesystem], object]
) -> None:
    fs.write("f", "x")
    fs.mkdir("d")
    with pytest.raises(OSError, match=r".") as caught:
        fail(fs)
    assert str(tmp_path) not in str(caught.value)
    assert ".wink-tmp" not in str(caught.value)
    assert caught.value.filename in {"missing", "f/x", "f", "d"}


def test_no_operation_leaves_a_file_open(fs: HostFilesystem, tmp_path: Path) -> None:
    fs.write("d/f", "x\n" * 100)
    (tmp_path / "l").symlink_to("d")
    os.mkfifo(tmp_path / "p")
    gc.collect()
    before = open_descriptors()
    for path in ("d/f", "d", "l", "l/f", "p", "missing", ".", "d/f/x", "../x"):
        for operation in (
            fs.read, fs.read_bytes, fs.stat, fs.list, fs.exists, fs.content_hash,
            lambda path: fs.glob("**", path=path), lambda path: fs.grep("x", path=path),
            lambda path: fs.write(path, "x\n"), lambda path: fs.write(path, "x", mode="append"),
            fs.mkdir, lambda path: fs.copy(path, "copied"), lambda path: fs.move("copied", path),
            lambda path: fs.delete("copied", recursive=True),
        ):  # fmt: skip
            try:
                operation(path)
            except (OSError, ValueError):
                continue
    assert open_descriptors() == before


def test_a_directory_is_opened_for_a_program_and_nothing_else_is(fs: HostFilesystem) -> None:
    fs.write("d/a", "hello")
    descriptor = fs.open_directory("/d/")
    try:
        assert os.stat("a", dir_fd=descriptor).st_size == 5
    finally:
        os.close(descriptor)
    Path(fs.root, "link").symlink_to("d")
    for path, error in {
        "d/a": NotADirectoryError,
        "link": PermissionError,
        "missing": FileNotFoundError,
        "../d": PermissionError,
    }.items():
        with pytest.raises(error):
            fs.open_directory(path)


GONE: dict[str, Callable[[Path], object]] = {
    "removed": shutil.rmtree,
    "replaced": lambda root: (shutil.rmtree(root), root.mkdir(), (root / "other").touch()),
    "a file now": lambda root: (shutil.rmtree(root), root.touch()),
    "a link now": lambda root: (shutil.rmtree(root), root.symlink_to(root.parent)),
}
ANYTHING: dict[str, Callable[[HostFilesystem], object]] = {
    "list": lambda fs: fs.list(),
    "list below": lambda fs: fs.list("d"),
    "glob": lambda fs: fs.glob("**"),
    "glob below": lambda fs: fs.glob("*", path="d"),
    "grep": lambda fs: fs.grep("text"),
    "grep one": lambda fs: fs.grep("text", path="d/f"),
    "exists": lambda fs: fs.exists("."),
    "exists below": lambda fs: fs.exists("d/f"),
    "never existed": lambda fs: fs.exists("x/y/z"),
    "stat": lambda fs: fs.stat("."),
    "stat below": lambda fs: fs.stat("d/f"),
    "read": lambda fs: fs.read("d/f"),
    "read_bytes": lambda fs: fs.read_bytes("d/f"),
    "content_hash": lambda fs: fs.content_hash("d/f"),
    "write": lambda fs: fs.write("new", "text"),
    "write over": lambda fs: fs.write("d/f", "text", mode="overwrite"),
    "append": lambda fs: fs.write("d/f", "text", mode="append"),
    "write below": lambda fs: fs.write("a/b/new", "text"),
    "write_bytes": lambda fs: fs.write_bytes("new", b""),
    "mkdir": lambda fs: fs.mkdir("new/below"),
    "mkdir root": lambda fs: fs.mkdir("."),
    "savepoint": lambda fs: fs.savepoint(),
    "delete": lambda fs: fs.delete("d/f"),
    "delete all": lambda fs: fs.delete("d", recursive=True),
    "move": lambda fs: fs.move("d/f", "g"),
    "copy": lambda fs: fs.copy("d", "e"),
    "open_directory": lambda fs: fs.open_directory("."),
    "snapshot": lambda fs: fs.snapshot(),
    "restore": lambda fs: fs.restore(fs.history.list()[0]),
    "restore a path": lambda fs: fs.restore(fs.history.list()[0], paths=["d"]),
    "preview": lambda fs: fs.preview(fs.history.list()[0]),
    "export": lambda fs: fs.export_archive(Path(fs.root).with_name("export.zip")),
    "import": lambda fs: fs.import_archive(Path(fs.root).with_name("before.zip")),
    "hydrate": lambda fs: fs.hydrate_from_host(
        HostMount(__file__), allowed_roots=[Path(__file__).parent]
    ),
}


@pytest.mark.parametrize("how", GONE)
@pytest.mark.parametrize("name", ANYTHING)
def test_a_root_that_is_gone_is_unavailable_and_not_empty(
    tmp_path: Path, name: str, how: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        fs.write("d/f", "text")
        fs.snapshot()
        fs.export_archive(tmp_path / "before.zip")
        GONE[how](root)
        before = sorted(tmp_path.iterdir()), sorted(root.iterdir()) if root.is_dir() else None
        for _ in range(2):
            with pytest.raises(BackendUnavailableError) as caught:
                ANYTHING[name](fs)
            sentence = f"Directory was removed; create it and open it again: {str(root)!r}"
            assert str(caught.value).endswith(sentence)
            assert isinstance(caught.value, RuntimeError)
        assert before == (
            sorted(tmp_path.iterdir()),
            sorted(root.iterdir()) if root.is_dir() else None,
        )
        assert fs.view(fs.history.list()[0]).read("d/f").content == "text"
        fs.cleanup()


def test_a_root_that_is_made_again_is_opened_anew(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        fs.write("d/f", "text")
        kept = fs.snapshot()
        shutil.rmtree(root)
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        assert fs.list() == ()
        fs.restore(kept)
        assert fs.read("d/f").content == "text"


@pytest.mark.parametrize("inner", [False, True])
def test_a_rollback_in_a_root_that_is_gone_is_no_success(tmp_path: Path, inner: bool) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with HostFilesystem(root) as fs:
        fs.write("f", "old")
        savepoints = [fs.savepoint() for _ in range(1 + inner)]
        fs.write("f", "new")
        shutil.rmtree(root)
        for savepoint in reversed(savepoints):
            with pytest.raises(BackendUnavailableError):
                savepoint.rollback()
            assert not savepoint.is_open
        assert not root.exists()


def test_a_filesystem_whose_root_is_gone_is_closed_with_a_savepoint_open(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    fs = HostFilesystem(root)
    savepoint = fs.savepoint()
    fs.write("f", "new")
    shutil.rmtree(root)
    fs.close()
    assert not savepoint.is_open
    assert not root.exists()


def test_a_root_that_was_moved_is_still_the_same(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root") as fs:
        fs.write("f", "text")
        (tmp_path / "root").rename(tmp_path / "elsewhere")
        assert fs.read("f").content == "text"
        assert not fs.exists("g")


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOTCONN, errno.ENODEV])
def test_a_file_system_that_is_not_connected_is_unavailable(tmp_path: Path, code: int) -> None:
    with HostFilesystem(tmp_path) as fs:
        failure = fs._directory.explain_error(OSError(code, os.strerror(code)), "f")
    assert isinstance(failure, BackendUnavailableError)
    assert os.strerror(code) in str(failure)


def test_a_write_into_a_directory_that_is_being_removed_says_that_it_is_gone(
    tmp_path: Path,
) -> None:
    (tmp_path / "w" / "d").mkdir(parents=True)

    def remove(point: str) -> None:
        gone = tmp_path / "w" / ".gone"
        if point == "store.written" and not gone.exists():
            (tmp_path / "w" / "d").rename(gone)
            for each in gone.iterdir():  # the directory itself comes last
                each.unlink()

    with HostFilesystem(tmp_path / "w") as fs:
        with fault_hook(remove), pytest.raises(FileNotFoundError, match="d/f"):
            fs.write("d/f", "text")
        assert not fs.exists("d")
