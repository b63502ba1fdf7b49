"""The protocol, its result values, and the code that relies on them."""

from dataclasses import FrozenInstanceError, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

import weakincentives.filesystem as workspace
from weakincentives.contrib import tools
from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    READ_ENTIRE_FILE,
    BaseFilesystem,
    FileEntry,
    FileStat,
    Filesystem,
    GlobMatch,
    GrepMatch,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
    ObservableFilesystem,
    ReadBytesResult,
    ReadResult,
    Results,
    WriteResult,
    normalize_path,
)

RESULTS = [
    FileStat(
        path="a/b",
        is_file=True,
        is_directory=False,
        size_bytes=3,
        created_at=None,
        modified_at=datetime(2024, 1, 1, tzinfo=UTC),
    ),
    FileEntry(name="b", path="a/b", is_file=True, is_directory=False),
    GlobMatch(path="a/b", is_file=True),
    GrepMatch(path="a/b", line_number=1, line_content="x", match_start=0, match_end=1),
    ReadResult(content="x", path="a/b", total_lines=1, offset=0, limit=9, truncated=False),
    ReadBytesResult(content=b"x", path="a/b", size_bytes=1, offset=0, limit=9, truncated=False),
    WriteResult(path="a/b", bytes_written=1, mode="create"),
]


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    return InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)


# --- the protocol can be checked at run time ---


def test_the_backends_are_filesystems(fs: BaseFilesystem):
    assert isinstance(fs, Filesystem)
    assert isinstance(fs, ObservableFilesystem)


def test_something_with_half_of_the_methods_is_no_filesystem():
    class Half:
        root = "/"
        read_only = False

        def read(self, path: str) -> str:
            return path

    assert not isinstance(Half(), Filesystem)


# --- the results are values ---


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_names_its_path(result: object):
    assert "a/b" in str(result)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_is_frozen_and_has_no_room_for_more(result: object):
    assert is_dataclass(result)
    with pytest.raises(FrozenInstanceError):
        result.path = "other"  # pyright: ignore[reportAttributeAccessIssue] # the point of the test
    assert not hasattr(result, "__dict__")
    assert {field.name for field in fields(result)} > {"path"}


def test_results_are_a_tuple_that_says_whether_there_was_more():
    found = Results([1, 2], truncated=True)
    assert found == (1, 2)
    assert isinstance(found, tuple)
    assert found.truncated
    assert not Results[int]().truncated


@pytest.mark.parametrize(
    ("is_file", "is_directory", "target", "kind"),
    [
        (True, False, None, "file"),
        (False, True, None, "directory"),
        (False, False, "x", "symlink"),
        (False, False, None, "special"),
    ],
)
def test_a_stat_has_a_kind(is_file: bool, is_directory: bool, target: str | None, kind: str):
    assert FileStat("a", is_file, is_directory, link_target=target).kind == kind


def test_what_cannot_be_seen_is_shown_escaped():
    assert str(GlobMatch("a\udcff\n", True)) == "a\\xff\\n"
    assert "\u202e" not in str(FileEntry("x", "\u202ex", True, False))


# --- names and messages that existing code relies on ---


def test_paths_are_normalized():
    assert normalize_path("a/b/../c") == "a/c"
    assert normalize_path("/a//./b/") == "a/b"
    assert normalize_path(".") == normalize_path("/") == normalize_path("") == ""


def test_reading_all_has_a_name(fs: BaseFilesystem):
    assert READ_ENTIRE_FILE == -1
    fs.write("a", "x\n" * 3_000)
    assert fs.read("a", limit=READ_ENTIRE_FILE).total_lines == 3_000


def test_the_host_takes_underscored_names(tmp_path: Path):
    git_dir = tmp_path / "git"
    root = tmp_path / "root"
    root.mkdir()
    fs = HostFilesystem(_root=str(root), _read_only=True, _git_dir=str(git_dir))
    assert (fs.root, fs.read_only) == (str(root), True)
    assert HostFilesystem(_root=str(root)).read_only is False


