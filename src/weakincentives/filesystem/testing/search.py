"""Conformance of searches: `glob`, `grep`, limits, time limits and ignore files."""

import pytest

from weakincentives.filesystem import (
    MAX_GREP_MATCHES,
    BaseFilesystem,
    Coverage,
    Filesystem,
    GlobMatch,
    GrepMatch,
    PathEscapeError,
    Results,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite, TickingClock

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

    def test_a_pattern_matches_files_by_their_whole_path(self, fs: Filesystem) -> None:
        _plant(fs)
        for pattern, paths in _PATTERNS.items():
            expected = tuple(GlobMatch(path, is_file=True) for path in paths)
            assert fs.glob(pattern) == expected, pattern

    def test_a_pattern_with_a_slash_at_the_end_matches_directories(self, fs: Filesystem) -> None:
        _plant(fs)
        for pattern, paths in _DIRECTORY_PATTERNS.items():
            expected = tuple(GlobMatch(path, is_file=False) for path in paths)
            assert fs.glob(pattern) == expected, pattern

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
            assert set(found) <= whole
            assert list(found) == sorted(found, key=lambda each: each.path)
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


def _plant(fs: Filesystem) -> None:
    for path in _TREE:
        fs.write(path, "")


_WINDOW = 2_000
_TOTAL = 256_000
_BINARY_PREFIX = 8 * 1024


class GrepTests(ConformanceSuite):
    """`grep`: which lines match."""

    def test_a_match_has_path_line_and_columns(self, fs: Filesystem) -> None:
        fs.write("dir/a.txt", "one\nthe word here\n")
        assert fs.grep("w[a-z]+d") == (GrepMatch("dir/a.txt", 2, "the word here", 4, 8),)

    def test_columns_count_characters(self, fs: Filesystem) -> None:
        fs.write("a.txt", "é😀x")
        assert fs.grep("x") == (GrepMatch("a.txt", 1, "é😀x", 2, 3),)

    def test_only_the_first_match_of_a_line_is_reported(self, fs: Filesystem) -> None:
        fs.write("a.txt", "xx x\nx")
        spans = [(match.line_number, match.match_start, match.match_end) for match in fs.grep("x")]
        assert spans == [(1, 0, 1), (2, 0, 1)]

    def test_matches_are_sorted_by_path_and_line(self, fs: Filesystem) -> None:
        for path in ("b", "a/b", "a-b", "a.txt", "a/a/x"):
            fs.write(path, "x\n\nx\n")
        expected = [
            (path, line) for path in ("a-b", "a.txt", "a/a/x", "a/b", "b") for line in (1, 3)
        ]
        assert [(match.path, match.line_number) for match in fs.grep("x")] == expected

    @pytest.mark.parametrize("pattern", ["^end$", r"\Aend\z", "^end", "end$", r"\bend\b"])
    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    def test_edges_are_the_edges_of_lines(self, fs: Filesystem, pattern: str, ending: str) -> None:
        fs.write("a.txt", ending.join(["bend", "end", "ends", "end", "the-end!"]))
        lines = [match.line_number for match in fs.grep(pattern) if match.line_content == "end"]
        assert lines == [2, 4]
        assert not [each for each in fs.grep(pattern) if "\r" in each.line_content]

    @pytest.mark.parametrize("pattern", ["a.b", "a[^x]b", r"a\sb", "a\nb", "(?s)a.b", r"a\W+b"])
    def test_a_match_never_spans_lines(self, fs: Filesystem, pattern: str) -> None:
        fs.write("a.txt", "a\nb\r\nb\n")
        assert fs.grep(pattern) == ()

    def test_an_empty_pattern_matches_every_line(self, fs: Filesystem) -> None:
        fs.write("a.txt", "one\n\nthree")
        fs.write("empty", "")
        assert fs.grep("") == (
            GrepMatch("a.txt", 1, "one", 0, 0),
            GrepMatch("a.txt", 2, "", 0, 0),
            GrepMatch("a.txt", 3, "three", 0, 0),
        )

    def test_flags_and_classes_work(self, fs: Filesystem) -> None:
        fs.write("a.txt", "Größe 42\n")
        for pattern in ("(?i)GRÖSSE|GRÖßE", r"\d+", r"\p{L}+", "[[:digit:]]{2}$", "ö|ü"):
            assert len(fs.grep(pattern)) == 1

    def test_case_counts_unless_the_pattern_says_otherwise(self, fs: Filesystem) -> None:
        fs.write("a.txt", "Word\nword\nWORD\nÉ\né\n")
        found = {
            pattern: [match.line_number for match in fs.grep(pattern)]
            for pattern in ("word", "W", "[a-z]ord", "é", "(?i)word")
        }
        assert found == {"word": [2], "W": [1, 3], "[a-z]ord": [2], "é": [5], "(?i)word": [1, 2, 3]}

    @pytest.mark.parametrize("separator", ["\f", "\v", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
    def test_only_a_newline_ends_a_line(self, fs: Filesystem, separator: str) -> None:
        line = f"a{separator}b"
        fs.write("a.txt", f"{line}\nb")
        found = [(match.line_number, match.line_content) for match in fs.grep("b")]
        assert found == [(1, line), (2, "b")]

    @pytest.mark.parametrize(
        "pattern", ["(", "[", "*", "a{2,1}", "(?P<n>a)(?P=n)", r"(a)\1", "(?=a)", "(?<!a)b"]
    )
    def test_a_pattern_that_cannot_be_searched_for_is_refused(
        self, fs: Filesystem, pattern: str
    ) -> None:
        fs.write("a.txt", "aa")
        with pytest.raises(ValueError, match="Invalid regex"):
            fs.grep(pattern)

    def test_a_hostile_pattern_is_answered(self, fs: Filesystem) -> None:
        fs.write("a.txt", "a" * 10_000)
        assert fs.grep("(a+)+$b") == ()
        with pytest.raises(ValueError, match="Invalid regex"):
            fs.grep("(" * 5_000)

    def test_binary_files_are_skipped(self, fs: Filesystem) -> None:
        fs.write_bytes("nul", b"word\n\0")
        fs.write_bytes("latin", b"word \xe9\n")
        fs.write_bytes("utf16", "word".encode("utf-16"))
        fs.write("text", "word")
        assert [match.path for match in fs.grep("word")] == ["text"]
        assert fs.grep("word", path="nul") == ()

    def test_a_nul_counts_in_the_first_8_kib_only(self, fs: Filesystem) -> None:
        head = "word\n" + "x" * (_BINARY_PREFIX - 6)
        fs.write_bytes("inside", f"{head}\0\nword\n".encode())
        fs.write_bytes("after", f"{head}x\0\nword\n".encode())
        found = [(match.path, match.line_number) for match in fs.grep("word")]
        assert found == [("after", 1), ("after", 3)]

    def test_bytes_that_are_not_utf_8_count_in_the_first_8_kib_only(self, fs: Filesystem) -> None:
        head = b"word\n" + b"x" * (_BINARY_PREFIX - 6)
        fs.write_bytes("inside", head + b"\xff\nword\n")
        fs.write_bytes("after", head + b"x\xffword\n")
        fs.write_bytes("across", head + "é\nword\n".encode())
        found = [(match.path, match.line_number) for match in fs.grep("word")]
        assert found == [("across", 1), ("across", 3), ("after", 1), ("after", 2)]

    def test_what_was_written_is_found_and_what_was_deleted_is_not(self, fs: Filesystem) -> None:
        fs.write("a", "word")
        fs.write("b", "word")
        fs.write("b", "other")
        fs.write("c", "word")
        fs.delete("c")
        assert [match.path for match in fs.grep("word")] == ["a"]


class GrepScopeTests(ConformanceSuite):
    """`grep`: which files it searches, and how much it returns."""

    def test_the_path_may_be_a_file_or_a_directory(self, fs: Filesystem) -> None:
        for path in ("src/a.py", "src/b/c.py", "srcs/d.py"):
            fs.write(path, "word")
        assert [match.path for match in fs.grep("word", path="src/a.py")] == ["src/a.py"]
        assert [match.path for match in fs.grep("word", path="/src/")] == ["src/a.py", "src/b/c.py"]

    @pytest.mark.parametrize(
        ("glob", "expected"),
        [
            ("*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
            ("src/*.py", ["src/b.py"]),
            ("src/**", ["src/b.py", "src/d.txt", "src/deep/c.py"]),
            ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
            ("{a,b}.py", ["a.py", "src/b.py"]),
            ("deep", []),
            ("*.md", []),
        ],
    )
    def test_a_filter_without_a_slash_matches_names_at_any_depth(
        self, fs: Filesystem, glob: str, expected: list[str]
    ) -> None:
        for path in ("a.py", "src/b.py", "src/d.txt", "src/deep/c.py"):
            fs.write(path, "word")
        assert [match.path for match in fs.grep("word", glob=glob)] == expected

    def test_a_filter_with_a_slash_is_relative_to_the_base(self, fs: Filesystem) -> None:
        fs.write("src/deep/c.py", "word")
        assert len(fs.grep("word", path="src", glob="deep/*.py")) == 1
        assert fs.grep("word", path="src", glob="src/deep/*.py") == ()

    def test_a_filter_applies_to_a_single_file_too(self, fs: Filesystem) -> None:
        fs.write("src/c.py", "word")
        assert len(fs.grep("word", path="src/c.py", glob="*.py")) == 1
        assert fs.grep("word", path="src/c.py", glob="*.md") == ()

    def test_a_filter_that_leaves_is_refused(self, fs: Filesystem) -> None:
        fs.write("a.txt", "x")
        with pytest.raises(PathEscapeError):
            fs.grep("x", glob="../*")

    @pytest.mark.parametrize(
        ("wanted", "truncated"), [(0, True), (2, True), (3, False), (9, False)]
    )
    def test_max_matches_bounds_the_result(
        self, fs: Filesystem, wanted: int, *, truncated: bool
    ) -> None:
        fs.write("a", "x\nx\n")
        fs.write("b", "x\n")
        found = fs.grep("x", max_matches=wanted)
        assert isinstance(found, Results)
        assert (len(found), found.truncated) == (min(wanted, 3), truncated)

    def test_negative_max_matches_is_refused(self, fs: Filesystem) -> None:
        with pytest.raises(ValueError, match="max_matches"):
            fs.grep("x", max_matches=-1)

    def test_the_result_never_has_more_than_the_most_matches(self, fs: Filesystem) -> None:
        fs.write("a", "x\n" * (MAX_GREP_MATCHES + 1))
        for wanted in (None, MAX_GREP_MATCHES + 1):
            found = fs.grep("x", max_matches=wanted)
            assert isinstance(found, Results)
            assert (len(found), found.truncated) == (MAX_GREP_MATCHES, True)

    @pytest.mark.parametrize("before", [0, 10, 20_000])
    @pytest.mark.parametrize("after", [0, 10, 20_000])
    def test_a_long_line_is_shown_as_a_window_around_the_match(
        self, fs: Filesystem, before: int, after: int
    ) -> None:
        fs.write("a", "é" * before + "WORD" + "o" * after)
        [match] = fs.grep("WORD")
        assert match.line_content[match.match_start : match.match_end] == "WORD"
        assert len(match.line_content) == min(_WINDOW, before + 4 + after)

    def test_a_match_longer_than_the_window_is_cut(self, fs: Filesystem) -> None:
        fs.write("a", "x" * 5_000)
        assert fs.grep("x+") == (GrepMatch("a", 1, "x" * _WINDOW, 0, _WINDOW),)

    def test_the_characters_of_all_lines_are_bounded(self, fs: Filesystem) -> None:
        for name in "abcdefgh":
            fs.write(name, ("x" * (_WINDOW - 1) + "\n") * 20)
        found = fs.grep("x")
        assert isinstance(found, Results)
        assert sum(len(match.line_content) for match in found) <= _TOTAL
        assert len(found) == _TOTAL // (_WINDOW - 1)
        assert (found.truncated, found.reason) == (True, "size limit")

    def test_what_was_not_searched_is_counted_and_named(self, fs: Filesystem) -> None:
        for number in range(30):
            fs.write(f"{number:02}", "x\n")
        found = fs.grep("x", max_matches=5)
        assert isinstance(found, Results)
        assert found.reason == "match limit"
        assert found.coverage == Coverage(5, 25, 0, tuple(f"{each:02}" for each in range(5, 15)))
        whole = fs.grep("x")
        assert isinstance(whole, Results)
        assert (whole.reason, whole.coverage) == (None, Coverage(searched=30))

    def test_a_search_that_runs_out_of_time_returns_what_it_found(self, fs: Filesystem) -> None:
        for number in range(12):
            fs.write(f"dir/{number:02}", "word\n")
        whole = fs.grep("word")
        parts: list[int] = []
        for seconds in range(10, 90):
            with time_limit(seconds, clock=TickingClock()):
                found = fs.grep("word")
            assert isinstance(found, Results)
            assert found == whole[: len(found)]
            if found.truncated:
                assert found.reason == "time limit"
                assert found.coverage.missed_files + found.coverage.missed_directories
                assert found.coverage.missed_paths
                parts.append(len(found))
        assert any(0 < length < 12 for length in parts), parts

    def test_a_search_that_has_no_time_at_all_raises(self, fs: Filesystem) -> None:
        fs.write("a", "word")
        with pytest.raises(TimeLimitError), time_limit(0):
            fs.grep("word")


_RULES: dict[str, tuple[dict[str, str], list[str]]] = {
    "no rules": ({}, ["a.log", "a.py", "build/b.py", "src/build/c.py", "src/d.log"]),
    "a name at any depth": ({".gitignore": "*.log\n"}, ["a.py", "build/b.py", "src/build/c.py"]),
    "a directory": ({".gitignore": "build/\n"}, ["a.log", "a.py", "src/d.log"]),
    "an anchored directory": (
        {".gitignore": "/build/\n"},
        ["a.log", "a.py", "src/build/c.py", "src/d.log"],
    ),
    "brought back": (
        {".gitignore": "*.log\n!a.log\n"},
        ["a.log", "a.py", "build/b.py", "src/build/c.py"],
    ),
    "a file below": ({"src/.gitignore": "*.log\nbuild\n"}, ["a.log", "a.py", "build/b.py"]),
    "the inner one wins": (
        {".gitignore": "*.log\n", "src/.gitignore": "!d.log\n"},
        ["a.py", "build/b.py", "src/build/c.py", "src/d.log"],
    ),
    "the other file": ({".ignore": "*.py\r\n# a comment\r\n"}, ["a.log", "src/d.log"]),
    "everything": ({".gitignore": "*\n"}, []),
}


class IgnoreFileTests(ConformanceSuite):
    """`glob` and `grep` with `use_ignore_files=True`."""

    @pytest.mark.parametrize(("files", "expected"), _RULES.values(), ids=_RULES)
    def test_what_ignore_files_exclude_is_left_out(
        self, fs: BaseFilesystem, files: dict[str, str], expected: list[str]
    ) -> None:
        _plant_ignored(fs, files)
        found = fs.glob("**/[!.]*", use_ignore_files=True)
        assert [match.path for match in found] == expected
        found = fs.grep("word", use_ignore_files=True)
        assert [match.path for match in found] == expected

    def test_ignore_files_are_not_read_unless_asked(self, fs: BaseFilesystem) -> None:
        _plant_ignored(fs, {".gitignore": "*\n"})
        assert len(fs.grep("word")) == 5
        assert len(fs.glob("**")) == 7

    def test_rules_above_the_base_count(self, fs: BaseFilesystem) -> None:
        _plant_ignored(fs, {".gitignore": "*.log\n"})
        found = fs.glob("**", path="src", use_ignore_files=True)
        assert [match.path for match in found] == ["src/build/c.py"]

    @pytest.mark.parametrize(
        "text", ["x" * 48_000, "é" * 48_000, "word\n" * 5_000, "\\", "[", "\0"]
    )
    def test_a_search_survives_any_ignore_file(self, fs: BaseFilesystem, text: str) -> None:
        _plant_ignored(fs, {".gitignore": text})
        assert "a.py" in [match.path for match in fs.glob("*", use_ignore_files=True)]
        assert len(fs.grep("word", path="src", use_ignore_files=True)) == 2

    def test_the_repository_itself_is_skipped(self, fs: BaseFilesystem) -> None:
        _plant_ignored(fs, {})
        assert fs.exists(".git/config")
        assert fs.glob(".git/*", use_ignore_files=True) == ()
        assert len(fs.glob(".git/*")) == 1


def _plant_ignored(fs: BaseFilesystem, files: dict[str, str]) -> None:
    for path in ("a.py", "a.log", "build/b.py", "src/d.log", "src/build/c.py"):
        fs.write(path, "word")
    fs.write(".git/config", "")
    for path, text in files.items():
        fs.write(path, text)
