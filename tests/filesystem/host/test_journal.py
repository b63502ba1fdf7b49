"""The journal on disk: its records, their validation, and recovery."""

import fcntl
import gc
import os
import re
import signal
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.filesystem.trees_on_disk import state_of
from tests.safety.places import ROOT, mounted, temporary, temporary_names
from weakincentives.filesystem import HostFilesystem, Savepoint, SavepointError
from weakincentives.filesystem.host.journal.records import JournalDirectory, Record
from weakincentives.history.entries import EntryState
from weakincentives.posix import fault_hook
from weakincentives.posix.paths import is_leftover

NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"])
    | st.sampled_from("\udc80\udcff"),
    min_size=1,
    max_size=8,
).filter(lambda name: name not in {".", ".."} and not name.startswith(".wink-tmp-"))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
STATES = st.one_of(
    st.just(EntryState()),
    st.builds(
        EntryState,
        st.just("file"),
        st.integers(0, 0o7777),
        st.integers(0, 2**40),
        st.just("0123456789" * 4),
    ),
    st.builds(EntryState, st.just("symlink"), target=PATHS),
    st.builds(EntryState, st.just("directory"), st.integers(0, 0o7777)),
)
NUMBERS = st.integers(0, 10**9)
RECORDS = st.one_of(
    st.builds(
        Record,
        st.sampled_from(["put", "again", "new", "removed", "held"]),
        PATHS,
        NUMBERS,
        st.sampled_from(["", "beside"]),
        STATES,
        NUMBERS,
    ),
    st.builds(Record, st.sampled_from(["made", "mode", "undo"]), PATHS, NUMBERS, after=STATES),
    st.builds(Record, st.just("moved"), PATHS, NUMBERS, PATHS),
    st.builds(Record, st.sampled_from(["released", "reported"]), number=st.integers(0, 1)),
    st.builds(Record, st.just("state"), other=st.just(":".join(["0123456789" * 4] * 2))),
)


@contextmanager
def journal_directory(content: bytes = b"") -> Iterator[Callable[[], JournalDirectory]]:
    with temporary(light=True) as place:
        (place / "journal").mkdir()
        (place / "journal" / ".gitignore").write_bytes(content)
        descriptor = os.open(place, os.O_RDONLY)
        try:
            yield lambda: JournalDirectory(descriptor, "journal", durable=False)
        finally:
            os.close(descriptor)


def written(*records: Record) -> bytes:
    return b"*\n# wink-journal 4\n" + b"".join(record.encode() for record in records)


def read(content: bytes) -> list[Record]:
    with journal_directory(content) as open_journal:
        journal = open_journal()
        assert journal.read()
        return journal.records


# --- the format ---


def test_a_record_is_what_the_page_on_the_format_says() -> None:
    after = EntryState("file", 0o644, 3, "0123456789" * 4)
    content = (
        b'{"kind":"put","path":"a b/\\udcff\\n","number":12,"other":"","after":{"kind":"file",'
    )
    content += b'"mode":420,"size":3,"blob":"%b","target":""},"inode":99}' % (b"0123456789" * 4)
    record = Record("put", "a b/\udcff\n", 12, "", after, 99)
    assert record.encode() == b"# %08x %b\n" % (zlib.crc32(content), content)


@given(st.lists(RECORDS, max_size=6))
def test_what_is_written_is_read(records: list[Record]) -> None:
    with journal_directory() as open_journal:
        journal = open_journal()
        for record in records:
            journal.add(record)
        again = open_journal()
        assert again.read()
        assert again.records == records
        for _ in records:
            again.drop_last()
        assert again.records == []
        again.add(Record("made", "new"))
        last = open_journal()
        last.read()
        assert last.records == [Record("made", "new")]


