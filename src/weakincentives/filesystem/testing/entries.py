"""Conformance of entries: `exists`, `stat`, `list`, `delete`, `mkdir`, `move` and `copy`."""

import hashlib
import itertools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    DirectoryCreated,
    EntryMoved,
    FileEntry,
    Filesystem,
    FileWritten,
    InvalidPathError,
    LimitExceededError,
    PathEscapeError,
    Results,
    WriteMode,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite
from weakincentives.filesystem.testing.events import event_path, record_events

_CLOCK_RESOLUTION = 2.0  # seconds; the resolution of FAT


class StatTests(ConformanceSuite):
    """`exists`, `stat`, `root` and `read_only`."""

    @pytest.mark.parametrize("path", ["file", "dir", "dir/below", ".", "/", "", "dir/../file"])
    def test_what_is_there_exists(self, fs: Filesystem, path: str) -> None:
        fs.write("file", "")
        fs.write("dir/below", "")
        assert fs.exists(path) is True

    @pytest.mark.parametrize("path", ["gone", "dir/gone", "file/below", "fil", "file2", "DIR"])
    def test_what_is_not_there_does_not_exist(self, fs: Filesystem, path: str) -> None:
        fs.write("file", "")
        fs.mkdir("dir")
        assert fs.exists(path) is False

    @pytest.mark.parametrize("path", ["..", "../file", "dir/../../file", "fi\0le", "\0"])
    def test_what_is_no_path_of_the_workspace_does_not_exist(
        self, fs: Filesystem, path: str
    ) -> None:
        fs.write("file", "")
        assert fs.exists(path) is False

    def test_stat_of_a_file_has_its_size(self, fs: Filesystem) -> None:
        fs.write("dir/file", "é\n")
        found = fs.stat("dir/file")
        assert (found.path, found.kind, found.size_bytes) == ("dir/file", "file", 3)
        assert (found.is_file, found.is_directory, found.is_symlink) == (True, False, False)

    def test_stat_of_a_directory_has_no_size(self, fs: Filesystem) -> None:
        fs.write("dir/file", "text")
        found = fs.stat("dir/")
        assert (found.path, found.kind, found.size_bytes) == ("dir", "directory", 0)
        assert (found.is_file, found.is_directory, found.is_symlink) == (False, True, False)

    @pytest.mark.parametrize("path", [".", "/", "", "dir/.."])
    def test_the_root_is_reported_as_a_dot(self, fs: Filesystem, path: str) -> None:
        fs.mkdir("dir")
        found = fs.stat(path)
        assert (found.path, found.is_directory) == (".", True)

    def test_stat_follows_the_size(self, fs: Filesystem) -> None:
        sizes: list[int] = []
        fs.write("file", "12345")
        sizes.append(fs.stat("file").size_bytes)
        fs.write("file", "123", mode="append")
        sizes.append(fs.stat("file").size_bytes)
        fs.write("file", "1")
        sizes.append(fs.stat("file").size_bytes)
        assert sizes == [5, 8, 1]

    def test_the_times_of_stat_are_now_where_they_are_known(self, fs: Filesystem) -> None:
        fs.write("file", "")
        found = fs.stat("file")
        for known in filter(None, (found.created_at, found.modified_at)):
            assert abs(datetime.now(UTC) - known) < timedelta(hours=1)

    @pytest.mark.parametrize("mode", ["overwrite", "append"])
    def test_a_write_moves_the_time_of_the_change_on_where_it_is_known(
        self, fs: Filesystem, mode: WriteMode
    ) -> None:
        fs.write("file", "")
        first = fs.stat("file").modified_at
        if first is not None:
            found = _write_until_it_changes(fs, mode, first)
            assert found is not None
            assert found > first

    def test_the_content_hash_is_the_sha_256_of_the_bytes(self, fs: Filesystem) -> None:
        fs.write_bytes("file", b"\x00text")
        assert fs.stat("file").content_hash == hashlib.sha256(b"\x00text").hexdigest()
        assert fs.stat(".").content_hash is None

    def test_the_filesystem_has_a_root_and_can_be_written(self, fs: Filesystem) -> None:
        assert isinstance(fs, Filesystem)
        assert fs.root.startswith("/")
        assert fs.read_only is False


