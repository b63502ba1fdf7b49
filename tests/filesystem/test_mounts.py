"""Copying folders of the host into a workspace: what is allowed, what is left out, what is said."""

import os
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemEvent,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    InvalidPathError,
    LimitExceededError,
    Limits,
    PathEscapeError,
    VfsPath,
)
from weakincentives.filesystem.mounts import MountProgress
from weakincentives.filesystem.mounts.roots import AllowedRoots


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """An allowed root with a project in it, and a secret beside it."""
    root = tmp_path / "allowed"
    for path, text in {
        "project/README.md": "readme",
        "project/src/main.py": "main",
        "project/src/deep/er/util.py": "util",
        "project/.hidden": "hidden",
        "single.txt": "single",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (tmp_path / "allowed-twin").mkdir()
    (tmp_path / "allowed-twin" / "secret").write_text("secret")
    (tmp_path / "secret").write_text("secret")
    return root


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    if request.param == "memory":
        return InMemoryFilesystem()
    (tmp_path / "ws").mkdir()
    return HostFilesystem(tmp_path / "ws")


def paths(fs: BaseFilesystem) -> list[str]:
    return [match.path for match in fs.glob("**")]


def test_a_folder_comes_in_with_its_content(fs: BaseFilesystem, host: Path) -> None:
    report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    assert paths(fs) == [
        "project/.hidden",
        "project/README.md",
        "project/src/deep/er/util.py",
        "project/src/main.py",
    ]
    assert fs.read("project/src/main.py").content == "main"
    assert (report.mount_path, report.file_count, report.total_bytes) == ("project", 4, 20)
    assert str(report) == "project (4 files, 20 bytes)"


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        (HostMount("single.txt"), ["single.txt"]),
        (HostMount("single.txt", mount_path="a/b.txt"), ["a/b.txt"]),
        (HostMount("project/src", mount_path=VfsPath.parse("code")),
         ["code/deep/er/util.py", "code/main.py"]),
        (HostMount("project/src", mount_path=""), ["deep/er/util.py", "main.py"]),
        (HostMount("project/../single.txt"), ["single.txt"]),
        (HostMount("./project//src/deep"), ["project/src/deep/er/util.py"]),
        (HostMount("project", include_glob=("*.py",)),
         ["project/src/deep/er/util.py", "project/src/main.py"]),
        (HostMount("project", include_glob=("src/*.py",)), ["project/src/main.py"]),
        (HostMount("project", include_glob=("*.py",), exclude_glob=("util*",)),
         ["project/src/main.py"]),
        (HostMount("project", exclude_glob=("**/*.py", ".*")), ["project/README.md"]),
    ],
)  # fmt: skip
def test_what_is_named_goes_where_it_should(
    fs: BaseFilesystem, host: Path, mount: HostMount, expected: list[str]
) -> None:
    fs.hydrate_from_host(mount, allowed_roots=[host])
    assert paths(fs) == expected


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


@pytest.mark.parametrize(
    "path",
    ["../secret", "project/../../secret", "/etc/passwd", "../allowed-twin/secret", "..", "/"],
)
def test_what_is_below_no_allowed_root_is_refused(
    fs: BaseFilesystem, host: Path, path: str
) -> None:
    with pytest.raises(PathEscapeError, match="escapes root"):
        fs.hydrate_from_host(HostMount(path), allowed_roots=[host])
    assert paths(fs) == []


def test_a_prefix_is_not_a_parent(fs: BaseFilesystem, host: Path) -> None:
    twin = str(host) + "-twin/secret"
    with pytest.raises(PathEscapeError, match="escapes root"):
        fs.hydrate_from_host(HostMount(twin), allowed_roots=[host])


def test_no_allowed_root_allows_nothing(fs: BaseFilesystem, host: Path) -> None:
    for path in (str(host / "single.txt"), "single.txt", "."):
        with pytest.raises(PathEscapeError):
            fs.hydrate_from_host(HostMount(path), allowed_roots=[])


def test_a_tilde_is_a_name_and_no_home(fs: BaseFilesystem, host: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.hydrate_from_host(HostMount("~"), allowed_roots=[host])


def test_hostile_paths_are_refused(fs: BaseFilesystem, host: Path) -> None:
    with pytest.raises(InvalidPathError, match="NUL"):
        fs.hydrate_from_host(HostMount("a\0b"), allowed_roots=[host])
    with pytest.raises(ValueError, match=r"(?i)nul"):
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[f"{host}\0x"])
    with pytest.raises(PathEscapeError):
        fs.hydrate_from_host(HostMount("project", mount_path="../x"), allowed_roots=[host])
    with pytest.raises(FileNotFoundError):
        fs.hydrate_from_host(HostMount("missing"), allowed_roots=[host])
    with pytest.raises(FileNotFoundError):
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[host / "missing"])


