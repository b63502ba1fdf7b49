"""Mounts of host folders: the allow-list, skipped entries and reports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.safety.places import make_special, temporary
from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemEvent,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    PathEscapeError,
    ReadOnlyError,
    VfsPath,
)
from weakincentives.filesystem.base import WritableFilesystem
from weakincentives.filesystem.mounts import MountProgress, MountReport, SkippedEntry, plan
from weakincentives.filesystem.mounts.mount import MountFilter
from weakincentives.filesystem.mounts.roots import AllowedRoots
from weakincentives.filesystem.testing.mounts import MountRuleTests, MountTests, write_host_files
from weakincentives.posix.rooted import RootedDirectory


class TestMemory(MountTests, MountRuleTests):
    def make_filesystem(self, tmp_path: Path) -> InMemoryFilesystem:
        return InMemoryFilesystem()


class TestHost(MountTests, MountRuleTests):
    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        return HostFilesystem(tmp_path)


class TestHostStepByStep(MountTests, MountRuleTests):
    """The same, on a kernel without `openat2`."""

    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        fs = HostFilesystem(tmp_path)
        fs._directory = RootedDirectory(tmp_path, kernel=False)
        return fs


class Plain(InMemoryFilesystem):
    """A backend that does nothing better than the base classes."""

    _move = WritableFilesystem._move
    _copy = WritableFilesystem._copy


class TestPlain(MountTests, MountRuleTests):
    def make_filesystem(self, tmp_path: Path) -> Plain:
        return Plain()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """An allowed root with a project in it, and a secret beside it."""
    project = {
        "project/README.md": b"readme",
        "project/src/main.py": b"main",
        "project/src/deep/er/util.py": b"util",
        "project/.hidden": b"hidden",
        "single.txt": b"single",
    }
    write_host_files(tmp_path / "allowed", project)
    write_host_files(tmp_path, {"allowed-twin/secret": b"secret", "secret": b"secret"})
    return tmp_path / "allowed"


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    if request.param == "memory":
        return InMemoryFilesystem()
    (tmp_path / "ws").mkdir()
    return HostFilesystem(tmp_path / "ws")


def paths(fs: BaseFilesystem) -> list[str]:
    return [match.path for match in fs.glob("**")]


# --- where it comes from ---


def test_a_mount_path_may_be_given_in_segments(fs: BaseFilesystem, host: Path) -> None:
    mount = HostMount("project/src", mount_path=VfsPath.parse("code"))
    fs.hydrate_from_host(mount, allowed_roots=[host])
    assert paths(fs) == ["code/deep/er/util.py", "code/main.py"]


def test_an_absolute_path_below_an_allowed_root_is_fine(fs: BaseFilesystem, host: Path) -> None:
    fs.hydrate_from_host(HostMount(str(host / "project" / "src")), allowed_roots=[host])
    assert paths(fs) == ["project/src/deep/er/util.py", "project/src/main.py"]


def test_the_root_may_be_a_link_and_be_named_by_either_name(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(host)
    for name in ("link", "allowed"):
        mount = HostMount(str(tmp_path / name / "single.txt"), mount_path=name)
        fs.hydrate_from_host(mount, allowed_roots=[tmp_path / "link"])
    assert paths(fs) == ["allowed", "link"]


def test_without_roots_the_current_directory_is_allowed(
    fs: BaseFilesystem, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(host)
    fs.hydrate_from_host(HostMount("single.txt"))
    assert paths(fs) == ["single.txt"]
    with pytest.raises(PathEscapeError):
        fs.hydrate_from_host(HostMount("../secret"))


def test_the_first_root_that_has_it_gives_it(fs: BaseFilesystem, tmp_path: Path) -> None:
    write_host_files(tmp_path, {"one/other": b"", "two/file": b"two", "three/file": b"three"})
    (tmp_path / "one" / "file").symlink_to("other")
    roots = [tmp_path / name for name in ("one", "two", "three")]
    fs.hydrate_from_host(HostMount("file"), allowed_roots=roots[1:])
    assert fs.read("file").content == "two"
    (tmp_path / "zero").mkdir()
    fs.hydrate_from_host(
        HostMount("file", mount_path="again"), allowed_roots=[tmp_path / "zero", *roots[1:]]
    )
    assert fs.read("again").content == "two"


@pytest.mark.parametrize("root", ["~", "missing", "single.txt"])
def test_an_allowed_root_is_a_directory_that_exists(
    fs: BaseFilesystem, host: Path, root: str
) -> None:
    with pytest.raises((FileNotFoundError, NotADirectoryError)):
        fs.hydrate_from_host(HostMount("single.txt"), allowed_roots=[host, host / root])
    with pytest.raises(ValueError, match=r"(?i)nul"):
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[f"{host}\0x"])


def test_a_kernels_own_link_is_no_allowed_root(fs: BaseFilesystem) -> None:
    with pytest.raises(PermissionError):
        fs.hydrate_from_host(HostMount("etc"), allowed_roots=["/proc/self/root"])


def test_links_on_the_way_are_followed_if_asked_for(fs: BaseFilesystem, host: Path) -> None:
    (host / "current").symlink_to("project")
    for path in ("current/src", "current"):
        with pytest.raises(PermissionError, match="symbolic link"):
            fs.hydrate_from_host(HostMount(path), allowed_roots=[host])
    mount = HostMount("current/src", follow_symlinks=True)
    report = fs.hydrate_from_host(mount, allowed_roots=[host])
    assert paths(fs) == ["current/src/deep/er/util.py", "current/src/main.py"]
    assert report.host_path == str(host / "project" / "src")


def test_a_followed_link_may_lead_to_another_allowed_root(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    (host / "project" / "up").symlink_to("../../allowed-twin")
    mount = HostMount("project", follow_symlinks=True)
    fs.hydrate_from_host(mount, allowed_roots=[host, tmp_path / "allowed-twin"])
    assert fs.read("project/up/secret").content == "secret"


def test_a_link_that_the_kernel_makes_up_is_not_followed(fs: BaseFilesystem, host: Path) -> None:
    (host / "project" / "magic").symlink_to("/proc/self/root/etc")
    mount = HostMount("project", follow_symlinks=True)
    report = fs.hydrate_from_host(mount, allowed_roots=[host])
    assert [entry.path for entry in report.skipped] == ["magic"]


def test_two_links_to_one_folder_give_two_copies(fs: BaseFilesystem, host: Path) -> None:
    (host / "project" / "a").symlink_to("src")
    (host / "project" / "z").symlink_to("src")
    fs.hydrate_from_host(HostMount("project", follow_symlinks=True), allowed_roots=[host])
    for name in ("a", "src", "z"):
        assert fs.read(f"project/{name}/main.py").content == "main"
        assert fs.read(f"project/{name}/deep/er/util.py").content == "util"


@pytest.mark.timeout(120)
def test_links_in_circles_come_to_an_end(fs: BaseFilesystem, host: Path) -> None:
    for path, target in {
        "self": "self", "here": ".", "src/up": "..", "src/deep/round": "../../src",
        "ping": "pong", "pong": "ping",
    }.items():  # fmt: skip
        (host / "project" / path).symlink_to(target)
    mount = HostMount("project", follow_symlinks=True)
    report = fs.hydrate_from_host(mount, allowed_roots=[host])
    assert fs.read("project/src/main.py").content == "main"
    assert [entry.path for entry in report.skipped] == [
        "here", "ping", "pong", "self", "src/deep/round", "src/up",
    ]  # fmt: skip


def test_links_that_multiply_come_to_an_end(
    fs: BaseFilesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_MAX_ENTRIES", 10_000)
    for level in range(40):
        write_host_files(tmp_path / "bomb", {f"{level}/file": b""})
        for name in "ab":
            (tmp_path / "bomb" / str(level) / name).symlink_to(f"../{level + 1}")
    with pytest.raises(LimitExceededError, match="10000 files and directories"):
        fs.hydrate_from_host(HostMount("bomb", follow_symlinks=True), allowed_roots=[tmp_path])
    assert fs.list() == ()


# --- what comes in ---


@pytest.mark.parametrize(
    "kind",
    [
        *("fifo", "socket"),
        *(pytest.param(kind, marks=pytest.mark.root) for kind in ("character", "block")),
    ],
)
def test_special_files_are_left_out_or_refused_if_named(
    fs: BaseFilesystem, kind: str, host: Path
) -> None:
    with temporary() as place:  # a socket needs a short path
        write_host_files(place / "project", {"file": b""})
        make_special(kind, place / "project" / "special")
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[place])
        assert [entry.path for entry in report.skipped] == ["special"]
        with pytest.raises(PermissionError, match="not a regular file"):
            fs.hydrate_from_host(HostMount("project/special"), allowed_roots=[place])
    assert paths(fs) == ["project/file"]


def test_hard_links_are_files_like_others(fs: BaseFilesystem, host: Path) -> None:
    os.link(host / "single.txt", host / "project" / "twin")
    fs.hydrate_from_host(HostMount("."), allowed_roots=[host])
    fs.write("single.txt", "changed")
    assert fs.read("project/twin").content == "single"
    assert (host / "single.txt").read_text() == "single"


def test_other_file_systems_below_the_root_are_entered(fs: BaseFilesystem) -> None:
    with temporary(light=True) as place:
        (place / "file").write_text("elsewhere")
        mount = HostMount(str(place), mount_path="there")
        fs.hydrate_from_host(mount, allowed_roots=["/"])
    assert fs.read("there/file").content == "elsewhere"
    made_up = fs.hydrate_from_host(HostMount("proc/version"), allowed_roots=["/"])
    assert (made_up.file_count, made_up.total_bytes) == (1, 0)


def test_permissions_come_along_without_special_bits(fs: BaseFilesystem, host: Path) -> None:
    (host / "single.txt").chmod(0o6755)
    fs.hydrate_from_host(HostMount("single.txt"), allowed_roots=[host])
    assert fs.stat("single.txt").permissions == 0o755


def test_an_empty_folder_is_mounted_as_such(fs: BaseFilesystem, host: Path) -> None:
    (host / "empty").mkdir()
    report = fs.hydrate_from_host(HostMount("empty"), allowed_roots=[host])
    assert fs.list("empty") == ()
    assert str(report) == "empty (0 files, 0 bytes)"


def test_a_workspace_may_be_mounted_into_itself(tmp_path: Path) -> None:
    write_host_files(tmp_path, {"dir/file": b"text"})
    fs = HostFilesystem(tmp_path)
    fs.hydrate_from_host(HostMount(".", mount_path="dir/copy"), allowed_roots=[tmp_path])
    assert paths(fs) == ["dir/copy/dir/file", "dir/file"]


def test_a_file_of_many_pieces_comes_in_whole(fs: BaseFilesystem, tmp_path: Path) -> None:
    large = b"".join(bytes([number]) * 1_000_000 for number in range(40))
    write_host_files(tmp_path, {"large": large})
    told: list[MountProgress] = []
    report = fs.hydrate_from_host(
        HostMount("large"), allowed_roots=[tmp_path], progress=told.append
    )
    assert fs.read_bytes("large").content == large
    assert (report.total_bytes, report.binary_count) == (40_000_000, 1)
    assert len(told) == 4


def test_a_mount_does_not_go_through_a_link_of_the_workspace(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    fs._make_link("project", str(tmp_path))
    fs._make_link("single.txt", str(tmp_path / "secret"))
    for name in ("project", "single.txt"):
        with pytest.raises(PermissionError, match="Symbolic links"):
            fs.hydrate_from_host(HostMount(name), allowed_roots=[host])
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "README.md").exists()


def test_a_file_cannot_be_the_root(fs: BaseFilesystem, host: Path) -> None:
    with pytest.raises(IsADirectoryError):
        fs.hydrate_from_host(HostMount("single.txt", mount_path="."), allowed_roots=[host])


# --- what changes meanwhile; the listener changes it when nothing has been read yet ---


def test_a_file_that_grows_after_it_was_measured_is_cut(fs: BaseFilesystem, host: Path) -> None:
    def grow(_: MountProgress) -> None:
        (host / "project" / "src" / "main.py").write_text("x" * 1_000_000)

    mount = HostMount("project", max_bytes=20)
    report = fs.hydrate_from_host(mount, allowed_roots=[host], progress=grow)
    assert fs.read("project/src/main.py").content == "xxxx"
    assert (report.changed, report.total_bytes) == (("project/src/main.py",), 20)


def test_a_file_that_shrinks_is_mounted_as_it_is_read(fs: BaseFilesystem, host: Path) -> None:
    def shrink(_: MountProgress) -> None:
        (host / "project" / "README.md").write_text("r")

    told: list[MountProgress] = []
    report = fs.hydrate_from_host(
        HostMount("project"),
        allowed_roots=[host],
        progress=lambda progress: (shrink(progress), told.append(progress)),
    )
    assert fs.read("project/README.md").content == "r"
    assert (report.changed, report.total_bytes) == (("project/README.md",), 15)
    assert told[-1] == MountProgress(4, 4, 20, 20)


def test_what_vanishes_or_turns_into_something_else_is_left_out(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    write_host_files(
        host / "project", {"pipe": b"file", "link": b"file", "folder/a": b"", "folder/b": b""}
    )
    fs.write("project/README.md", "mine")
    events: list[FilesystemEvent] = []
    fs.subscribe(events.append)

    def change(progress: MountProgress) -> None:
        if progress.done_files:
            return
        for name in ("README.md", "pipe", "link", "folder/a", "folder/b"):
            (host / "project" / name).unlink()
        (host / "project" / "folder").rmdir()
        os.mkfifo(host / "project" / "pipe")
        (host / "project" / "link").symlink_to(tmp_path / "secret")

    report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host], progress=change)
    assert {entry.path for entry in report.skipped} == {
        "README.md", "pipe", "link", "folder/a", "folder/b",
    }  # fmt: skip
    assert report.paths == (
        "project/.hidden",
        "project/src/deep/er/util.py",
        "project/src/main.py",
    )
    assert fs.read("project/README.md").content == "mine"
    assert fs.grep("secret") == ()
    assert "project/README.md" not in [str(event).partition(" ")[0] for event in events]


def test_what_is_named_and_vanishes_is_refused(fs: BaseFilesystem, host: Path) -> None:
    def remove(_: MountProgress) -> None:
        (host / "single.txt").unlink()

    with pytest.raises(FileNotFoundError):
        fs.hydrate_from_host(HostMount("single.txt"), allowed_roots=[host], progress=remove)
    assert fs.list() == ()


# --- limits ---


def test_the_quota_binds_mounts(host: Path) -> None:
    for limits in (Limits(max_total_bytes=19), Limits(max_files=7)):
        fs = InMemoryFilesystem(limits=limits)
        with pytest.raises(LimitExceededError, match="quota"):
            fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert fs.list() == ()
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=20, max_files=8))
    fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])


def test_mounting_again_counts_once(tmp_path: Path) -> None:
    write_host_files(tmp_path, {"dir/f": b"x" * 60})
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=100, max_files=2))
    for _ in range(3):
        fs.hydrate_from_host(HostMount("dir"), allowed_roots=[tmp_path])
    assert fs.stat("dir/f").size_bytes == 60


def test_a_mount_that_failed_takes_nothing_of_the_quota(tmp_path: Path) -> None:
    write_host_files(tmp_path, {"f": b"x" * 60})
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=100))

    def stop(progress: MountProgress) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            fs.hydrate_from_host(HostMount("f"), allowed_roots=[tmp_path], progress=stop)
    fs.hydrate_from_host(HostMount("f"), allowed_roots=[tmp_path])


@pytest.mark.timeout(120)
def test_a_giant_is_refused_or_left_out_before_it_is_read(
    fs: BaseFilesystem, tmp_path: Path
) -> None:
    write_host_files(tmp_path, {"dir/small": b"small"})
    with (tmp_path / "dir" / "giant").open("wb") as giant:
        giant.truncate(5 * 1024**3)
    with pytest.raises(LimitExceededError, match="max_bytes of 1000000: 5368709125 bytes"):
        fs.hydrate_from_host(HostMount("dir", max_bytes=1_000_000), allowed_roots=[tmp_path])
    with pytest.raises(LimitExceededError, match="quota"):
        InMemoryFilesystem().hydrate_from_host(HostMount("dir"), allowed_roots=[tmp_path])
    mount = HostMount("dir", max_file_bytes=1_000_000, max_bytes=1_000_000)
    report = fs.hydrate_from_host(mount, allowed_roots=[tmp_path])
    assert [str(entry) for entry in report.skipped] == [
        "giant: larger than max_file_bytes: 5368709120 bytes"
    ]
    assert paths(fs) == ["dir/small"]


def test_a_read_only_workspace_refuses_mounts(host: Path) -> None:
    with pytest.raises(ReadOnlyError):
        InMemoryFilesystem(read_only=True).hydrate_from_host(
            HostMount("project"), allowed_roots=[host]
        )


# --- who may not read ---

UNPRIVILEGED = """
import os, sys
from weakincentives.filesystem import HostMount, InMemoryFilesystem
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
report = InMemoryFilesystem().hydrate_from_host(HostMount("."), allowed_roots=[sys.argv[1]])
print(*report.paths, *report.skipped, sep="\\n")
for path in ("file", "folder", "folder/below"):
    try:
        InMemoryFilesystem().hydrate_from_host(HostMount(path), allowed_roots=[sys.argv[1]])
    except PermissionError as error:
        print(error)
