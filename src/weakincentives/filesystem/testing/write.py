"""Conformance of writes: modes, parents, limits, quotas, and read-only filesystems."""

from pathlib import Path

import pytest

from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    READ_ENTIRE_FILE,
    BaseFilesystem,
    Filesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    ReadResult,
    WriteResult,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite, LimitedSuite, ReadOnlySuite
from weakincentives.filesystem.testing.names import EVERY_OPERATION


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

    def test_text_that_utf_8_cannot_store_is_refused(self, fs: Filesystem) -> None:
        with pytest.raises(ValueError, match="surrogate"):
            fs.write("file", "a\ud800b")
        assert not fs.exists("file")


class WriteLimitTests(ConformanceSuite):
    """The size limit of one write, and the order of the checks."""

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


class QuotaTests(LimitedSuite):
    """Configurable limits, and the quota on total growth."""

    def test_the_limits_can_be_read(self, tmp_path: Path) -> None:
        limits = Limits(max_path_depth=3, max_files=7)
        assert self.make_limited(tmp_path, limits).limits == limits

    def test_limits_on_names_and_content_can_be_set(self, tmp_path: Path) -> None:
        limits = Limits(max_path_depth=2, max_segment_length=4, max_write_length=5)
        fs = self.make_limited(tmp_path, limits)
        fs.write("abcd/efgh", "12345")
        with pytest.raises(LimitExceededError, match="Path depth exceeds"):
            fs.write("a/b/c", "")
        with pytest.raises(LimitExceededError, match="Path segment exceeds"):
            fs.mkdir("abcde")
        with pytest.raises(LimitExceededError, match="Content exceeds maximum"):
            fs.write("a", "123456")

    def test_limits_on_results_can_be_set(self, tmp_path: Path) -> None:
        limits = Limits(default_read_limit=2, max_list_entries=2, max_grep_matches=2)
        fs = self.make_limited(tmp_path, limits)
        for name in "cab":
            fs.write(name, "x\nx\nx\n")
        assert (fs.read("a").content, fs.read("a").truncated) == ("x\nx\n", True)
        assert ([entry.name for entry in fs.list()], fs.list().truncated) == (["a", "b"], True)
        assert (len(fs.grep("x")), fs.grep("x").truncated) == (2, True)

    def test_limits_on_matches_can_be_set(self, tmp_path: Path) -> None:
        limits = Limits(max_line_length=8, max_grep_characters=20, max_pattern_length=10)
        fs = self.make_limited(tmp_path, limits)
        fs.write("a", "....word....\n" * 5)
        found = fs.grep("word")
        assert [len(match.line_content) for match in found] == [8, 8]
        assert found.truncated
        with pytest.raises(ValueError, match="Invalid regex"):
            fs.grep("x" * 11)
        with pytest.raises(ValueError, match="Invalid glob"):
            fs.glob("x" * 11)
        with pytest.raises(ValueError, match="Invalid glob"):
            fs.grep("x", glob="x" * 11)

    def test_a_page_says_whether_all_lines_were_counted(self, tmp_path: Path) -> None:
        limits = Limits(max_count_bytes=100_000, max_write_length=1_000_000)
        fs = self.make_limited(tmp_path, limits)
        fs.write("large", "0123456\n" * 50_000)  # 400,000 bytes
        fs.write("small", "0123456\n" * 10_000)
        counted = 2 * 65_536 // 8  # in whole blocks of 64 KiB
        first = fs.read("large", limit=3)
        assert first == ReadResult(
            "0123456\n" * 3, "large", counted + 1, 0, 3, truncated=True, total_is_exact=False
        )
        assert fs.read("large", offset=counted, limit=3).total_lines > counted + 3
        last = fs.read("large", offset=45_000, limit=3)
        assert (last.total_lines, last.truncated, last.total_is_exact) == (50_000, True, True)
        assert fs.read("large", limit=3) == first
        assert fs.read("small", limit=3).total_is_exact

    def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
        self, tmp_path: Path
    ) -> None:
        limits = Limits(max_read_bytes=100_000, max_write_length=1_000_000)
        fs = self.make_limited(tmp_path, limits)
        fs.write("large", "0123456\n" * 50_000)
        fs.write("one line", "x" * 400_000)
        for change in (
            lambda: fs.read_bytes("large"),
            lambda: fs.read_bytes("large", offset=5, limit=100_001),
            lambda: fs.read("large", limit=READ_ENTIRE_FILE),
            lambda: fs.read("large", limit=12_501),
            lambda: fs.read("large", encoding="utf-16", limit=1),
            lambda: fs.read("one line", limit=1),
        ):
            with pytest.raises(LimitExceededError, match=r"max_read_bytes.*400,000.*offset"):
                change()
        assert len(fs.read_bytes("large", offset=300_000).content) == 100_000
        assert len(fs.read("large", limit=12_500).content) == 100_000

    def test_growth_stops_at_the_quota_of_bytes(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=10))
        fs.write("a", "12345")
        fs.write("dir/b", "12345")
        for change in (
            lambda: fs.write("c", "1"),
            lambda: fs.write_bytes("a", b"123456"),
            lambda: fs.write("a", "1", mode="append"),
            lambda: fs.copy("a", "c"),
        ):
            with pytest.raises(LimitExceededError, match="quota"):
                change()
        assert [match.path for match in fs.glob("**")] == ["a", "dir/b"]
        assert fs.read("a").content == "12345"

    def test_growth_stops_at_the_quota_of_entries(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_files=3))
        fs.write("dir/a", "")
        fs.mkdir("b")
        for change in (lambda: fs.write("c", ""), lambda: fs.mkdir("c"), lambda: fs.copy("b", "c")):
            with pytest.raises(LimitExceededError, match="quota"):
                change()
        assert [entry.name for entry in fs.list()] == ["b", "dir"]

    def test_parents_count_as_entries(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_files=3))
        with pytest.raises(LimitExceededError, match="quota"):
            fs.write("a/b/c/file", "")
        assert fs.list() == ()

    def test_what_does_not_grow_is_allowed_at_the_quota(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=5, max_files=1))
        fs.write("a", "12345")
        fs.write("a", "54321")
        fs.write("a", "123")
        fs.write("a", "45", mode="append")
        fs.move("a", "b")
        assert fs.read("b").content == "12345"

    def test_what_is_deleted_makes_room(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=5, max_files=2))
        for round_number in range(5):
            fs.write(f"dir/{round_number}", "12345")
            fs.delete("dir", recursive=True)
        fs.write("last", "12345")
        assert [match.path for match in fs.glob("**")] == ["last"]