def test_the_host_reports_the_root_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("real").mkdir()
    Path("link").symlink_to("real")
    for given in ("real", "link", tmp_path / "real", "real/../link"):
        assert HostFilesystem(given).root == str(given)


def test_the_host_needs_a_directory(tmp_path: Path):
    with pytest.raises(TypeError):
        HostFilesystem()
    with pytest.raises(FileNotFoundError):
        HostFilesystem(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        HostFilesystem(tmp_path / "file")


def test_memory_takes_an_underscored_name():
    assert InMemoryFilesystem(_read_only=True).read_only is True
    assert InMemoryFilesystem().read_only is False


def test_memory_empties_and_keeps_its_root():
    fs = InMemoryFilesystem()
    fs.write("/a/b", "")
    fs.delete("/", recursive=True)
    assert fs.list("/") == ()
    assert fs.stat("/").is_directory


def test_the_host_never_deletes_its_root(tmp_path: Path):
    fs = HostFilesystem(tmp_path)
    fs.write("a", "")
    with pytest.raises(PermissionError, match="Cannot delete root"):
        fs.delete("/", recursive=True)
    assert fs.exists("a")


def test_names_of_earlier_drafts_are_the_same_things():
    assert workspace.FilesystemProtocol is Filesystem
    assert workspace.FileContent is ReadResult
    assert workspace.InMemoryBackend is InMemoryFilesystem
    assert workspace.HostBackend is HostFilesystem


FRAGMENTS = {
    "binary content.*read_bytes": (ValueError, lambda fs: fs.read("binary")),
    "offset must be non-negative": (ValueError, lambda fs: fs.read("file", offset=-1)),
    "limit must be non-negative": (ValueError, lambda fs: fs.read_bytes("file", limit=-2)),
    "Cannot write to root": (ValueError, lambda fs: fs.write(".", "")),
    "Content exceeds maximum": (ValueError, lambda fs: fs.write("a", "x" * 48_001)),
    "Path depth exceeds": (ValueError, lambda fs: fs.mkdir("/".join("d" * 17))),
    "Path segment exceeds": (ValueError, lambda fs: fs.mkdir("n" * 81)),
    "Invalid regex": (ValueError, lambda fs: fs.grep("(")),
    "not empty": (OSError, lambda fs: fs.delete("dir")),
    "escapes root": (PermissionError, lambda fs: fs.read("../x")),
    "Cannot delete root": (PermissionError, lambda fs: fs.delete("/")),
}


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_message_keeps_what_callers_match_on(fs: BaseFilesystem, fragment: str):
    fs.write_bytes("binary", b"\xff\xfe")
    fs.write("dir/file", "")
    fs.write("file", "")
    error, call = FRAGMENTS[fragment]
    with pytest.raises(error, match=fragment) as caught:
        call(fs)
    assert not str(caught.value).endswith(".")


def test_an_error_of_ours_is_a_wink_error_and_a_builtin():
    tree = {
        workspace.InvalidPathError: ValueError,
        workspace.PathEscapeError: PermissionError,
        workspace.LimitExceededError: ValueError,
        workspace.TimeLimitError: TimeoutError,
        workspace.BinaryContentError: ValueError,
        workspace.InvalidGlobError: ValueError,
        workspace.InvalidRegexError: ValueError,
        workspace.ReadOnlyError: PermissionError,
    }
    for error, builtin in tree.items():
        assert issubclass(error, WinkError)
        assert issubclass(error, builtin)


def test_the_limits_have_the_defaults_of_the_specification():
    limits = Limits()
    assert (limits.max_write_length, limits.max_path_depth, limits.max_segment_length) == (
        48_000,
        16,
        80,
    )
    assert (limits.default_read_limit, limits.max_grep_matches) == (2_000, 1_000)


def test_memory_is_importable_from_where_tools_expect_it():
    assert tools.InMemoryFilesystem is InMemoryFilesystem
