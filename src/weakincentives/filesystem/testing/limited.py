"""Limits that a caller sets: quotas, small pages, and no writing at all."""

from pathlib import Path

import pytest

from weakincentives.filesystem import (
    READ_ENTIRE_FILE,
    BaseFilesystem,
    Filesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    ReadResult,
)
from weakincentives.filesystem.testing.hooks import LimitedSuite, ReadOnlySuite
from weakincentives.filesystem.testing.names import EVERY_OPERATION


class QuotaTests(LimitedSuite):
    """Limits given to the backend, and the quota that binds all growth."""

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
        assert first == ReadResult("0123456\n" * 3, "large", counted + 1, 0, 3, True, False)
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
        for refused in (
            lambda: fs.read_bytes("large"),
            lambda: fs.read_bytes("large", offset=5, limit=100_001),
            lambda: fs.read("large", limit=READ_ENTIRE_FILE),
            lambda: fs.read("large", limit=12_501),
            lambda: fs.read("large", encoding="utf-16", limit=1),
            lambda: fs.read("one line", limit=1),
        ):
            with pytest.raises(LimitExceededError, match=r"max_read_bytes.*400,000.*offset"):
                refused()
        assert len(fs.read_bytes("large", offset=300_000).content) == 100_000
        assert len(fs.read("large", limit=12_500).content) == 100_000

    def test_growth_stops_at_the_quota_of_bytes(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=10))
        fs.write("a", "12345")
        fs.write("dir/b", "12345")
        for refused in (
            lambda: fs.write("c", "1"),
            lambda: fs.write_bytes("a", b"123456"),
            lambda: fs.write("a", "1", mode="append"),
            lambda: fs.copy("a", "c"),
        ):
            with pytest.raises(LimitExceededError, match="quota"):
                refused()
        assert [match.path for match in fs.glob("**")] == ["a", "dir/b"]
        assert fs.read("a").content == "12345"

    def test_growth_stops_at_the_quota_of_entries(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_files=3))
        fs.write("dir/a", "")
        fs.mkdir("b")
        for refused in (
            lambda: fs.write("c", ""),
            lambda: fs.mkdir("c"),
            lambda: fs.copy("b", "c"),
        ):
            with pytest.raises(LimitExceededError, match="quota"):
                refused()
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
    """A filesystem that refuses to be written."""

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