class ListTests(ConformanceSuite):
    """`list`: the entries of one directory."""

    def test_list_returns_entries_with_kind_and_size(self, fs: Filesystem) -> None:
        fs.write("dir/file", "text")
        fs.mkdir("dir/sub")
        fs.write("dir/sub/deep", "")
        assert fs.list("dir") == (
            FileEntry("file", "dir/file", is_file=True, is_directory=False, size_bytes=4),
            FileEntry("sub", "dir/sub", is_file=False, is_directory=True),
        )

    def test_list_is_sorted_by_name(self, fs: Filesystem) -> None:
        names = ["b", "B", "a.txt", "a-b", "a", "é", "a b", "10", "9", ".hidden", "Ω", "😀"]
        for name in names:
            fs.write(name, "")
        assert [entry.name for entry in fs.list()] == sorted(names)

    def test_list_sorts_files_and_directories_together(self, fs: Filesystem) -> None:
        fs.write("a", "")
        fs.mkdir("b")
        fs.write("c", "")
        assert [entry.name for entry in fs.list()] == ["a", "b", "c"]

    @pytest.mark.parametrize("path", [".", "/", "", "./", "dir/.."])
    def test_list_of_the_root_has_every_spelling(self, fs: Filesystem, path: str) -> None:
        fs.write("dir/file", "")
        assert [entry.path for entry in fs.list(path)] == ["dir"]
        assert fs.list() == fs.list(path)

    def test_list_of_an_empty_directory_is_empty(self, fs: Filesystem) -> None:
        fs.mkdir("dir")
        assert fs.list("dir") == ()

    def test_list_of_everything_is_not_truncated(self, fs: Filesystem) -> None:
        fs.write("file", "")
        found = fs.list()
        assert isinstance(found, Results)
        assert found.truncated is False


def _write_until_it_changes(fs: Filesystem, mode: WriteMode, first: datetime) -> datetime | None:
    """Write until `modified_at` differs from `first`, or every clock must have ticked."""
    end = time.monotonic() + _CLOCK_RESOLUTION
    found, is_last = first, False
    for number in itertools.count():
        if found != first or is_last:
            break
        is_last = time.monotonic() > end
        fs.write("file", str(number), mode=mode)
        found = fs.stat("file").modified_at
    return found


