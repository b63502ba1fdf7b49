"""Tools on filesystems with only the protocol: a failed call changes nothing."""

import re
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contrib.dialects.replay import Replay
from tests.contrib.handlers.calls import tree_of
from tests.contrib.handlers.requests import make_link
from tests.contrib.plain import Plain
from weakincentives.adapters import CheckedCall, Policy, ToolCall, ToolExecutor
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.file_projection import VirtualFileSystem
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    GrepParams,
    InsertTextParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import (
    DirectoryCreated,
    FileDeleted,
    Filesystem,
    FilesystemEvent,
    FileWritten,
    InMemoryFilesystem,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.before_images import RecordingFilesystem, UndoLog
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import transaction

BARE: list[Callable[[], Any]] = [Plain, MockFilesystem]
WAIT = 60.0


def backend_of(fs: Any) -> InMemoryFilesystem:
    return getattr(fs, "backend", fs)


def plant(fs: Filesystem) -> None:
    backend = backend_of(fs)
    backend.write("src/main.py", "def main():\n    return 1\n")
    backend.write("src/deep/er/util.py", "VALUE = 1\nOTHER = 2\n")
    backend.write("notes.txt", "one\ntwo\nthree\n")
    backend.write_bytes("data.bin", bytes(range(256)))
    backend.mkdir("empty/inside")


PATHS = st.sampled_from(
    [
        "src/main.py",
        "src/deep/er/util.py",
        "notes.txt",
        "data.bin",
        "new.txt",
        "src",
        "a/b/c",
        "empty",
    ]
)
REQUESTS = st.one_of(
    st.builds(LsParams, st.sampled_from([".", "src", "empty"])),
    st.builds(ReadFileParams, PATHS),
    st.builds(WriteFileParams, PATHS, st.sampled_from(["", "text\n", "ünï\n"])),
    st.builds(WriteFileParams, PATHS, st.just("more\n"), st.sampled_from(["overwrite", "append"])),
    st.builds(EditFileParams, PATHS, st.just((TextEdit("one", "1"),))),
    st.builds(InsertTextParams, PATHS, st.just(1), st.just("inserted\n")),
    st.builds(GlobParams, st.just("**/*.py")),
    st.builds(GrepParams, st.just("VALUE|one")),
    st.builds(RmParams, PATHS),
    st.builds(MoveParams, PATHS, st.sampled_from(["moved.txt", "x/y", "src/z"])),
    st.builds(MkdirParams, st.sampled_from(["made", "made/below", "notes.txt"])),
)


@pytest.mark.parametrize("make", BARE)
@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=25, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=8))
def test_every_dialect_does_the_same_as_in_memory(
    make: Callable[[], Any], dialect: DialectName, requests: list[object]
):
    ours, theirs = Replay(dialect, InMemoryFilesystem()), Replay(dialect, make())
    for each in (ours, theirs):
        plant(each.files)
    for request in requests:
        if ours.dialect.encode(request) is None:
            continue
        expected, found = ours.say(request), theirs.say(request)
        assert (found.text, found.result.success) == (expected.text, expected.result.success)
        assert tree_of(backend_of(theirs.files)) == tree_of(backend_of(ours.files))


class Refusing(Policy):
    """Lets every call do its work, and then has all of it taken back."""

    def review(self, call: CheckedCall, changed: Any, diff: Any) -> str | None:
        return "Refused after the work was done"


@pytest.mark.parametrize("make", BARE)
@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=25, deadline=None)
@given(requests=st.lists(REQUESTS, max_size=4))
def test_a_call_that_fails_leaves_every_byte_as_it_was(
    make: Callable[[], Any], dialect: DialectName, requests: list[object]
):
    replay = Replay(dialect, make())
    plant(replay.files)
    told = listen(replay.session)
    context = ToolContext(None, None, None, replay.session, filesystem=replay.files)
    replay.executor = ToolExecutor(
        filesystem_tools(dialect), context=context, policies=[Refusing()]
    )
    before = tree_of(backend_of(replay.files))
    for request in requests:
        if replay.dialect.encode(request) is not None:
            replay.say(request)
            assert tree_of(backend_of(replay.files)) == before
    assert told == []


def listen(session: Session) -> list[FilesystemEvent]:
    told: list[FilesystemEvent] = []
    for kind in (FileWritten, FileDeleted, DirectoryCreated):
        session.bus.subscribe(kind, told.append)
    return told