def test_a_record_that_is_not_whole_is_not_there() -> None:
    records = [Record("put", "a", 1), Record("made", "b")]
    whole = written(*records)
    for length in range(len(written(records[0])), len(whole)):
        assert read(whole[:length]) == records[:1]
    for position in range(len(written(records[0])), len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x11
        assert read(bytes(damaged)) == records[:1], position


def test_what_follows_a_damaged_record_is_not_there() -> None:
    first, second = Record("made", "a"), Record("made", "b")
    assert read(written(first) + b"\0" * 40 + second.encode()) == [first]
    assert read(b"") == read(b"wink-jour") == read(b"\0" * 100) == []


@pytest.mark.parametrize(
    "record",
    [
        Record("made", ""),
        Record("made", ".."),
        Record("made", "../out"),
        Record("made", "a/../../out"),
        Record("made", "/etc/passwd"),
        Record("made", "a//b"),
        Record("made", "a/"),
        Record("put", ".wink-tmp-journal-0-1-2-3/records", 1),
        Record("put", "a/.wink-tmp-0-1-2-3", 1),
        Record("moved", "a", 0, "../b"),
        Record("moved", "a", 0, ""),
        Record("moved", "../a", 0, "b"),
        Record("state", other="../../other"),
        Record("state", other="HEAD"),
        Record("other", "a"),  # pyright: ignore[reportArgumentType] # there is none
        Record("put", "a", -1),
    ],
    ids=str,
)
def test_what_leads_elsewhere_is_no_record(record: Record) -> None:
    assert read(written(record, Record("made", "a"))) == []


# --- who rolls back ---


@pytest.fixture
def root() -> Iterator[Path]:
    with temporary(light=True) as place:
        (place / "root").mkdir()
        (place / "root" / "file").write_text("old")
        yield place / "root"


def opened(root: Path, *, read_only: bool = False) -> HostFilesystem:
    return HostFilesystem(root, git_dir=root.parent / "store", read_only=read_only)


_unended: dict[HostFilesystem, Savepoint] = {}


def change(root: Path) -> HostFilesystem:
    """Change something in a savepoint that nobody ends."""
    fs = opened(root)
    _unended[fs] = fs.savepoint()
    fs.write("file", "new")
    fs.write("dir/other", "new")
    return fs


def in_a_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def journal_in(root: Path) -> Path:
    [name] = temporary_names(root)
    return root / name


@pytest.fixture
def left(root: Path) -> Path:
    """A journal whose process is gone."""
    os.waitpid(in_a_child(lambda: change(root)), 0)
    assert (root / "file").read_text() == "new"
    return journal_in(root)


def is_rolled_back(root: Path) -> bool:
    return state_of(root) == {b"file": (stat.S_IFREG | 0o644, b"old")}


def test_the_next_one_who_writes_rolls_it_back(root: Path, left: Path) -> None:
    with opened(root) as fs:
        assert is_rolled_back(root)
        fs.write("file", "newer")
    with opened(root):
        assert (root / "file").read_text() == "newer"


def test_who_only_reads_leaves_it_alone(root: Path, left: Path) -> None:
    before = state_of(root)
    with opened(root, read_only=True) as fs:
        assert [entry.name for entry in fs.list()] == ["dir", "file"]
    assert state_of(root) == before


def test_it_is_no_leftover_to_those_who_only_come_across_it(root: Path) -> None:
    with opened(root) as beside:
        os.waitpid(in_a_child(lambda: change(root)), 0)
        journal = journal_in(root)
        assert not is_leftover(journal.name, 1e9)
        assert [entry.name for entry in beside.list()] == ["dir", "file"]
        beside.write("dir/third", "")
        assert (journal / ".gitignore").exists()
    with opened(root) as fs:
        assert fs.read("file").content == "old"
        assert [each.path for each in fs.glob("dir/*")] == ["dir/third"]
        assert [each.path for each in fs.kept_changes] == ["dir"]


def test_that_of_a_living_process_is_left_alone(root: Path) -> None:
    ready, wait = os.pipe(), os.pipe()

    def work() -> None:
        fs = change(root)
        os.write(ready[1], b"1")
        os.read(wait[0], 1)
        _unended[fs].release()

    child = in_a_child(work)
    os.read(ready[0], 1)
    with opened(root) as fs:
        assert fs.read("file").content == "new"
        os.write(wait[1], b"1")
        os.waitpid(child, 0)
    with opened(root) as fs:
        assert fs.read("file").content == "new"
        assert temporary_names(root) == []


def test_that_of_another_instance_here_is_left_alone_until_it_is_dropped(root: Path) -> None:
    first = change(root)
    with opened(root) as second:
        assert second.read("file").content == "new"
    del _unended[first], first
    gc.collect()
    with opened(root):
        assert is_rolled_back(root)


def test_two_that_open_at_once_do_not_disturb_each_other(root: Path, left: Path) -> None:
    """The first is stopped half-way; the second must not go on before it is done."""
    ready, wait = os.pipe(), os.pipe()

    def stop(point: str) -> None:
        if point == "journal.undone":
            os.write(ready[1], b"1")
            os.read(wait[0], 1)

    def recover() -> None:
        with fault_hook(stop):
            opened(root).close()

    child = in_a_child(recover)
    os.read(ready[0], 1)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(opened, root)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.2)
        os.write(wait[1], b"1111")
        second.result().close()
    os.waitpid(child, 0)
    assert is_rolled_back(root)


