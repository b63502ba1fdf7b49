"""Globs: one dialect, matched against the whole path, sorted by path."""

import pytest

from weakincentives.filesystem import (
    Filesystem,
    GlobMatch,
    PathEscapeError,
    Results,
    time_limit,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite
from weakincentives.filesystem.testing.hooks import TickingClock

_TREE = (
    ".env", "README.md", "a-b/x.py", "a/b/deep.py", "a/b/deep.txt", "a/top.py", "a/[x].py",
    "data/1.csv", "data/2.csv", "data/10.csv", "src/main.py", "src/pkg/.keep", "src/pkg/Main.py",
)  # fmt: skip
_PATTERNS: dict[str, list[str]] = {
    "README.md": ["README.md"],
    "main.py": [],
    "*": [".env", "README.md"],
    "*.md": ["README.md"],
    "*/*.py": ["a-b/x.py", "a/[x].py", "a/top.py", "src/main.py"],
    "src/*": ["src/main.py"],
    "src/**": ["src/main.py", "src/pkg/.keep", "src/pkg/Main.py"],
    "**/deep.py": ["a/b/deep.py"],
    "**/README.md": ["README.md"],
    "a/**/deep.py": ["a/b/deep.py"],
    "a/**/top.py": ["a/top.py"],
    "src/**/[mM]ain.py": ["src/main.py", "src/pkg/Main.py"],
    "**/*ain.py": ["src/main.py", "src/pkg/Main.py"],
    "**/main.py": ["src/main.py"],
    "data/?.csv": ["data/1.csv", "data/2.csv"],
    "data/??.csv": ["data/10.csv"],
    "data/[0-9].csv": ["data/1.csv", "data/2.csv"],
    "data/[!1].csv": ["data/2.csv"],
    "data/[^1].csv": ["data/2.csv"],
    "data/{1,10}.csv": ["data/1.csv", "data/10.csv"],
    "{src,a/{b,c}}/*.py": ["a/b/deep.py", "src/main.py"],
    "a/\\[x\\].py": ["a/[x].py"],
    "a/[[]x].py": ["a/[x].py"],
    "a?b/x.py": ["a-b/x.py"],
    "a?b": [],
    "**/.*": [".env", "src/pkg/.keep"],
    "./src/*.py": ["src/main.py"],
    "src/pkg/../*.py": ["src/main.py"],
    "/src/*.py": ["src/main.py"],
    "src//*.py": ["src/main.py"],
    "nothing/**": [],
    "src": [],
    "a/**x.py": [],
    "a/**p.py": ["a/top.py"],
}
_DIRECTORY_PATTERNS: dict[str, list[str]] = {
    "*/": ["a", "a-b", "data", "src"],
    "**/": ["a", "a-b", "a/b", "data", "src", "src/pkg"],
    "src/": ["src"],
    "src/*/": ["src/pkg"],
    "README.md/": [],
}


class GlobTests(ConformanceSuite):
    """`glob`."""

    @pytest.mark.parametrize("pattern", _PATTERNS)
    def test_a_pattern_matches_files_by_their_whole_path(
        self, fs: Filesystem, pattern: str
    ) -> None:
        _plant(fs)
        assert fs.glob(pattern) == tuple(GlobMatch(path, True) for path in _PATTERNS[pattern])

    @pytest.mark.parametrize("pattern", _DIRECTORY_PATTERNS)
    def test_a_pattern_with_a_slash_at_the_end_matches_directories(
        self, fs: Filesystem, pattern: str
    ) -> None:
        _plant(fs)
        expected = tuple(GlobMatch(path, False) for path in _DIRECTORY_PATTERNS[pattern])
        assert fs.glob(pattern) == expected

    def test_matches_are_sorted_by_the_whole_path(self, fs: Filesystem) -> None:
        _plant(fs)
        fs.write("a.py", "")
        assert [match.path for match in fs.glob("**")] == sorted((*_TREE, "a.py"))

    @pytest.mark.parametrize("path", ["src", "/src/", "src/pkg/.."])
    def test_a_base_narrows_the_match_and_not_the_path(self, fs: Filesystem, path: str) -> None:
        _plant(fs)
        assert [match.path for match in fs.glob("*.py", path=path)] == ["src/main.py"]
        assert fs.glob("src/*.py", path=path) == ()

    def test_a_pattern_does_not_climb_out_of_its_base(self, fs: Filesystem) -> None:
        _plant(fs)
        for pattern in ("../*", "a/../../*", "**/../../../*", "/../x"):
            with pytest.raises((PathEscapeError, ValueError)):
                fs.glob(pattern)
        with pytest.raises(PathEscapeError, match="escapes root"):
            fs.glob("../*", path="src")

    def test_case_counts(self, fs: Filesystem) -> None:
        fs.write("Name.TXT", "")
        assert fs.glob("name.*") == fs.glob("*.txt") == ()
        assert [match.path for match in fs.glob("N*.TXT")] == ["Name.TXT"]

    def test_a_star_matches_any_character_of_a_name(self, fs: Filesystem) -> None:
        fs.write("dir/日本 é😀.txt", "")
        for pattern in ("dir/*", "dir/日*é?.txt", "*/*.txt", "dir/[日-本]*"):
            assert [match.path for match in fs.glob(pattern)] == ["dir/日本 é😀.txt"]

    def test_all_matches_are_returned(self, fs: Filesystem) -> None:
        for number in range(300):
            fs.write(f"{number % 7}/{number}", "")
        found = fs.glob("**")
        assert isinstance(found, Results)
        assert (len(found), found.truncated) == (300, False)

    def test_a_glob_that_runs_out_of_time_returns_what_it_found(self, fs: Filesystem) -> None:
        for number in range(12):
            fs.write(f"{number:02}/file", "")
        whole = set(fs.glob("**"))
        parts: list[int] = []
        for seconds in range(10, 70):
            with time_limit(seconds, clock=TickingClock()):
                found = fs.glob("**")
            assert isinstance(found, Results)
            assert set(found) <= whole and list(found) == sorted(found, key=lambda each: each.path)
            if found.truncated:
                assert found.reason == "time limit"
                assert len(found) + found.coverage.missed_directories >= 1
                assert all(path.endswith("/") for path in found.coverage.missed_paths)
                parts.append(len(found))
        assert any(0 < length < 12 for length in parts), parts

    @pytest.mark.parametrize("pattern", ["", "x" * 5_000, "{a,b}" * 40, "/", "**/.."])
    def test_a_pattern_that_cannot_be_matched_is_refused(
        self, fs: Filesystem, pattern: str
    ) -> None:
        with pytest.raises(ValueError, match="Invalid glob"):
            fs.glob(pattern)

    def test_a_glob_of_nothing_raises_file_not_found(self, fs: Filesystem) -> None:
        fs.write("file", "")
        for path in ("gone", "file/below"):
            with pytest.raises(FileNotFoundError):
                fs.glob("*", path=path)

    def test_a_glob_below_a_file_is_refused(self, fs: Filesystem) -> None:
        fs.write("file", "")
        with pytest.raises(NotADirectoryError):
            fs.glob("*", path="file")


def _plant(fs: Filesystem) -> None:
    for path in _TREE:
        fs.write(path, "")