def work(fs: Filesystem) -> None:
    fs.write("notes.txt", "four\n", mode="append")
    fs.write("notes.txt", "over")
    fs.write_bytes("a/b/c", b"\0new")
    fs.mkdir("made/below")
    fs.delete("src", recursive=True)
    fs.write("src/main.py", "another\n")
    fs.delete("data.bin")
    fs.mkdir("data.bin")
    fs.write("data.bin/inside", "")
    fs.delete("empty", recursive=True)
    fs.write("empty", "now a file")
    fs.delete("notes.txt")


def run(fs: Any, act: Callable[[Filesystem], object], session: Session | None = None) -> ToolResult:
    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        assert context.filesystem is not None
        act(context.filesystem)
        return ToolResult("done")

    context = ToolContext(None, None, None, session or Session(), filesystem=fs)
    executor = ToolExecutor([Tool("work", "Works.", handler)], context=context)
    return executor.execute(ToolCall("work")).result


def fail(fs: Filesystem) -> None:
    work(fs)
    raise OSError("no")


def test_everything_that_a_failed_handler_did_is_put_back():
    fs, session = Plain(), Session()
    plant(fs)
    before, told = tree_of(fs.backend), listen(session)
    assert not run(fs, fail, session).success
    assert tree_of(fs.backend) == before
    assert told == []


def test_the_session_knows_the_files_after_a_call():
    fs, session = Plain(), Session()
    plant(fs)
    FilesystemSection(session=session, filesystem=fs)
    assert run(fs, work, session).success
    known = session[VirtualFileSystem].latest()
    assert known is not None
    assert {str(each.path): (each.size_bytes, each.encoding) for each in known.files} == {
        "a/b/c": (4, "binary"),
        "data.bin/inside": (0, "utf-8"),
        "empty": (10, "utf-8"),
        "src/main.py": (8, "utf-8"),
    }


@pytest.mark.parametrize("inner_fails", [True, False])
@pytest.mark.parametrize("outer_fails", [True, False])
def test_calls_inside_calls_are_taken_back_alone_or_together(inner_fails: bool, outer_fails: bool):
    fs, session = Plain(), Session()
    plant(fs)
    before, told = tree_of(fs.backend), listen(session)

    def outer(files: Filesystem) -> None:
        files.write("outer", "1")
        run(files, fail if inner_fails else work, session)
        assert files.exists("a/b/c") != inner_fails
        if outer_fails:
            raise OSError("no")

    run(fs, outer, session)
    if outer_fails:
        assert tree_of(fs.backend) == before
        assert told == []
    elif inner_fails:
        assert tree_of(fs.backend) == {**before, "outer": tree_of(fs.backend)["outer"]}
        assert [str(each) for each in told] == ["outer created"]
    else:
        assert not fs.backend.exists("notes.txt")


def test_a_transaction_around_the_object_itself_takes_back_everything():
    fs, session = Plain(), Session()
    plant(fs)
    before, told = tree_of(fs.backend), listen(session)
    for bypasses_filesystem in (False, True):
        with (
            pytest.raises(OSError, match="no"),
            transaction(session, fs, bypasses_filesystem=bypasses_filesystem),
        ):
            fail(fs)
        assert tree_of(fs.backend) == before
    assert told == []
    with transaction(session, fs):
        work(fs)
    assert {each.path for each in told if isinstance(each, FileWritten)} == {
        "a/b/c",
        "data.bin/inside",
        "empty",
        "src/main.py",
    }


def test_a_call_that_turns_out_to_change_files_past_the_object_is_taken_back_as_a_whole():
    fs, session = Plain(), Session()
    plant(fs)
    before = tree_of(fs.backend)
    with transaction(session) as step:
        files = step.files(fs)
        files.write("through", "1")
        step.join(fs, bypasses_filesystem=True)
        assert fs.backend.exists("through")
        fs.backend.delete("src", recursive=True)
        step.rollback()
    assert tree_of(fs.backend) == before


def test_methods_beside_the_protocol_are_taken_back_too():
    class More(Plain):
        def move(self, source: str, destination: str) -> None:
            self.backend.move(source, destination)

    fs, session = More(), Session()
    plant(fs)
    before, told = tree_of(fs.backend), listen(session)

    def move(files: Any) -> None:
        files.move("src", "lib")

    def move_and_fail(files: Any) -> None:
        move(files)
        raise OSError("no")

    assert not run(fs, move_and_fail, session).success
    assert tree_of(fs.backend) == before
    assert run(fs, move, session).success
    assert "lib/main.py created" in map(str, told)


class SearchingWithRe(Plain):
    """A backend that searches with Python's own regular expressions, and lets their errors out."""

    __slots__ = ()

    def grep(self, pattern: str, **options: Any) -> Any:
        re.compile(pattern)
        return super().grep(pattern, **options)


