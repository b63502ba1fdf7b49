"""Writing: modes, parents, limits, and what a refused write leaves behind: nothing."""

import pytest

from weakincentives.filesystem import MAX_WRITE_LENGTH, Filesystem, LimitExceededError, WriteResult
from weakincentives.filesystem.testing.contract import ConformanceSuite


class WritingTests(ConformanceSuite):
    """`write` and `write_bytes`."""

    def test_a_write_replaces_the_content(self, fs: Filesystem) -> None:
        fs.write("file", "a longer text")
        fs.write("file", "short")
        assert fs.read("file").content == "short"

    def test_a_write_reports_bytes_mode_and_whether_it_created(self, fs: Filesystem) -> None:
        assert fs.write("dir/file", "é") == WriteResult("dir/file", 2, "overwrite", created=True)
        assert fs.write("dir/file", "e") == WriteResult("dir/file", 1, "overwrite", created=False)

    def test_a_write_reports_the_normal_form_of_the_path(self, fs: Filesystem) -> None:
        assert fs.write("/dir//x/../file", "").path == "dir/file"

    def test_create_makes_a_new_file(self, fs: Filesystem) -> None:
        result = fs.write("file", "text", mode="create")
        assert result == WriteResult("file", 4, "create", created=True)
        assert fs.read("file").content == "text"

    def test_create_refuses_what_exists(self, fs: Filesystem) -> None:
        fs.write("file", "old")
        with pytest.raises(FileExistsError):
            fs.write("file", "new", mode="create")
        with pytest.raises(FileExistsError):
            fs.write_bytes("file", b"new", mode="create")
        assert fs.read("file").content == "old"

    def test_append_adds_to_the_end(self, fs: Filesystem) -> None:
        fs.write("file", "one\n")
        fs.write("file", "two", mode="append")
        fs.write_bytes("file", b"\xff", mode="append")
        assert fs.read_bytes("file").content == b"one\ntwo\xff"

    def test_append_counts_the_appended_bytes_only(self, fs: Filesystem) -> None:
        fs.write("file", "a longer text")
        assert fs.write("file", "éé", mode="append") == WriteResult("file", 4, "append")

    def test_append_creates_what_is_missing(self, fs: Filesystem) -> None:
        result = fs.write("dir/file", "text", mode="append")
        assert result == WriteResult("dir/file", 4, "append", created=True)
        assert fs.read("dir/file").content == "text"

    def test_an_empty_write_makes_an_empty_file(self, fs: Filesystem) -> None:
        assert fs.write("file", "").bytes_written == 0
        assert fs.read_bytes("file").content == b""

    def test_bytes_follow_the_modes_too(self, fs: Filesystem) -> None:
        results = [
            fs.write_bytes("dir/file", b"12", mode="create"),
            fs.write_bytes("dir/file", b"3", mode="append"),
            fs.write_bytes("dir/file", b"4567", mode="overwrite"),
        ]
        assert results == [
            WriteResult("dir/file", 2, "create", created=True),
            WriteResult("dir/file", 1, "append", created=False),
            WriteResult("dir/file", 4, "overwrite", created=False),
        ]
        assert fs.read_bytes("dir/file").content == b"4567"

    def test_an_unknown_mode_is_refused(self, fs: Filesystem) -> None:
        with pytest.raises(ValueError, match="mode"):
            fs.write("file", "text", mode="truncate")  # pyright: ignore[reportArgumentType] # the point of the test
        assert not fs.exists("file")

    def test_parents_are_made(self, fs: Filesystem) -> None:
        fs.write("a/b/c/file", "")
        assert [fs.stat(path).kind for path in ("a", "a/b", "a/b/c")] == ["directory"] * 3

    def test_parents_are_not_made_when_refused(self, fs: Filesystem) -> None:
        with pytest.raises(FileNotFoundError):
            fs.write("a/file", "", create_parents=False)
        with pytest.raises(FileNotFoundError):
            fs.write_bytes("a/file", b"", create_parents=False)
        assert fs.list() == ()

    def test_create_parents_false_writes_into_what_exists(self, fs: Filesystem) -> None:
        fs.mkdir("a")
        fs.write("a/file", "text", create_parents=False)
        assert fs.read("a/file").content == "text"

    @pytest.mark.parametrize("create_parents", [True, False])
    @pytest.mark.parametrize("path", ["file/below", "file/x/below"])
    def test_a_write_below_a_file_is_refused(
        self, fs: Filesystem, path: str, create_parents: bool
    ) -> None:
        fs.write("file", "old")
        with pytest.raises(NotADirectoryError):
            fs.write(path, "new", create_parents=create_parents)
        assert fs.read("file").content == "old"

    @pytest.mark.parametrize("mode", ["create", "overwrite", "append"])
    def test_a_write_to_a_directory_is_refused(self, fs: Filesystem, mode: str) -> None:
        fs.write("dir/file", "old")
        with pytest.raises(IsADirectoryError):
            fs.write("dir", "new", mode=mode)  # pyright: ignore[reportArgumentType] # a parameter
        assert fs.read("dir/file").content == "old"

    @pytest.mark.parametrize("path", [".", "/", "", "dir/.."])
    def test_a_write_to_the_root_is_refused(self, fs: Filesystem, path: str) -> None:
        with pytest.raises(ValueError, match="Cannot write to root"):
            fs.write(path, "text")
        with pytest.raises(ValueError, match="Cannot write to root"):
            fs.write_bytes(path, b"text")

    def test_text_that_utf_8_cannot_store_is_refused(self, fs: Filesystem) -> None:
        with pytest.raises(ValueError, match="surrogate"):
            fs.write("file", "a\ud800b")
        assert not fs.exists("file")