class ReadOnlyTests(ReadOnlySuite):
    """A read-only filesystem rejects every write."""

    @pytest.fixture
    def frozen(self, fs: Filesystem) -> Filesystem:
        """A read-only filesystem with a file and a directory."""
        fs.write("dir/file", "text")
        fs.mkdir("empty")
        return self.make_read_only(fs)

    def test_it_says_that_it_is_read_only(self, frozen: Filesystem) -> None:
        assert frozen.read_only is True

    def test_it_can_be_read(self, frozen: Filesystem) -> None:
        assert frozen.read("dir/file").content == "text"
        assert frozen.read_bytes("dir/file").content == b"text"
        assert [entry.name for entry in frozen.list()] == ["dir", "empty"]
        assert frozen.stat("dir/file").size_bytes == 4
        assert [match.path for match in frozen.glob("**")] == ["dir/file"]
        assert [match.path for match in frozen.grep("text")] == ["dir/file"]

    @pytest.mark.parametrize("operation", ["write", "write_bytes", "delete", "mkdir"])
    @pytest.mark.parametrize(
        "path", ["dir/file", "new", "dir", "empty", "gone/new", "dir/file/below"]
    )
    def test_it_refuses_to_be_written(self, frozen: Filesystem, operation: str, path: str) -> None:
        with pytest.raises(ReadOnlyError):
            EVERY_OPERATION[operation](frozen, path)
        assert [match.path for match in frozen.glob("**")] == ["dir/file"]
        assert frozen.read("dir/file").content == "text"

    @pytest.mark.parametrize("operation", ["write", "write_bytes", "delete", "mkdir"])
    def test_it_refuses_before_it_looks_at_the_root_or_the_name(
        self, frozen: Filesystem, operation: str
    ) -> None:
        for path in (".", "bell\a", "/".join("d" * 40)):
            with pytest.raises(ReadOnlyError):
                EVERY_OPERATION[operation](frozen, path)

    @pytest.mark.parametrize("operation", ["write", "write_bytes", "delete", "mkdir"])
    def test_what_is_no_path_is_refused_as_such(self, frozen: Filesystem, operation: str) -> None:
        with pytest.raises(PermissionError, match="escapes root"):
            EVERY_OPERATION[operation](frozen, "../x")
        with pytest.raises(ValueError, match="NUL"):
            EVERY_OPERATION[operation](frozen, "a\0b")

    def test_it_refuses_to_move_and_copy(self, frozen: BaseFilesystem) -> None:
        for call in (frozen.move, frozen.copy):
            with pytest.raises(ReadOnlyError):
                call("dir/file", "new")
            with pytest.raises(ReadOnlyError):
                call("gone", ".")
        assert [match.path for match in frozen.glob("**")] == ["dir/file"]