def test_one_that_is_killed_is_followed_by_the_next(root: Path, left: Path) -> None:
    def die(point: str) -> None:
        if point == "journal.undone":
            os.kill(os.getpid(), signal.SIGKILL)

    def recover() -> None:
        with fault_hook(die):
            opened(root)

    for _ in range(2):  # each gets one record further, or no further
        os.waitpid(in_a_child(recover), 0)
    with opened(root):
        assert is_rolled_back(root)


@pytest.mark.parametrize("text", ["mended by hand", "own"])  # the second is as long as the new one
@pytest.mark.parametrize("path", ["file", "dir/other"])
def test_what_was_saved_after_the_crash_stays_however_soon_that_was(
    root: Path, left: Path, path: str, text: str
) -> None:
    (root / path).write_text(text)
    with opened(root) as fs:
        assert fs.read(path).content == text
        assert path in {each.path for each in fs.kept_changes}
        kept = {each.other: fs.read(each.other).content for each in fs.kept_changes if each.other}
    assert kept == ({"file.wink-kept": "old"} if path == "file" else {})
    assert temporary_names(root) == []


def test_what_was_not_changed_after_the_crash_needs_no_snapshot(root: Path, left: Path) -> None:
    with opened(root) as fs:
        assert not fs.history.list()
    assert not (root.parent / "store").exists()


