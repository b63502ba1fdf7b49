"""Conformance of paths and names, symbolic links and special files."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from weakincentives.filesystem import (
    MAX_PATH_DEPTH,
    MAX_SEGMENT_LENGTH,
    BaseFilesystem,
    EntryMoved,
    FileDeleted,
    FileEntry,
    Filesystem,
    GlobMatch,
    InvalidPathError,
    LimitExceededError,
    LinkCreated,
    PathEscapeError,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite, PlantingSuite
from weakincentives.filesystem.testing.events import record_events

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
# the same with other arguments
_VARIANTS: dict[str, Operation] = {
    "create": lambda fs, path: fs.write(path, "x", mode="create"),
    "append": lambda fs, path: fs.write(path, "x", mode="append"),
    "write alone": lambda fs, path: fs.write(path, "x", create_parents=False),
    "mkdir alone": lambda fs, path: fs.mkdir(path, parents=False),
    "delete alone": lambda fs, path: fs.delete(path),
}
_WRITING = ("write", "write_bytes", "create", "append")
_CREATING = ("write", "write_bytes", "mkdir")
_READING = ("read", "read_bytes", "stat", "list", "glob", "grep", "delete")
_REFUSALS: list[tuple[Sequence[str], Sequence[str], type[Exception], str]] = [
    ((*_READING, "delete alone"), ("gone", "dir/gone", "gone/gone", "file/below"),
     FileNotFoundError, ""),
    (("read", "read_bytes"), ("dir", "dir/", ".", "/"), IsADirectoryError, ""),
    (("list", "glob"), ("file",), NotADirectoryError, ""),
    (_WRITING, ("dir",), IsADirectoryError, ""),
    (_WRITING, (".", "/", "", "dir/.."), ValueError, "Cannot write to root"),
    ((*_WRITING, "write alone", "mkdir", "mkdir alone"), ("file/below", "file/x/below"),
     NotADirectoryError, ""),
]  # fmt: skip
"""Operations, paths in a tree of `file` and `dir`, and the error for each of them."""
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


def find_accepting(
    fs: Filesystem,
    path: str,
    error: type[Exception],
    *,
    operations: Iterable[str] = EVERY_OPERATION,
    message: str = "",
) -> list[str]:
    """Return the operations that do not raise `error` with `message` at `path`."""
    accepting: list[str] = []
    for name in operations:
        try:
            {**EVERY_OPERATION, **_VARIANTS}[name](fs, path)
        except error as refusal:
            accepting += [] if message in str(refusal) else [f"{name}: {refusal}"]
        else:
            accepting.append(name)
    return accepting


class PathTests(ConformanceSuite):
    """Every operation normalizes and checks paths in the same way."""

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
    def test_a_path_that_leaves_the_root_is_refused(self, fs: Filesystem, path: str) -> None:
        fs.write("a/x", "kept")
        assert find_accepting(fs, path, PathEscapeError, message="escapes root") == []
        assert fs.read("a/x").content == "kept"

    @pytest.mark.parametrize(("operations", "paths", "error", "message"), _REFUSALS)
    def test_what_an_entry_does_not_allow_is_refused(
        self,
        fs: Filesystem,
        operations: Sequence[str],
        paths: Sequence[str],
        error: type[Exception],
        message: str,
    ) -> None:
        fs.write("file", "old")
        fs.mkdir("dir")
        for path in paths:
            assert find_accepting(fs, path, error, operations=operations, message=message) == []
        assert [entry.name for entry in fs.list()] == ["dir", "file"]
        assert fs.read("file").content == "old"

    @pytest.mark.parametrize("path", ["\0", "a\0b", "a/\0/b", "a\0/../b"])
    def test_a_path_with_nul_is_refused(self, fs: Filesystem, path: str) -> None:
        assert find_accepting(fs, path, InvalidPathError) == []
        assert fs.list() == ()

    @pytest.mark.parametrize("path", [None, b"a", 7])
    def test_what_is_no_string_is_no_path(self, fs: Filesystem, path: str) -> None:
        assert find_accepting(fs, path, TypeError) == []
        with pytest.raises(TypeError):
            fs.exists(path)

    @pytest.mark.parametrize("name", [*_REFUSED_NAMES.values(), "x" * 300, "/".join("x" * 50)])
    def test_a_name_that_cannot_be_created_is_just_not_there(
        self, fs: Filesystem, name: str
    ) -> None:
        assert fs.exists(name) is False
        assert find_accepting(fs, name, FileNotFoundError, operations=_READING) == []


class NameTests(ConformanceSuite):
    """Names that may be created, and names that are rejected."""

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

    @pytest.mark.parametrize("name", _REFUSED_NAMES.values(), ids=_REFUSED_NAMES)
    def test_a_name_that_misleads_is_refused(self, fs: Filesystem, name: str) -> None:
        for path in (name, f"dir/{name}", f"dir/{name}/below"):
            assert find_accepting(fs, path, InvalidPathError, operations=_CREATING) == []
        assert fs.list() == ()

    @pytest.mark.parametrize("operation", _CREATING)
    @pytest.mark.parametrize(
        "path",
        [
            "/".join("d" * MAX_PATH_DEPTH),
            "./d/../" * MAX_PATH_DEPTH + "name",
            "n" * MAX_SEGMENT_LENGTH,
            "é" * MAX_SEGMENT_LENGTH,
        ],
    )
    def test_the_longest_path_is_allowed(self, fs: Filesystem, operation: str, path: str) -> None:
        EVERY_OPERATION[operation](fs, path)
        assert fs.exists(path)

    @pytest.mark.parametrize("operation", _CREATING)
    @pytest.mark.parametrize("name", ["n" * (MAX_SEGMENT_LENGTH + 1), "😀" * 64])
    def test_a_longer_name_is_refused(self, fs: Filesystem, operation: str, name: str) -> None:
        deep = "/".join("d" * (MAX_PATH_DEPTH + 1))
        for path, fact in ((name, "segment"), (f"dir/{name}", "segment"), (deep, "depth")):
            with pytest.raises(LimitExceededError, match=f"Path {fact} exceeds"):
                EVERY_OPERATION[operation](fs, path)
        with pytest.raises(LimitExceededError, match="Path segment exceeds"):
            EVERY_OPERATION[operation](fs, f"{name}/below")
        assert fs.list() == ()


_TARGETS = ("file", "dir", "gone", "/etc/passwd", "..", "../outside", ".", "link", "a b/é\n")


class LinkTests(PlantingSuite):
    """Symbolic links: shown, never followed."""

    @pytest.mark.parametrize("target", _TARGETS)
    def test_stat_shows_the_link_and_its_target(self, fs: BaseFilesystem, target: str) -> None:
        fs.write("file", "text")
        fs.write("dir/below", "")
        self.make_link(fs, "link", target)
        found = fs.stat("link")
        assert (found.kind, found.link_target, found.size_bytes) == ("symlink", target, 0)
        assert (found.is_file, found.is_directory, found.content_hash) == (False, False, None)

    def test_a_link_exists_and_nothing_below_it_does(self, fs: BaseFilesystem) -> None:
        fs.write("dir/below", "")
        self.make_link(fs, "link", "dir")
        self.make_link(fs, "broken", "gone")
        assert fs.exists("link")
        assert fs.exists("broken")
        assert not fs.exists("link/below")

    def test_list_shows_the_link(self, fs: BaseFilesystem) -> None:
        fs.mkdir("dir")
        self.make_link(fs, "dir/link", "/etc")
        assert fs.list("dir") == (
            FileEntry("link", "dir/link", is_file=False, is_directory=False, is_symlink=True),
        )

    @pytest.mark.parametrize("target", _TARGETS)
    def test_a_link_is_not_followed(self, fs: BaseFilesystem, target: str) -> None:
        fs.write("file", "x")
        fs.write("dir/below", "x")
        self.make_link(fs, "link", target)
        following = [name for name in EVERY_OPERATION if name not in ("stat", "delete")]
        assert (
            find_accepting(fs, "link", PermissionError, operations=following, message="link") == []
        )
        assert fs.stat("link").link_target == target
        assert (fs.read("file").content, fs.read("dir/below").content) == ("x", "x")

    @pytest.mark.parametrize("path", ["link/below", "link/new", "link/new/deep"])
    def test_nothing_is_reached_through_a_link(self, fs: BaseFilesystem, path: str) -> None:
        fs.write("dir/below", "x")
        self.make_link(fs, "link", "dir")
        assert find_accepting(fs, path, PermissionError, message="link") == []
        assert [entry.name for entry in fs.list("dir")] == ["below"]

    def test_a_refusal_names_the_link_and_its_target(self, fs: BaseFilesystem) -> None:
        fs.mkdir("dir")
        self.make_link(fs, "dir/link", "/etc/passwd")
        for path in ("dir/link", "dir/link/below"):
            with pytest.raises(PermissionError) as caught:
                fs.read(path)
            assert "dir/link" in str(caught.value)
            assert "/etc/passwd" in str(caught.value)

    def test_create_refuses_a_link_that_exists(self, fs: BaseFilesystem) -> None:
        self.make_link(fs, "link", "gone")
        with pytest.raises(FileExistsError):
            fs.write("link", "", mode="create")
        with pytest.raises(PermissionError):
            fs.write("link", "", mode="append")
        assert not fs.exists("gone")

    @pytest.mark.parametrize("recursive", [True, False])
    def test_delete_removes_the_link_and_not_its_target(
        self, fs: BaseFilesystem, *, recursive: bool
    ) -> None:
        fs.write("dir/below", "")
        self.make_link(fs, "link", "dir")
        events = record_events(fs)
        fs.delete("link", recursive=recursive)
        assert [entry.name for entry in fs.list()] == ["dir"]
        assert fs.exists("dir/below")
        assert events == [FileDeleted("link", "symlink", None, None)]

    def test_a_directory_is_deleted_without_following_links(self, fs: BaseFilesystem) -> None:
        fs.write("kept/file", "")
        fs.mkdir("dir")
        self.make_link(fs, "dir/link", "../kept")
        with pytest.raises(IsADirectoryError, match="not empty"):
            fs.delete("dir")
        fs.delete("dir", recursive=True)
        assert fs.exists("kept/file")

    def test_glob_shows_links_and_does_not_enter_them(self, fs: BaseFilesystem) -> None:
        fs.write("dir/file", "")
        self.make_link(fs, "dir/up", "..")
        self.make_link(fs, "link", "dir")
        assert fs.glob("**") == (
            GlobMatch("dir/file", is_file=True),
            GlobMatch("dir/up", is_file=False),
            GlobMatch("link", is_file=False),
        )
        assert fs.glob("link/*") == ()
        assert fs.glob("**/") == (GlobMatch("dir", is_file=False),)

    def test_grep_does_not_look_through_links(self, fs: BaseFilesystem) -> None:
        fs.write("dir/file", "word")
        self.make_link(fs, "link", "dir")
        self.make_link(fs, "twin", "dir/file")
        assert [match.path for match in fs.grep("word")] == ["dir/file"]

    def test_links_are_moved_and_copied_as_links(self, fs: BaseFilesystem) -> None:
        fs.write("file", "")
        self.make_link(fs, "link", "file")
        events = record_events(fs)
        fs.copy("link", "copied")
        fs.move("link", "dir/moved")
        assert fs.stat("copied").link_target == fs.stat("dir/moved").link_target == "file"
        assert not fs.exists("link")
        assert events[0] == LinkCreated("copied", "file")
        assert events[-1] == EntryMoved("link", "dir/moved", "symlink")

    @pytest.mark.parametrize("how", ["move", "copy"])
    def test_a_link_is_not_replaced_or_entered(self, fs: BaseFilesystem, how: str) -> None:
        fs.write("file", "x")
        fs.mkdir("dir")
        self.make_link(fs, "link", "dir")
        call: Callable[..., None] = fs.move if how == "move" else fs.copy
        with pytest.raises(FileExistsError):
            call("file", "link")
        with pytest.raises(PermissionError):
            call("file", "link", overwrite=True)
        with pytest.raises(PermissionError):
            call("file", "link/below")
        with pytest.raises(PermissionError):
            call("link/below", "file2")
        assert (fs.read("file").content, fs.list("dir")) == ("x", ())

    def test_a_copied_directory_keeps_its_links(self, fs: BaseFilesystem) -> None:
        fs.mkdir("dir")
        self.make_link(fs, "dir/link", "../elsewhere")
        fs.copy("dir", "twin")
        assert fs.stat("twin/link").link_target == "../elsewhere"


class SpecialFileTests(ConformanceSuite):
    """Pipes, sockets and devices: shown and removed, never opened."""

    def make_special(self, fs: BaseFilesystem, path: str) -> None:
        """Create a pipe, a socket or a device at `path`."""
        raise NotImplementedError(f"{type(self).__name__} must define make_special(fs, path)")

    def test_stat_and_list_show_a_special_file(self, fs: BaseFilesystem) -> None:
        self.make_special(fs, "pipe")
        assert (fs.stat("pipe").kind, fs.exists("pipe")) == ("special", True)
        assert fs.list() == (
            FileEntry("pipe", "pipe", is_file=False, is_directory=False, is_symlink=False),
        )

    @pytest.mark.parametrize("operation", ["read", "read_bytes", "write", "write_bytes"])
    def test_a_special_file_is_never_opened(self, fs: BaseFilesystem, operation: str) -> None:
        self.make_special(fs, "pipe")
        with pytest.raises(PermissionError):
            EVERY_OPERATION[operation](fs, "pipe")
        assert fs.stat("pipe").kind == "special"

    def test_a_special_file_is_no_directory(self, fs: BaseFilesystem) -> None:
        self.make_special(fs, "pipe")
        with pytest.raises(NotADirectoryError):
            fs.list("pipe")
        with pytest.raises(FileExistsError):
            fs.mkdir("pipe")

    def test_searches_pass_over_special_files(self, fs: BaseFilesystem) -> None:
        self.make_special(fs, "pipe")
        fs.write("file", "word")
        assert [match.path for match in fs.glob("*")] == ["file"]
        assert [match.path for match in fs.grep("")] == ["file"]

    def test_delete_removes_a_special_file(self, fs: BaseFilesystem) -> None:
        self.make_special(fs, "pipe")
        fs.delete("pipe")
        assert fs.list() == ()