def test_links_are_skipped_and_listed_in_the_report(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    (host / "project" / "out").symlink_to(tmp_path)
    (host / "project" / "in").symlink_to("README.md")
    report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    assert [skipped.path for skipped in report.skipped] == ["in", "out"]
    assert all("link" in str(skipped) for skipped in report.skipped)
    assert len(paths(fs)) == 4


def test_a_host_path_through_a_link_is_not_entered(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    (host / "out").symlink_to(tmp_path)
    for path in ("out/secret", "out"):
        with pytest.raises(PermissionError, match="link"):
            fs.hydrate_from_host(HostMount(path), allowed_roots=[host])
    assert paths(fs) == []


def test_followed_links_stay_within_the_allowed_roots(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    (host / "project" / "in").symlink_to("README.md")
    (host / "project" / "folder").symlink_to("src/deep")
    (host / "project" / "out").symlink_to(tmp_path / "secret")
    (host / "project" / "up").symlink_to("../../allowed-twin")
    (host / "project" / "nowhere").symlink_to("missing")
    (host / "project" / "magic").symlink_to("/proc/self/root/etc")
    mount = HostMount("project", follow_symlinks=True)
    report = fs.hydrate_from_host(mount, allowed_roots=[host])
    assert fs.read("project/in").content == "readme"
    assert fs.read("project/folder/er/util.py").content == "util"
    assert fs.stat("project/in").kind == "file"
    assert [each.path for each in report.skipped] == ["magic", "nowhere", "out", "up"]
    assert fs.grep("secret") == ()


def test_a_followed_link_may_lead_to_another_allowed_root(
    fs: BaseFilesystem, host: Path, tmp_path: Path
) -> None:
    (host / "project" / "up").symlink_to("../../allowed-twin")
    mount = HostMount("project", follow_symlinks=True)
    fs.hydrate_from_host(mount, allowed_roots=[host, tmp_path / "allowed-twin"])
    assert fs.read("project/up/secret").content == "secret"


def test_two_links_to_one_folder_give_two_copies(fs: BaseFilesystem, host: Path) -> None:
    (host / "project" / "a").symlink_to("src")
    (host / "project" / "z").symlink_to("src")
    fs.hydrate_from_host(HostMount("project", follow_symlinks=True), allowed_roots=[host])
    for name in ("a", "src", "z"):
        assert fs.read(f"project/{name}/main.py").content == "main"
        assert fs.read(f"project/{name}/deep/er/util.py").content == "util"


@pytest.mark.timeout(60)
def test_links_in_circles_come_to_an_end(fs: BaseFilesystem, host: Path) -> None:
    (host / "project" / "self").symlink_to("self")
    (host / "project" / "here").symlink_to(".")
    (host / "project" / "src" / "up").symlink_to("..")
    (host / "project" / "src" / "deep" / "round").symlink_to("../../src")
    mount = HostMount("project", follow_symlinks=True)
    report = fs.hydrate_from_host(mount, allowed_roots=[host])
    assert fs.read("project/src/main.py").content == "main"
    assert report.skipped


def test_specials_are_skipped(fs: BaseFilesystem, host: Path) -> None:
    os.mkfifo(host / "project" / "pipe")
    report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    assert [str(skipped) for skipped in report.skipped] == ["pipe: not a regular file"]
    with pytest.raises(PermissionError, match="not a regular file"):
        fs.hydrate_from_host(HostMount("project/pipe"), allowed_roots=[host])


def test_reserved_names_are_skipped(fs: BaseFilesystem, host: Path) -> None:
    (host / "project" / ".wink-tmp-file").write_text("x")
    (host / "project" / ".wink-tmp-tree").mkdir()
    (host / "project" / ".wink-tmp-tree" / "f").write_text("x")
    report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    assert [each.path for each in report.skipped] == [".wink-tmp-file", ".wink-tmp-tree"]
    assert report.file_count == len(paths(fs)) == 4


def test_names_that_may_not_be_created_come_in_and_are_shown_escaped(
    fs: BaseFilesystem, host: Path
) -> None:
    for name in (b"bad\xff", b"new\nline", b"n" * 200, b"-rf"):
        Path(os.fsdecode(os.fsencode(host / "project") + b"/" + name)).write_text("odd")
    report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    assert report.file_count == 8
    assert fs.read("project/bad\udcff").content == "odd"
    assert all(str(match).isprintable() for match in fs.glob("**"))


def test_the_limits_of_an_agent_do_not_bind_mounts(host: Path) -> None:
    (host / "large").write_text("x" * 100_000)
    deep = host / "/".join("d" * 40)
    deep.mkdir(parents=True)
    (deep / "f").write_text("deep")
    fs = InMemoryFilesystem()
    fs.hydrate_from_host(HostMount("large"), allowed_roots=[host])
    fs.hydrate_from_host(HostMount("d"), allowed_roots=[host])
    assert fs.stat("large").size_bytes == 100_000
    assert fs.read("/".join("d" * 40) + "/f").content == "deep"


@pytest.mark.parametrize("max_bytes", [0, 5, 19])
def test_a_mount_larger_than_allowed_changes_nothing(
    fs: BaseFilesystem, host: Path, max_bytes: int
) -> None:
    with pytest.raises(LimitExceededError, match="max_bytes"):
        fs.hydrate_from_host(HostMount("project", max_bytes=max_bytes), allowed_roots=[host])
    assert paths(fs) == []
    fs.hydrate_from_host(HostMount("project", max_bytes=20), allowed_roots=[host])
    assert len(paths(fs)) == 4


def test_the_quota_binds_mounts(host: Path) -> None:
    for limits in (Limits(max_total_bytes=19), Limits(max_files=7)):
        fs = InMemoryFilesystem(limits=limits)
        with pytest.raises(LimitExceededError, match="quota"):
            fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert fs.list() == ()
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=20, max_files=8))
    fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])