def test_a_failing_disk_is_told_and_the_next_one_goes_on(
    root: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(SavepointError, match=r"process is gone: .*read_only=True"):
            opened(root)
        opened(root, read_only=True).close()
    with opened(root):
        assert is_rolled_back(root)


# --- whose journals are believed ---


def _foreign(journal: Path) -> Path:
    """Rename a journal as if it came from another pid namespace."""
    name = re.sub(r"journal-[0-9a-f]+-", "journal-1-", journal.name)
    return journal.rename(journal.with_name(name))


def test_one_from_another_namespace_is_left_alone_while_it_is_young(root: Path, left: Path) -> None:
    foreign = _foreign(left)
    with opened(root):
        assert (foreign / ".gitignore").exists()


def test_one_from_another_namespace_is_rolled_back_when_it_is_old_and_free(
    root: Path, left: Path
) -> None:
    foreign = _foreign(left)
    os.utime(foreign / ".gitignore", (1, 1))
    holder, ready, wait = 0, os.pipe(), os.pipe()

    def hold() -> None:
        with (foreign / ".gitignore").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            os.write(ready[1], b"1")
            os.read(wait[0], 1)

    holder = in_a_child(hold)
    os.read(ready[0], 1)
    with opened(root):
        assert (root / "file").read_text() == "new"
    os.write(wait[1], b"1")
    os.waitpid(holder, 0)
    with opened(root):
        assert is_rolled_back(root)


def test_one_that_others_may_write_is_not_believed(
    root: Path, left: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for spoiled in (left, left / ".gitignore"):
        mode = spoiled.stat().st_mode
        spoiled.chmod(mode | stat.S_IWGRP)
        with opened(root):
            assert (root / "file").read_text() == "new"
        assert "another user" in caplog.text
        caplog.clear()
        spoiled.chmod(mode)


@pytest.mark.root
def test_one_that_belongs_to_somebody_else_is_not_believed(root: Path, left: Path) -> None:
    for spoiled in (left, left / ".gitignore"):
        os.chown(spoiled, 65534, 65534)
        with opened(root):
            assert (root / "file").read_text() == "new"
        os.chown(spoiled, 0, 0)


def test_a_version_that_is_not_known_is_left_alone(root: Path, left: Path) -> None:
    records = left / ".gitignore"
    records.write_bytes(records.read_bytes().replace(b"journal 4", b"journal 5", 1))
    with opened(root):
        assert records.exists()
        assert (root / "file").read_text() == "new"


def test_one_of_an_earlier_version_is_left_alone(root: Path, left: Path) -> None:
    records = (left / ".gitignore").rename(left / "records")
    with opened(root):
        assert records.exists()
        assert (root / "file").read_text() == "new"


@pytest.mark.parametrize("command", [["clean", "-fdq"], ["add", "-A"]])
def test_git_neither_removes_nor_stages_what_it_holds(
    root: Path, left: Path, command: list[str]
) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *arguments], check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    slots = sorted(each.name for each in left.iterdir())
    assert len(slots) > 1
    git(*command)
    assert sorted(each.name for each in left.iterdir()) == slots
    assert not any("wink" in each for each in git("ls-files").splitlines())


def _file(place: Path) -> None:
    place.write_text("")


def _link(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    place.symlink_to("elsewhere")


def _directory_of_pipes(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.mkfifo(place / ".gitignore")


@pytest.mark.parametrize("make", [_file, _link, os.mkfifo, _directory_of_pipes])
def test_what_only_looks_like_a_journal_is_left_alone(
    root: Path, left: Path, make: Callable[[Path], None]
) -> None:
    name = left.name
    with opened(root):
        pass
    make(root / name)
    with opened(root) as fs:
        assert fs.exists("file")
    assert (root / name).lstat()


def test_what_is_left_of_an_ended_one_is_removed(root: Path, left: Path) -> None:
    (left / ".gitignore").unlink()
    with opened(root):
        assert (root / "file").read_text() == "new"
        assert temporary_names(root) == []


def test_forged_records_change_nothing_outside(root: Path, left: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "out").symlink_to(outside)
    (left / "7").write_text("forged")
    (left / ".gitignore").write_bytes(
        written(Record("new", "out/secret", 3), Record("put", "out/new", 7))
    )
    with opened(root) as fs:
        [kept] = fs.kept_changes
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (root / kept.other).read_text() == "forged"
    assert (root / "out").is_symlink()


# --- directories that resist ---

CLOSED = """
import os, sys
from weakincentives.filesystem import HostFilesystem
os.chdir("/")
if os.geteuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    for path, directories, files in os.walk(sys.argv[1]):
        for name in directories + files:
            os.lchown(os.path.join(path, name), 65534, 65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
fs = HostFilesystem(sys.argv[1], git_dir=sys.argv[1] + "/../store")
savepoint = fs.savepoint()
fs.delete("dir", recursive=True)
assert not fs.exists("dir")
savepoint.rollback()
"""


def test_a_directory_that_may_not_be_written_is_deleted_and_comes_back(root: Path) -> None:
    (root / "dir" / "below").mkdir(parents=True)
    (root / "dir" / "below" / "file").write_text("text")
    (root / "dir" / "below").chmod(0o500)
    (root / "dir").chmod(0o555)
    root.parent.chmod(0o755)
    before = state_of(root)
    subprocess.run([sys.executable, "-c", CLOSED, str(root)], cwd=ROOT, check=True)
    assert state_of(root) == before


@pytest.mark.root
def test_what_is_on_another_file_system_comes_back(root: Path) -> None:
    (root / "mount").mkdir()
    with mounted(root / "mount"):
        (root / "mount" / "dir" / "below").mkdir(parents=True)
        (root / "mount" / "dir" / "file").write_text("text")
        (root / "mount" / "dir" / "below" / "file").write_text("text")
        (root / "mount" / "dir" / "below" / "link").symlink_to("file")
        (root / "mount" / "dir" / "below").chmod(0o750)
        before = state_of(root)
        with HostFilesystem(root, git_dir=root.parent / "store", cross_mounts=True) as fs:
            savepoint = fs.savepoint()
            fs.write("mount/dir/file", "new")
            fs.delete("mount/dir/below/link")
            fs.move("mount/dir/below", "mount/moved")
            fs.delete("mount/dir", recursive=True)
            fs.delete("mount/moved", recursive=True)
            fs.write("mount/new/file", "new")
            savepoint.rollback()
        assert state_of(root) == before
