"""Nothing outside the workspace is read, written, listed or removed, by any path."""

import os
from pathlib import Path

import pytest

from tests.safety.operations import OPERATIONS, READING, WRITING, Operation, outcome
from tests.safety.places import SECRET, Opener, Place, opened, visible
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    PathEscapeError,
    ReadOnlyError,
)

ESCAPES = [
    "..",
    "../",
    "/..",
    "./..",
    "../x",
    "/../x",
    "../outside/s.txt",
    "../ws-evil/f",
    "../ws/../ws-evil/f",
    "../ws/a/f.txt",
    "a/../../x",
    "a/../../outside/s.txt",
    "a//..//..//x",
    "a/./.././../x",
    "a/f.txt/../../../x",
    "missing/../../x",
    "a/b/c/d/../../../../../x",
    "../" * 40 + "etc/passwd",
]

CHAIN = 50


def both_backends(place: Place) -> list[BaseFilesystem]:
    memory = InMemoryFilesystem()
    memory.write("a/f.txt", "inside\n")
    return [HostFilesystem(place.workspace), memory]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_no_operation_accepts_a_path_that_climbs_out(place: Place, operation: Operation) -> None:
    surroundings = place.surroundings()
    for fs in both_backends(place):
        before = visible(fs)
        for path in ESCAPES:
            with pytest.raises(PathEscapeError, match="escapes root") as caught:
                operation(fs, path)
            assert isinstance(caught.value, PermissionError)
            assert not fs.exists(path)
        assert visible(fs) == before
    assert place.surroundings() == surroundings


@pytest.mark.parametrize("pattern", ["../*", "../ws-evil/*", "a/../../**", "{..,a}/*"])
def test_no_pattern_climbs_out(place: Place, pattern: str) -> None:
    for fs in both_backends(place):
        with pytest.raises(PathEscapeError, match="escapes root"):
            fs.glob(pattern)
        with pytest.raises(PathEscapeError, match="escapes root"):
            fs.grep(".", glob=pattern)


def test_an_absolute_path_means_the_workspace_and_not_the_host(place: Place) -> None:
    for fs in both_backends(place):
        host_path = str(place.outside / "s.txt")
        with pytest.raises(FileNotFoundError):
            fs.read(host_path)
        fs.write("/etc/passwd", "mine")
        assert fs.read("etc/passwd").content == "mine"
        assert fs.read("/a/f.txt").content == "inside\n"


THROUGH_LINKS = [
    *("ld/s.txt", "sub/ld/s.txt", "ld/inner/s.txt", "c0/s.txt", "lf/s.txt"),
    *("ld/new.txt", "sub/ld/new/deep.txt", "c0/new", "self/new", "dangling/x", "magic/tmp/x"),
]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_no_operation_goes_through_a_linked_directory(
    fs: HostFilesystem, place: Place, operation: Operation
) -> None:
    lay_links(place)
    surroundings = place.surroundings()
    before = visible(fs)
    for path in THROUGH_LINKS:
        with pytest.raises(PermissionError, match="Symbolic links are not followed"):
            operation(fs, path)
        assert not fs.exists(path)
    assert visible(fs) == before
    assert place.surroundings() == surroundings


LINKS = ["ld", "lf", "self", "ping", "c0", "dangling", "magic"]
ON_THE_LINK_ITSELF = {"stat", "delete", "delete_recursive", "move_from", "copy_from"}
# what is refused because something is there already, whatever it is
CREATING = {"write_create", "copy_directory_to", "move_directory_to"}


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - ON_THE_LINK_ITSELF))
def test_no_operation_looks_behind_a_link(fs: HostFilesystem, place: Place, name: str) -> None:
    lay_links(place)
    surroundings = place.surroundings()
    before = visible(fs)
    expected = FileExistsError if name in CREATING else PermissionError
    for path in LINKS:
        with pytest.raises(expected):
            OPERATIONS[name](fs, path)
    assert visible(fs) == before
    assert place.surroundings() == surroundings


@pytest.mark.parametrize("path", LINKS)
def test_a_link_itself_can_be_seen_moved_copied_and_deleted(
    fs: HostFilesystem, place: Place, path: str
) -> None:
    lay_links(place)
    surroundings = place.surroundings()
    target = str((place.workspace / path).readlink())
    assert fs.exists(path)
    assert fs.stat(path).kind == "symlink"
    assert fs.stat(path).link_target == target
    fs.copy(path, "copied")
    fs.move("copied", "sub/moved")
    assert str((place.workspace / "sub" / "moved").readlink()) == target
    fs.delete("sub/moved")
    fs.delete(path, recursive=True)
    assert not (place.workspace / path).is_symlink()
    assert place.surroundings() == surroundings