def test_a_file_that_grows_after_it_was_measured_is_cut(fs: BaseFilesystem, host: Path) -> None:
    def grow(_: MountProgress) -> None:
        (host / "project" / "src" / "main.py").write_text("x" * 1_000_000)

    mount = HostMount("project", max_bytes=20)
    report = fs.hydrate_from_host(mount, allowed_roots=[host], progress=grow)
    assert fs.read("project/src/main.py").content == "xxxx"
    assert report.changed == ("project/src/main.py",)


def test_permissions_come_along_without_special_bits(fs: BaseFilesystem, host: Path) -> None:
    (host / "single.txt").chmod(0o6755)
    fs.hydrate_from_host(HostMount("single.txt"), allowed_roots=[host])
    assert fs.stat("single.txt").permissions == 0o755


def test_files_are_replaced_and_folders_merge(fs: BaseFilesystem, host: Path) -> None:
    fs.write("project/README.md", "mine")
    fs.write("project/mine", "mine")
    fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    assert fs.read("project/README.md").content == "readme"
    assert fs.read("project/mine").content == "mine"


def test_a_folder_does_not_replace_a_file_nor_a_file_a_folder(
    fs: BaseFilesystem, host: Path
) -> None:
    fs.write("project", "a file")
    with pytest.raises(NotADirectoryError):
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    fs.mkdir("single.txt")
    with pytest.raises(IsADirectoryError):
        fs.hydrate_from_host(HostMount("single.txt"), allowed_roots=[host])
    assert fs.read("project").content == "a file"


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


def test_mounting_is_told_like_writing(fs: BaseFilesystem, host: Path) -> None:
    events: list[FilesystemEvent] = []
    fs.subscribe(events.append)
    fs.hydrate_from_host(HostMount("project/src"), allowed_roots=[host])
    assert [str(event) for event in events] == [
        "project/ created",
        "project/src/ created",
        "project/src/deep/ created",
        "project/src/deep/er/ created",
        "project/src/deep/er/util.py created",
        "project/src/main.py created",
    ]


def test_nothing_of_the_host_stays_open(fs: BaseFilesystem, host: Path) -> None:
    fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
    for path in ("missing", "../secret"):
        with pytest.raises(OSError, match=r"."):
            fs.hydrate_from_host(HostMount(path), allowed_roots=[host, host])
    held = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [each for each in held if each.startswith(str(host))]


def test_an_unknown_root_closes_the_ones_before_it(host: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AllowedRoots([host, host / "missing"])


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


def test_a_mount_under_a_reserved_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(ValueError, match="reserved"):
        InMemoryFilesystem().hydrate_from_host(
            HostMount("f", mount_path="a/.wink-tmp-1/x"), allowed_roots=[tmp_path]
        )


def test_mounting_again_counts_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * 60)
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=100, max_files=1))
    for _ in range(2):
        fs.hydrate_from_host(HostMount("f"), allowed_roots=[tmp_path])
    assert fs.stat("f").size_bytes == 60
