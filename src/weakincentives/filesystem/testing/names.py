"""Paths and names: what leads out, what is no path, and what may be created."""

from collections.abc import Callable

import pytest

from weakincentives.filesystem import (
    MAX_PATH_DEPTH,
    MAX_SEGMENT_LENGTH,
    Filesystem,
    InvalidPathError,
    LimitExceededError,
    PathEscapeError,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite

Operation = Callable[[Filesystem, str], object]

EVERY_OPERATION: dict[str, Operation] = {
    "read": lambda fs, path: fs.read(path),
    "read_bytes": lambda fs, path: fs.read_bytes(path),
    "stat": lambda fs, path: fs.stat(path),
    "list": lambda fs, path: fs.list(path),
    "glob": lambda fs, path: fs.glob("*", path=path),
    "grep": lambda fs, path: fs.grep("x", path=path),
    "write": lambda fs, path: fs.write(path, "x"),
    "write_bytes": lambda fs, path: fs.write_bytes(path, b"x"),
    "delete": lambda fs, path: fs.delete(path, recursive=True),
    "mkdir": lambda fs, path: fs.mkdir(path),
}
_CREATING = ("write", "write_bytes", "mkdir")
_READING = ("read", "read_bytes", "stat", "list", "glob", "grep", "delete")

_REFUSED_NAMES = {
    "bell": "a\ab",
    "newline": "a\nb",
    "escape": "a\x1b[31m",
    "delete": "a\x7f",
    "c1": "a\x85b",
    "bidirectional": "\u202egnp.exe",
    "zero-width": "x\u200by",
    "byte order mark": "\ufeffa",
    "soft hyphen": "a\u00adb",
    "letter mark": "\u061ca",
    "filler": "a\u3164b",
    "variation selector": "a\ufe0fb",
    "supplementary selector": "a\U000e0100b",
    "tag": "a\U000e0041b",
    "private use": "a\ue000b",
    "line separator": "a\u2028b",
    "lone surrogate": "a\ud800",
    "escaped byte": "a\udcff",
    "blank before": " a",
    "blank after": "a ",
    "wide blank": "a\u3000",
    "tab": "\ta",
    "decomposed": "e\u0301",
    "reserved": ".wink-tmp-x",
}
_ALLOWED_NAMES = (
    "-rf", "--help", "@x", "CON", "a:b", "a.", "a b", "*", "?", "[x]", "{a,b}", "a\\b", "'", '"',
    "$HOME", "~", "#", "%2e%2e", ".hidden", "...", "..a", "a..", "é", "日本語", "😀.txt",
    ".wink-tm", ".git", "NUL", "<b>", "a;rm -rf", "`x`",
)  # fmt: skip


class PathTests(ConformanceSuite):
    """Every operation reads a path the same way."""

    @pytest.mark.parametrize(
        "path",
        ["/dir/file", "dir//file", "./dir/./file", "dir/x/../file", "dir/file/", "//dir/file"],
    )
    def test_a_path_has_many_spellings(self, fs: Filesystem, path: str) -> None:
        fs.write(path, "text")
        assert [match.path for match in fs.glob("**")] == ["dir/file"]
        assert fs.read(path).content == "text"
        assert fs.stat(path).path == "dir/file"

    @pytest.mark.parametrize(
        "path", ["..", "../x", "a/../../x", "/..", "/../x", "./../x", "a/../.."]
    )
    @pytest.mark.parametrize("operation", EVERY_OPERATION)
    def test_a_path_that_leaves_the_root_is_refused(
        self, fs: Filesystem, operation: str, path: str
    ) -> None:
        fs.write("a/x", "kept")
        with pytest.raises(PathEscapeError, match="escapes root"):
            EVERY_OPERATION[operation](fs, path)
        assert fs.read("a/x").content == "kept"

    @pytest.mark.parametrize("path", ["\0", "a\0b", "a/\0/b", "a\0/../b"])
    @pytest.mark.parametrize("operation", EVERY_OPERATION)
    def test_a_path_with_nul_is_refused(self, fs: Filesystem, operation: str, path: str) -> None:
        with pytest.raises(InvalidPathError):
            EVERY_OPERATION[operation](fs, path)
        assert fs.list() == ()

    @pytest.mark.parametrize("path", [None, b"a", 7])
    @pytest.mark.parametrize("operation", [*EVERY_OPERATION, "exists"])
    def test_what_is_no_string_is_no_path(
        self, fs: Filesystem, operation: str, path: object
    ) -> None:
        call: Callable[..., object] = EVERY_OPERATION.get(
            operation, lambda fs, path: fs.exists(path)
        )
        with pytest.raises(TypeError):
            call(fs, path)

    @pytest.mark.parametrize("operation", _READING)
    @pytest.mark.parametrize("name", [*_REFUSED_NAMES.values(), "x" * 300, "/".join("x" * 50)])
    def test_a_name_that_cannot_be_created_is_just_not_there(
        self, fs: Filesystem, operation: str, name: str
    ) -> None:
        assert fs.exists(name) is False
        with pytest.raises(FileNotFoundError):
            EVERY_OPERATION[operation](fs, name)


class NameTests(ConformanceSuite):
    """What may be created."""

    @pytest.mark.parametrize("name", _ALLOWED_NAMES)
    def test_an_unusual_name_is_a_name(self, fs: Filesystem, name: str) -> None:
        fs.write(f"{name}/{name}", "text")
        assert fs.read(f"{name}/{name}").content == "text"
        assert [entry.name for entry in fs.list()] == [name]
        assert [match.path for match in fs.grep("text")] == [f"{name}/{name}"]
        fs.delete(name, recursive=True)
        assert fs.list() == ()

    def test_names_that_differ_in_case_are_different(self, fs: Filesystem) -> None:
        fs.write("Name", "upper")
        fs.write("name", "lower")
        assert (fs.read("Name").content, fs.read("name").content) == ("upper", "lower")

    @pytest.mark.parametrize("operation", _CREATING)
    @pytest.mark.parametrize("name", _REFUSED_NAMES.values(), ids=_REFUSED_NAMES)
    def test_a_name_that_misleads_is_refused(
        self, fs: Filesystem, operation: str, name: str
    ) -> None:
        for path in (name, f"dir/{name}", f"dir/{name}/below"):
            with pytest.raises(InvalidPathError):
                EVERY_OPERATION[operation](fs, path)
        assert fs.list() == ()

    @pytest.mark.parametrize("operation", _CREATING)
    def test_the_deepest_path_is_allowed(self, fs: Filesystem, operation: str) -> None:
        path = "/".join("d" * MAX_PATH_DEPTH)
        EVERY_OPERATION[operation](fs, path)
        assert fs.exists(path)

    @pytest.mark.parametrize("operation", _CREATING)
    def test_a_deeper_path_is_refused(self, fs: Filesystem, operation: str) -> None:
        with pytest.raises(LimitExceededError, match="Path depth exceeds"):
            EVERY_OPERATION[operation](fs, "/".join("d" * (MAX_PATH_DEPTH + 1)))
        assert fs.list() == ()

    @pytest.mark.parametrize("operation", _CREATING)
    def test_depth_counts_after_the_path_is_normalized(
        self, fs: Filesystem, operation: str
    ) -> None:
        EVERY_OPERATION[operation](fs, "./d/../" * MAX_PATH_DEPTH + "name")
        assert [entry.name for entry in fs.list()] == ["name"]

    @pytest.mark.parametrize("operation", _CREATING)
    @pytest.mark.parametrize("name", ["n" * MAX_SEGMENT_LENGTH, "é" * MAX_SEGMENT_LENGTH])
    def test_the_longest_name_is_allowed(self, fs: Filesystem, operation: str, name: str) -> None:
        EVERY_OPERATION[operation](fs, name)
        assert [entry.name for entry in fs.list()] == [name]

    @pytest.mark.parametrize("operation", _CREATING)
    @pytest.mark.parametrize("name", ["n" * (MAX_SEGMENT_LENGTH + 1), "😀" * 64])
    def test_a_longer_name_is_refused(self, fs: Filesystem, operation: str, name: str) -> None:
        for path in (name, f"dir/{name}", f"{name}/below"):
            with pytest.raises(LimitExceededError, match="Path segment exceeds"):
                EVERY_OPERATION[operation](fs, path)
        assert fs.list() == ()