@pytest.mark.parametrize("pattern", ["nothing like it", "(?i)nothing", "(?s)(?i)nothing", "(no"])
@pytest.mark.parametrize("ignore_case", [True, False])
def test_a_search_that_finds_nothing_asks_nothing_that_re_refuses(pattern: str, ignore_case: bool):
    fs = SearchingWithRe()
    plant(fs)
    fixed = pattern == "(no"
    request = GrepParams(pattern, ignore_case=ignore_case, fixed_string=fixed)
    assert Replay("wink", fs).say(request).text == f"No matches for {pattern!r}"


def test_a_pattern_that_a_backend_does_not_know_is_a_failed_result():
    fs = SearchingWithRe()
    plant(fs)
    found = Replay("wink", fs).say(GrepParams(r"\p{L}"))
    assert found.text == r"Invalid regex: bad escape \p at position 0: '\\p{L}'"


def test_what_could_not_be_put_back_is_not_removed():
    fs = Plain()
    fs.backend.mkdir("dir")
    make_link(fs.backend, "dir/link", "nowhere")
    before = tree_of(fs.backend)
    result = run(fs, lambda files: files.delete("dir", recursive=True))
    assert result.message == "Cannot change what could not be rolled back: dir/link"
    assert tree_of(fs.backend) == before


def test_a_listing_that_is_cut_off_is_no_state_to_go_back_to():
    class Short(Plain):
        def list(self, path: str = ".") -> Any:
            found = self.backend.list(path)
            return type(found)(found[:1], truncated=True)

    fs = Short()
    plant(fs)
    before = tree_of(fs.backend)
    result = run(fs, lambda files: files.delete("src", recursive=True))
    assert result.message == "Directory has too many entries to record for rollback: src"
    assert tree_of(fs.backend) == before


def test_a_file_longer_than_one_write_is_put_back():
    fs = Plain()
    fs.backend.write("long", "x" * 48_000)
    fs.backend.write("long", "y" * 48_000, mode="append")
    before = tree_of(fs.backend)

    def remove(files: Filesystem) -> None:
        files.delete("long")
        raise OSError("no")

    run(fs, remove)
    assert tree_of(fs.backend) == before


def test_a_file_longer_than_one_read_is_put_back():
    class Paging(Plain):
        def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> Any:
            return super().read_bytes(path, offset=offset, limit=3 if limit is None else limit)

    fs = Paging()
    plant(fs)
    before = tree_of(fs.backend)
    assert not run(fs, fail).success
    assert tree_of(fs.backend) == before


def test_a_file_that_ends_early_is_no_state_to_go_back_to():
    class Cut(Plain):
        def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> Any:
            return super().read_bytes(path, offset=offset, limit=max(0, 3 - offset))

    fs = Cut()
    plant(fs)
    before = tree_of(fs.backend)
    result = run(fs, lambda files: files.write("notes.txt", "new"))
    assert (
        result.message
        == "File cannot be read to its end, so it cannot be recorded for rollback: notes.txt"
    )
    assert tree_of(fs.backend) == before


def test_only_what_changes_is_read_to_be_kept():
    class Counting(Plain):
        __slots__ = ("looked_at",)

        def read_bytes(self, path: str, **options: Any) -> Any:
            self.looked_at.append(path)
            return super().read_bytes(path, **options)

    fs: Any = Counting()
    fs.looked_at = []
    plant(fs)
    run(fs, lambda files: files.write("new/file", "x"))
    assert set(fs.looked_at) == {"new/file"}  # for the event of it
    run(fs, lambda files: files.write("notes.txt", "x"))
    assert set(fs.looked_at) == {"new/file", "notes.txt"}


def test_calls_on_one_object_wait_for_each_other():
    fs = Plain()
    fs.backend.write("counter", "0")

    def count(files: Filesystem) -> None:
        number = int(files.read("counter").content)
        files.write("counter", str(number + 1))
        if number % 3 == 2 and not files.exists("failed"):
            raise OSError("no")

    outcomes: list[bool] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(run(fs, count).success)) for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT)
    assert fs.backend.read("counter").content == str(outcomes.count(True)) == "2"


def test_of_two_images_of_a_path_the_first_one_counts():
    fs = Plain()
    fs.write("d/a", "old")
    log = UndoLog(fs)
    files = RecordingFilesystem(log)
    files.write("d/a", "new")
    files.delete("d", recursive=True)
    gone = [(each.path, each.before, each.after) for each in log.detect()]
    assert [(path, after) for path, _, after in gone] == [("d/a", None), ("d", None)]
    assert [before and before.kind for _, before, _ in gone] == ["file", "directory"]
    assert gone[0][1] is not None
    assert gone[0][1].content_hash == sha256(b"old").hexdigest()
    log.rollback()
    assert fs.read("d/a").content == "old"