def test_searching_and_listing_show_links_and_nothing_behind_them(
    fs: HostFilesystem, place: Place
) -> None:
    lay_links(place)
    (place.workspace / "up").symlink_to("..")
    shown = [fs.glob("**"), fs.glob("**/"), fs.glob("*/*"), fs.glob("ld/*"), fs.grep("secret")]
    assert SECRET not in repr(shown)
    assert not any("s.txt" in repr(found) for found in shown)
    assert {entry.path for entry in fs.list() if entry.is_symlink} >= {"ld", "lf", "up", "magic"}
    assert not any(entry.is_directory or entry.is_file for entry in fs.list() if entry.is_symlink)


def test_links_in_memory_are_not_followed_either() -> None:
    fs = InMemoryFilesystem()
    fs.write("real/f", SECRET)
    fs.write("a/f.txt", "inside")
    fs._make_link("ld", "real")
    for name, operation in OPERATIONS.items():
        with pytest.raises(PermissionError, match="Symbolic links are not followed"):
            operation(fs, "ld/f")
        assert fs.read("real/f").content == SECRET, name
    assert not fs.exists("ld/f")
    assert [match.path for match in fs.grep("secret")] == ["real/f"]


def test_deleting_a_tree_removes_its_links_and_not_their_targets(
    fs: HostFilesystem, place: Place
) -> None:
    lay_links(place)
    (place.workspace / "sub" / "deep").mkdir()
    (place.workspace / "sub" / "deep" / "out").symlink_to(place.outside)
    surroundings = place.surroundings()
    fs.delete("sub", recursive=True)
    assert not fs.exists("sub")
    assert place.surroundings() == surroundings


def test_copying_a_tree_copies_its_links_as_links(fs: HostFilesystem, place: Place) -> None:
    lay_links(place)
    fs.copy("sub", "again")
    assert fs.stat("again/ld").kind == "symlink"
    assert SECRET not in repr(visible(fs))


@pytest.mark.parametrize("operation", READING.values(), ids=READING)
def test_magic_links_of_the_kernel_lead_nowhere(opener: Opener, operation: Operation) -> None:
    held = os.open("/", os.O_RDONLY)
    try:
        with opened(Path("/proc/self"), opener) as fs:
            for path in ("root/etc/passwd", "cwd/pyproject.toml", f"fd/{held}/etc/passwd"):
                assert isinstance(outcome(operation, fs, path), PermissionError)
    finally:
        os.close(held)


def test_a_workspace_that_points_to_a_magic_link_does_not_lead_out(
    fs: HostFilesystem, place: Place
) -> None:
    for number, target in enumerate(
        ["/proc/self/root", "/proc/self/cwd", "/proc/thread-self/root"]
    ):
        (place.workspace / f"m{number}").symlink_to(target)
        for name, operation in OPERATIONS.items():
            assert isinstance(outcome(operation, fs, f"m{number}/etc/passwd"), PermissionError), (
                name
            )


@pytest.mark.parametrize("root", ["/proc/1/cwd", "/proc/self/cwd", "/proc/self/root/tmp"])
def test_a_root_behind_a_magic_link_is_refused(root: str) -> None:
    with pytest.raises(PermissionError):
        HostFilesystem(root)


def test_a_root_that_is_an_open_descriptor_is_refused(place: Place) -> None:
    held = os.open(place.outside, os.O_RDONLY)
    try:
        for root in (f"/proc/self/fd/{held}", f"/dev/fd/{held}"):
            with pytest.raises(PermissionError):
                HostFilesystem(root)
    finally:
        os.close(held)


@pytest.mark.parametrize("root", ["missing", "a/f.txt", "a/f.txt/x", "loop"])
def test_a_root_that_is_no_directory_is_refused(place: Place, root: str) -> None:
    (place.workspace / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=root):
        HostFilesystem(place.workspace / root)


def test_a_root_with_a_nul_in_it_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match=r"(?i)nul"):
        HostFilesystem(f"{place.workspace}\0/../outside")


def test_a_relative_root_stays_where_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.workspace.parent)
    fs = HostFilesystem("ws")
    monkeypatch.chdir(place.outside)
    assert fs.root == "ws"
    assert fs.read("a/f.txt").content == "inside\n"
    fs.write("new", "x")
    assert (place.workspace / "new").exists()


