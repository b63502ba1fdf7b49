"""Moving and copying: one step, all or nothing, told as it happened."""

from collections.abc import Callable

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    DirectoryCreated,
    EntryMoved,
    FileWritten,
    InvalidPathError,
    LimitExceededError,
    PathEscapeError,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite
from weakincentives.filesystem.testing.events import listen, path_of

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
        _call(fs, how)("dir", "new/place")
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
            _call(fs, how)("a", "b")
        assert (fs.read("a").content, fs.read("b").content) == ("new", "old")
        _call(fs, how)("a", "b", overwrite=True)
        assert fs.read("b").content == "new"

    @pytest.mark.parametrize("overwrite", [True, False])
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_is_never_replaced(
        self, fs: BaseFilesystem, how: str, overwrite: bool
    ) -> None:
        fs.write("a", "")
        fs.mkdir("dir")
        with pytest.raises(IsADirectoryError):
            _call(fs, how)("a", "dir", overwrite=overwrite)
        assert (fs.exists("a"), fs.list("dir")) == (True, ())

    @pytest.mark.parametrize("overwrite", [True, False])
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_never_replaces_a_file(
        self, fs: BaseFilesystem, how: str, overwrite: bool
    ) -> None:
        fs.write("file", "old")
        fs.mkdir("dir")
        with pytest.raises(FileExistsError):
            _call(fs, how)("dir", "file", overwrite=overwrite)
        assert fs.read("file").content == "old"

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_directory_cannot_go_into_itself(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("dir/file", "")
        for goal in ("dir", "dir/sub", "dir/sub/deep"):
            with pytest.raises(ValueError, match="itself"):
                _call(fs, how)("dir", goal)
        _call(fs, how)("dir", "dir2/sub")
        assert fs.exists("dir2/sub/file")

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_file_onto_itself_stays_as_it_is(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("file", "text")
        with pytest.raises(FileExistsError):
            _call(fs, how)("file", "./file")
        _call(fs, how)("file", "./file", overwrite=True)
        assert fs.read("file").content == "text"
        assert [entry.name for entry in fs.list()] == ["file"]

    @pytest.mark.parametrize("source", ["gone", "gone/x", "file/below"])
    @pytest.mark.parametrize("how", _BOTH)
    def test_a_missing_source_raises_file_not_found(
        self, fs: BaseFilesystem, how: str, source: str
    ) -> None:
        fs.write("file", "")
        with pytest.raises(FileNotFoundError):
            _call(fs, how)(source, "new/place")
        assert not fs.exists("new")

    @pytest.mark.parametrize("how", _BOTH)
    def test_a_destination_below_a_file_is_refused(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("a", "")
        fs.write("file", "old")
        with pytest.raises(NotADirectoryError):
            _call(fs, how)("a", "file/below")
        assert fs.exists("a")

    @pytest.mark.parametrize("how", _BOTH)
    def test_the_root_stays_where_it_is(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("a", "")
        with pytest.raises(PermissionError):
            _call(fs, how)(".", "dir")
        with pytest.raises(ValueError, match="Cannot write to root"):
            _call(fs, how)("a", ".")

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
            _call(fs, how)("a", goal)
        assert [entry.name for entry in fs.list()] == ["a"]

    def test_a_move_is_told_as_one_event(self, fs: BaseFilesystem) -> None:
        fs.write("dir/file", "")
        events = listen(fs)
        fs.move("dir", "new/place")
        fs.move("new/place/file", "file")
        assert events == [
            DirectoryCreated("new"),
            EntryMoved("dir", "new/place", "directory"),
            EntryMoved("new/place/file", "file", "file"),
        ]

    def test_a_copy_is_told_as_what_it_makes(self, fs: BaseFilesystem) -> None:
        for path in ("dir/b", "dir/a", "dir/sub/c"):
            fs.write(path, path)
        events = listen(fs)
        fs.copy("dir", "new/place")
        assert [(type(event), path_of(event)) for event in events] == [
            (DirectoryCreated, "new"),
            (DirectoryCreated, "new/place"),
            (FileWritten, "new/place/a"),
            (FileWritten, "new/place/b"),
            (DirectoryCreated, "new/place/sub"),
            (FileWritten, "new/place/sub/c"),
        ]

    def test_a_copy_over_a_file_is_told_with_before_and_after(self, fs: BaseFilesystem) -> None:
        fs.write("a", "new")
        fs.write("b", "older")
        before, after = fs.content_hash("b"), fs.content_hash("a")
        events = listen(fs)
        fs.copy("a", "b", overwrite=True)
        assert events == [FileWritten("b", 3, "overwrite", False, before, after, 5, 3)]


def _call(fs: BaseFilesystem, how: str) -> Callable[..., None]:
    return fs.move if how == "move" else fs.copy