class WriteLimitTests(ConformanceSuite):
    """The limit on one write, and the order of the checks."""

    def test_the_longest_text_is_written(self, fs: Filesystem) -> None:
        text = "é" * MAX_WRITE_LENGTH
        assert fs.write("file", text).bytes_written == 2 * MAX_WRITE_LENGTH
        assert fs.read("file").content.count("é") == MAX_WRITE_LENGTH

    def test_the_longest_bytes_are_written(self, fs: Filesystem) -> None:
        assert fs.write_bytes("file", b"x" * MAX_WRITE_LENGTH).bytes_written == MAX_WRITE_LENGTH

    @pytest.mark.parametrize("mode", ["create", "overwrite", "append"])
    def test_longer_content_is_refused(self, fs: Filesystem, mode: str) -> None:
        with pytest.raises(LimitExceededError, match="Content exceeds maximum"):
            fs.write("dir/file", "x" * (MAX_WRITE_LENGTH + 1), mode=mode)  # pyright: ignore[reportArgumentType] # a parameter
        with pytest.raises(LimitExceededError, match="Content exceeds maximum"):
            fs.write_bytes("dir/file", b"x" * (MAX_WRITE_LENGTH + 1), mode=mode)  # pyright: ignore[reportArgumentType] # a parameter
        assert fs.list() == ()

    def test_refused_content_leaves_the_old_one(self, fs: Filesystem) -> None:
        fs.write("file", "old")
        with pytest.raises(ValueError, match="Content exceeds maximum"):
            fs.write("file", "x" * (MAX_WRITE_LENGTH + 1))
        assert fs.read("file").content == "old"

    def test_appends_may_grow_a_file_beyond_one_write(self, fs: Filesystem) -> None:
        for _ in range(3):
            fs.write("file", "x" * MAX_WRITE_LENGTH, mode="append")
        assert fs.stat("file").size_bytes == 3 * MAX_WRITE_LENGTH

    def test_the_root_is_refused_before_the_content(self, fs: Filesystem) -> None:
        with pytest.raises(ValueError, match="Cannot write to root"):
            fs.write(".", "x" * (MAX_WRITE_LENGTH + 1))

    def test_the_content_is_refused_before_the_target(self, fs: Filesystem) -> None:
        fs.mkdir("dir")
        with pytest.raises(LimitExceededError, match="Content exceeds maximum"):
            fs.write("dir", "x" * (MAX_WRITE_LENGTH + 1))

    def test_the_parents_are_refused_before_the_name(self, fs: Filesystem) -> None:
        fs.write("file", "")
        with pytest.raises(NotADirectoryError):
            fs.write("file/bell\a", "")