class DeleteTests(ConformanceSuite):
    """`delete`."""

    def test_delete_removes_a_file_and_keeps_its_directory(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        fs.delete("dir/file")
        assert not fs.exists("dir/file")
        assert fs.list("dir") == ()

    def test_delete_takes_all_below_and_nothing_beside(self, fs: Filesystem) -> None:
        for path in ("a/x", "a/b/y", "ab/z", "a-b", "b/a/x"):
            fs.write(path, "")
        fs.delete("a", recursive=True)
        assert [match.path for match in fs.glob("**")] == ["a-b", "ab/z", "b/a/x"]
        assert not fs.exists("a")

    def test_a_full_directory_is_deleted_only_if_recursive(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        with pytest.raises(IsADirectoryError, match="not empty"):
            fs.delete("dir")
        assert fs.exists("dir/file")

    def test_a_directory_of_directories_is_not_empty(self, fs: Filesystem) -> None:
        fs.mkdir("dir/sub")
        with pytest.raises(IsADirectoryError, match="not empty"):
            fs.delete("dir")

    def test_an_empty_directory_is_deleted_only_if_recursive(self, fs: Filesystem) -> None:
        fs.mkdir("dir")
        with pytest.raises(IsADirectoryError) as caught:
            fs.delete("dir")
        assert "not empty" not in str(caught.value)
        fs.delete("dir", recursive=True)
        assert not fs.exists("dir")

    def test_recursive_delete_removes_a_file_too(self, fs: Filesystem) -> None:
        fs.write("file", "")
        fs.delete("file", recursive=True)
        assert fs.list() == ()

    @pytest.mark.parametrize("path", [".", "/", "", "dir/.."])
    def test_the_root_cannot_be_deleted(self, fs: Filesystem, path: str) -> None:
        fs.write("dir/file", "")
        with pytest.raises(PermissionError, match="Cannot delete root"):
            fs.delete(path)
        assert fs.exists("dir/file")

    def test_recursive_delete_of_the_root_refuses_or_empties_it(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        try:
            fs.delete("/", recursive=True)
        except PermissionError as error:
            assert "Cannot delete root" in str(error)  # noqa: PT017 # either outcome is allowed
            assert fs.exists("dir/file")
        else:
            assert fs.list() == ()
        fs.write("later", "the root is still there")

    def test_what_was_deleted_can_be_made_again_as_something_else(self, fs: Filesystem) -> None:
        fs.write("name/file", "")
        fs.delete("name", recursive=True)
        fs.write("name", "now a file")
        fs.delete("name")
        fs.mkdir("name")
        assert fs.list("name") == ()


class DirectoryTests(ConformanceSuite):
    """`mkdir`."""

    def test_mkdir_makes_an_empty_directory_and_its_parents(self, fs: Filesystem) -> None:
        fs.mkdir("a/b/c")
        assert fs.list("a/b/c") == ()
        assert [entry.kind for entry in fs.list("a")] == ["directory"]

    def test_mkdir_of_a_directory_that_exists_changes_nothing(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        fs.mkdir("dir")
        assert fs.exists("dir/file")

    def test_mkdir_refuses_a_directory_that_exists_if_asked(self, fs: Filesystem) -> None:
        fs.mkdir("dir")
        with pytest.raises(FileExistsError):
            fs.mkdir("dir", exist_ok=False)

    @pytest.mark.parametrize("exist_ok", [True, False])
    def test_mkdir_refuses_a_file_that_exists(self, fs: Filesystem, *, exist_ok: bool) -> None:
        fs.write("file", "old")
        with pytest.raises(FileExistsError):
            fs.mkdir("file", exist_ok=exist_ok)
        assert fs.read("file").content == "old"

    def test_mkdir_without_parents_needs_the_parent(self, fs: Filesystem) -> None:
        with pytest.raises(FileNotFoundError):
            fs.mkdir("a/b", parents=False)
        assert fs.list() == ()
        fs.mkdir("a", parents=False)
        fs.mkdir("a/b", parents=False)
        assert fs.exists("a/b")

    @pytest.mark.parametrize("path", [".", "/", "", "dir/.."])
    def test_mkdir_of_the_root_does_nothing(self, fs: Filesystem, path: str) -> None:
        fs.mkdir(path)
        fs.mkdir(path, exist_ok=False)
        assert fs.list() == ()


_BOTH = ("move", "copy")


class TransferTests(ConformanceSuite):
    """`move` and `copy`."""

    def test_move_gives_a_file_a_new_path(self, fs: BaseFilesystem) -> None:
        fs.write_bytes("a", b"\x00\xff")
        fs.move("a", "dir/b")
        assert fs.read_bytes("dir/b").content == b"\x00\xff"
        assert not fs.exists("a")

    def test_copy_leaves_the_source(self, fs: BaseFilesystem) -> None:
        fs.write_bytes("a", b"\x00\xff")
        fs.copy("a", "dir/b")
        assert fs.read_bytes("dir/b").content == fs.read_bytes("a").content == b"\x00\xff"

    def test_a_copy_changes_apart_from_its_source(self, fs: BaseFilesystem) -> None:
        fs.write("dir/sub/file", "one")
        fs.copy("dir", "twin")
        fs.write("dir/sub/file", "two")
        fs.write("twin/sub/new", "")
        fs.delete("dir/sub/file")
        assert [match.path for match in fs.glob("**")] == ["twin/sub/file", "twin/sub/new"]
        assert fs.read("twin/sub/file").content == "one"

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_takes_everything_below_along(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("dir/file", "1")
        fs.write("dir/a/b/file", "2")
        fs.mkdir("dir/empty")
        fs.write("dir2", "beside")
        _transfer(fs, how)("dir", "new/place")
        assert [match.path for match in fs.glob("new/**")] == [
            "new/place/a/b/file",
            "new/place/file",
        ]
        assert fs.list("new/place/empty") == ()
        assert fs.exists("dir") is (how == "copy")
        assert fs.read("dir2").content == "beside"

    @pytest.mark.parametrize("how", _BOTH)
    def test_what_exists_is_replaced_only_if_asked(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("a", "new")
        fs.write("b", "old")
        with pytest.raises(FileExistsError):
            _transfer(fs, how)("a", "b")
        assert (fs.read("a").content, fs.read("b").content) == ("new", "old")
        _transfer(fs, how)("a", "b", overwrite=True)
        assert fs.read("b").content == "new"

    @pytest.mark.parametrize("overwrite", [True, False])
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_is_never_replaced(
        self, fs: BaseFilesystem, how: str, *, overwrite: bool
    ) -> None:
        fs.write("a", "")
        fs.mkdir("dir")
        with pytest.raises(IsADirectoryError):
            _transfer(fs, how)("a", "dir", overwrite=overwrite)
        assert (fs.exists("a"), fs.list("dir")) == (True, ())

    @pytest.mark.parametrize("overwrite", [True, False])
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_never_replaces_a_file(
        self, fs: BaseFilesystem, how: str, *, overwrite: bool
    ) -> None:
        fs.write("file", "old")
        fs.mkdir("dir")
        with pytest.raises(FileExistsError):
            _transfer(fs, how)("dir", "file", overwrite=overwrite)
        assert fs.read("file").content == "old"

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_cannot_go_into_itself(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("dir/file", "")
        for goal in ("dir", "dir/sub", "dir/sub/deep"):
            with pytest.raises(ValueError, match="itself"):
                _transfer(fs, how)("dir", goal)
        _transfer(fs, how)("dir", "dir2/sub")
        assert fs.exists("dir2/sub/file")

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_file_onto_itself_stays_as_it_is(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("file", "text")
        with pytest.raises(FileExistsError):
            _transfer(fs, how)("file", "./file")
        _transfer(fs, how)("file", "./file", overwrite=True)
        assert fs.read("file").content == "text"
        assert [entry.name for entry in fs.list()] == ["file"]

    @pytest.mark.parametrize("source", ["gone", "gone/x", "file/below"])
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_missing_source_raises_file_not_found(
        self, fs: BaseFilesystem, how: str, source: str
    ) -> None:
        fs.write("file", "")
        with pytest.raises(FileNotFoundError):
            _transfer(fs, how)(source, "new/place")
        assert not fs.exists("new")

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_destination_below_a_file_is_refused(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("a", "")
        fs.write("file", "old")
        with pytest.raises(NotADirectoryError):
            _transfer(fs, how)("a", "file/below")
        assert fs.exists("a")

    @pytest.mark.parametrize("how", _BOTH)
    def test_the_root_stays_where_it_is(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("a", "")
        with pytest.raises(PermissionError):
            _transfer(fs, how)(".", "dir")
        with pytest.raises(ValueError, match="Cannot write to root"):
            _transfer(fs, how)("a", ".")

    @pytest.mark.parametrize(
        ("goal", "error"),
        [
            ("../x", PathEscapeError),
            ("a\0b", InvalidPathError),
            ("new/bell\a", InvalidPathError),
            ("new/.wink-tmp-x", InvalidPathError),
            ("/".join("d" * 17), LimitExceededError),
            ("new/" + "n" * 81, LimitExceededError),
        ],
    )
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_destination_obeys_the_rules_for_names(
        self, fs: BaseFilesystem, how: str, goal: str, error: type[Exception]
    ) -> None:
        fs.write("a", "")
        with pytest.raises(error):
            _transfer(fs, how)("a", goal)
        assert [entry.name for entry in fs.list()] == ["a"]

    def test_a_move_is_reported_as_one_event(self, fs: BaseFilesystem) -> None:
        fs.write("dir/file", "")
        events = record_events(fs)
        fs.move("dir", "new/place")
        fs.move("new/place/file", "file")
        assert events == [
            DirectoryCreated("new"),
            EntryMoved("dir", "new/place", "directory"),
            EntryMoved("new/place/file", "file", "file"),
        ]

    def test_a_copy_is_reported_as_what_it_makes(self, fs: BaseFilesystem) -> None:
        for path in ("dir/b", "dir/a", "dir/sub/c"):
            fs.write(path, path)
        events = record_events(fs)
        fs.copy("dir", "new/place")
        assert [(type(event), event_path(event)) for event in events] == [
            (DirectoryCreated, "new"),
            (DirectoryCreated, "new/place"),
            (FileWritten, "new/place/a"),
            (FileWritten, "new/place/b"),
            (DirectoryCreated, "new/place/sub"),
            (FileWritten, "new/place/sub/c"),
        ]

    def test_a_copy_over_a_file_is_reported_with_before_and_after(self, fs: BaseFilesystem) -> None:
        fs.write("a", "new")
        fs.write("b", "older")
        before, after = fs.content_hash("b"), fs.content_hash("a")
        events = record_events(fs)
        fs.copy("a", "b", overwrite=True)
        assert events == [
            FileWritten(
                "b",
                3,
                "overwrite",
                created=False,
                before_hash=before,
                after_hash=after,
                before_size=5,
                after_size=3,
            )
        ]


def _transfer(fs: BaseFilesystem, how: str) -> Callable[..., None]:
    return fs.move if how == "move" else fs.copy