def test_a_linked_root_is_followed_once_and_then_forgotten(place: Place, opener: Opener) -> None:
    link = place.workspace.with_name("link")
    link.symlink_to(place.workspace)
    with opened(link, opener) as fs:
        link.unlink()
        link.symlink_to(place.outside)
        assert fs.read("a/f.txt").content == "inside\n"
        with pytest.raises(FileNotFoundError):
            fs.read("s.txt")
        fs.write("new", "x")
    assert (place.workspace / "new").exists()
    assert not (place.outside / "new").exists()


def test_a_root_swapped_for_a_link_does_not_lead_out(fs: HostFilesystem, place: Place) -> None:
    surroundings = place.surroundings()
    kept = place.workspace.with_name("kept")
    place.workspace.rename(kept)
    place.workspace.symlink_to(place.outside)
    with pytest.raises(FileNotFoundError):
        fs.read("s.txt")
    assert fs.read("a/f.txt").content == "inside\n"
    fs.write("b/new", "x")
    fs.delete("a", recursive=True)
    assert [entry.path for entry in fs.list()] == ["b"]
    assert [match.path for match in fs.grep(".")] == ["b/new"]
    assert [path.name for path in kept.iterdir()] == ["b"]
    assert place.surroundings() == surroundings


HARD_LINK_WRITES: dict[str, Operation] = {
    **{name: WRITING[name] for name in ("write", "write_append", "write_bytes", "delete")},
    "copy_to": lambda fs, path: fs.copy("a/f.txt", path, overwrite=True),
    "move_to": lambda fs, path: fs.move("a/f.txt", path, overwrite=True),
}


@pytest.mark.parametrize("operation", HARD_LINK_WRITES.values(), ids=HARD_LINK_WRITES)
def test_a_hard_link_to_outside_is_broken_and_not_written_through(
    fs: HostFilesystem, place: Place, operation: Operation
) -> None:
    target = place.outside / "shared"
    target.write_text("shared\n")
    os.link(target, place.workspace / "hard")
    mode = target.stat().st_mode
    operation(fs, "hard")
    assert target.read_text() == "shared\n"
    assert target.stat().st_nlink == 1
    assert target.stat().st_mode == mode


@pytest.mark.parametrize("operation", WRITING.values(), ids=WRITING)
def test_a_read_only_workspace_refuses_every_change(place: Place, operation: Operation) -> None:
    memory = InMemoryFilesystem(read_only=True)
    host = HostFilesystem(place.workspace, read_only=True)
    before = visible(host)
    for fs in (host, memory):
        assert fs.read_only
        for path in ("a/f.txt", "a", "new", "new/deep", ".", "/"):
            with pytest.raises(ReadOnlyError):
                operation(fs, path)
        with pytest.raises(ReadOnlyError):
            fs.hydrate_from_host(HostMount("."), allowed_roots=[place.outside])
    assert visible(host) == before


def test_a_read_only_workspace_is_not_even_swept(place: Place) -> None:
    leftover = place.workspace / ".wink-tmp-left"
    leftover.write_text("left")
    fs = HostFilesystem(place.workspace, read_only=True)
    assert [entry.path for entry in fs.list()] == ["a"]
    assert leftover.exists()


def test_a_closed_workspace_reaches_nothing(place: Place, opener: Opener) -> None:
    fs = opened(place.workspace, opener)
    fs.close()
    fs.close()
    reused = os.open(place.outside, os.O_RDONLY)  # takes the number that was freed
    try:
        for name, operation in OPERATIONS.items():
            for path in ("s.txt", "inner", "new"):
                result = outcome(operation, fs, path)
                assert isinstance(result, OSError | ValueError), name
        assert {path.name for path in place.outside.iterdir()} == {"inner", "s.txt"}
    finally:
        os.close(reused)


def lay_links(place: Place) -> None:
    """Put links of every kind into the workspace."""
    workspace = place.workspace
    (workspace / "sub").mkdir()
    (workspace / "sub" / "ld").symlink_to(place.outside)
    (workspace / "ld").symlink_to("../outside")
    (workspace / "lf").symlink_to(place.outside / "s.txt")
    (workspace / "dangling").symlink_to(place.outside / "not-there")
    (workspace / "magic").symlink_to("/proc/self/root")
    (workspace / "self").symlink_to("self")
    (workspace / "ping").symlink_to("pong")
    (workspace / "pong").symlink_to("ping")
    for number in range(CHAIN):
        (workspace / f"c{number}").symlink_to(f"c{number + 1}")
    (workspace / f"c{CHAIN}").symlink_to(place.outside)