"""


def test_what_may_not_be_read_is_left_out_or_refused_if_named() -> None:
    with temporary() as place:
        place.chmod(0o755)
        write_host_files(place, {"file": b"", "folder/below": b"", "fine": b""})
        (place / "file").chmod(0)
        (place / "folder").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(place)],
            capture_output=True,
            text=True,
            check=True,
        )
        (place / "folder").chmod(0o755)
    assert done.stdout.splitlines() == [
        "fine",
        "file: Permission denied",
        "folder: Permission denied",
        "[Errno 13] Permission denied: 'file'",
        "[Errno 13] Permission denied: 'folder'",
        "[Errno 13] Permission denied: 'folder/below'",
    ]


# --- what is said ---


def test_a_preview_is_bounded_and_tells_no_more_than_it_should() -> None:
    names = tuple(f"dir/{'x' * 500}{number}\n" for number in range(1_000))
    report = MountReport("dir", 1_000, 0, paths=names, host_path="/home/me/secret\nproject")
    text = report.preview()
    assert len(text) < 20 * 210 + 100
    assert text.count("\n") == 21
    assert text.endswith("\n- ... and 980 more")
    assert "/home" not in text
    told = report.preview(0, with_host_path=True)
    assert told == (
        "dir (1000 files, 0 bytes), copied from /home/me/secret\\nproject\n- ... and 1000 more"
    )


def test_a_report_says_how_much_was_skipped() -> None:
    report = MountReport("a\nb", 1, 2, (SkippedEntry("x\ny", "symbolic link"),))
    assert str(report) == "a\\nb (1 file, 2 bytes, 1 skipped)"
    assert str(report.skipped[0]) == "x\\ny: symbolic link"
    assert str(MountProgress(1, 2, 3, 4)) == "1 of 2 files, 3 of 4 bytes"


def test_nothing_of_the_host_stays_open(fs: BaseFilesystem, host: Path) -> None:
    fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    for path in ("missing", "../secret"):
        with pytest.raises(OSError, match=r"."):
            fs.hydrate_from_host(HostMount(path), allowed_roots=[host, host])
    with pytest.raises(FileNotFoundError):
        AllowedRoots([host, host / "missing"])
    held = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [each for each in held if each.startswith(str(host))]


def test_one_path_is_no_list_of_allowed_roots(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for roots in (str(tmp_path), tmp_path):
        with pytest.raises(TypeError, match="sequence of paths"):
            InMemoryFilesystem().hydrate_from_host(
                HostMount("f"),
                allowed_roots=roots,  # pyright: ignore[reportArgumentType] # that is the point
            )


def test_one_pattern_is_no_list_of_patterns(tmp_path: Path) -> None:
    mount = HostMount(".", include_glob="*.py")  # pyright: ignore[reportArgumentType] # that is the point
    with pytest.raises(TypeError, match="sequence of patterns"):
        InMemoryFilesystem().hydrate_from_host(mount, allowed_roots=[tmp_path])


@pytest.mark.parametrize(
    ("pattern", "pruned", "kept"),
    [
        ("node_modules/", ["node_modules", "node_modules/a"], ["src", "src/node_modules"]),
        ("**/node_modules/**", ["node_modules", "a/b/node_modules"], ["node_modules2", "a"]),
        ("{a,b}/**", ["a", "b", "a/c"], ["c", "c/a"]),
        ("a/*", [], ["a", "a/b"]),
        ("**", [], ["a"]),
        ("a\\/**", [], ["a"]),
    ],
)
def test_a_folder_that_is_left_out_whole_is_not_looked_into(
    pattern: str, pruned: list[str], kept: list[str]
) -> None:
    globs = MountFilter(HostMount(".", exclude_glob=(pattern,)))
    assert [path for path in pruned + kept if globs.prunes(path)] == pruned
    assert all(not globs.wants(f"{path}/file") for path in pruned)
