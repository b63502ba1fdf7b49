"""Conformance of host mounts: atomic hydration, filters, reports, and confinement to the roots."""

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemEvent,
    FileWritten,
    HostMount,
    InvalidPathError,
    LimitExceededError,
    PathEscapeError,
)
from weakincentives.filesystem.mounts import MountProgress
from weakincentives.filesystem.testing.contract import ConformanceSuite

PROJECT = {
    "project/README.md": b"readme",
    "project/src/main.py": b"main",
    "project/src/deep/er/util.py": b"util",
    "project/.hidden": b"hidden",
    "single.txt": b"single",
}


class HostSuite(ConformanceSuite):
    """A suite that needs a host directory besides the filesystem."""

    @pytest.fixture
    def host(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """An allowed root with a project in it, and secrets next to it."""
        base = tmp_path_factory.mktemp("host")
        write_host_files(base / "allowed", PROJECT)
        write_host_files(base, {"allowed-twin/secret": b"secret", "secret": b"secret"})
        return base / "allowed"


class MountTests(HostSuite):
    """What `hydrate_from_host` copies, atomically, and what it reports."""

    # --- what comes in, and where it goes ---

    def test_a_folder_comes_in_with_its_content(self, fs: BaseFilesystem, host: Path) -> None:
        report = fs.hydrate_from_host(HostMount("project/"), allowed_roots=[host])
        wanted = {path: data for path, data in PROJECT.items() if path != "single.txt"}
        assert read_files(fs) == wanted
        assert (report.mount_path, report.file_count, report.total_bytes) == ("project", 4, 20)
        assert report.paths == tuple(sorted(wanted))
        assert (report.skipped, report.changed, report.filtered_count) == ((), (), 0)

    @pytest.mark.parametrize(
        ("mount", "expected"),
        [
            (HostMount("single.txt"), ["single.txt"]),
            (HostMount("single.txt", mount_path="a/b.txt"), ["a/b.txt"]),
            (HostMount("project/src", mount_path=""), ["deep/er/util.py", "main.py"]),
            (HostMount("./project//src/../src/deep"), ["project/src/deep/er/util.py"]),
            (HostMount("project", include_glob=("src/*.py",)), ["project/src/main.py"]),
            (HostMount("project", include_glob=("src/",), exclude_glob=("util*",)),
             ["project/src/main.py"]),
            (HostMount("project", exclude_glob=("src/**", ".*")), ["project/README.md"]),
        ],
    )  # fmt: skip
    def test_what_is_wanted_goes_where_it_should(
        self, fs: BaseFilesystem, host: Path, mount: HostMount, expected: list[str]
    ) -> None:
        fs.hydrate_from_host(mount, allowed_roots=[host])
        assert list(read_files(fs)) == expected

    def test_empty_directories_come_along_unless_globs_choose(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        (host / "project" / "empty" / "below").mkdir(parents=True)
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        fs.hydrate_from_host(
            HostMount("project", mount_path="chosen", exclude_glob=("*.md",)), allowed_roots=[host]
        )
        assert fs.list("project/empty/below") == ()
        assert not fs.exists("chosen/empty")

    def test_bytes_of_any_kind_come_in_and_binary_files_are_counted(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        data = {"nul": b"a\0b", "latin": b"caf\xe9", "utf8": "é".encode() * 5_000, "void": b""}
        write_host_files(host / "data", data)
        report = fs.hydrate_from_host(HostMount("data"), allowed_roots=[host])
        assert read_files(fs) == {f"data/{name}": data[name] for name in sorted(data)}
        assert report.binary_count == 2

    @pytest.mark.parametrize(
        "name",
        [b"new\nline", b"bell\a", b"bad\xff", "\u202egnp.exe".encode(), "e\u0301".encode(),
         b" blank ", b"-rf", b"CON", b"\\", b"n" * 200],
    )  # fmt: skip
    def test_a_name_that_may_not_be_created_comes_in_and_is_shown_escaped(
        self, fs: BaseFilesystem, host: Path, name: bytes
    ) -> None:
        path = os.fsdecode(name)
        write_host_files(host / "odd", {f"{path}/{path}": b"odd"})
        report = fs.hydrate_from_host(HostMount("odd"), allowed_roots=[host])
        assert read_files(fs) == {f"odd/{path}/{path}": b"odd"}
        assert report.preview().count("\n") == 1
        assert all(line.isprintable() for line in report.preview().split("\n"))

    def test_names_that_differ_in_case_come_in_both(self, fs: BaseFilesystem, host: Path) -> None:
        write_host_files(host / "twins", {"name": b"lower", "NAME": b"upper"})
        fs.hydrate_from_host(HostMount("twins"), allowed_roots=[host])
        assert read_files(fs) == {"twins/NAME": b"upper", "twins/name": b"lower"}

    def test_what_may_be_written_in_one_call_does_not_bind_a_mount(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        deep = "/".join("d" * 40) + "/file"
        write_host_files(host / "large", {deep: b"x" * 100_000})
        fs.hydrate_from_host(HostMount("large"), allowed_roots=[host])
        assert fs.stat(f"large/{deep}").size_bytes == 100_000

    # --- whole or not at all ---

    def test_files_are_replaced_and_directories_merge(self, fs: BaseFilesystem, host: Path) -> None:
        fs.write("project/README.md", "mine")
        fs.write("project/mine", "mine")
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert fs.read("project/README.md").content == "readme"
        assert fs.read("project/mine").content == "mine"

    @pytest.mark.parametrize("when", [0.0, 0.5, 1.0])
    def test_a_mount_that_is_stopped_changes_nothing(
        self, fs: BaseFilesystem, host: Path, when: float
    ) -> None:
        fs.write("project/README.md", "mine")
        fs.write("other", "mine")
        with pytest.raises(_AbortedError):
            fs.hydrate_from_host(HostMount("."), allowed_roots=[host], progress=_stop_at(when))
        assert read_files(fs) == {"other": b"mine", "project/README.md": b"mine"}
        assert [entry.name for entry in fs.list()] == ["other", "project"]
        assert [entry.name for entry in fs.list("project")] == ["README.md"]

    def test_several_mounts_merge_and_the_later_one_wins(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        write_host_files(host / "overlay", {"README.md": b"new", "src/more.py": b"more"})
        mounts = [HostMount("project", mount_path="w"), HostMount("overlay", mount_path="w")]
        first, second = fs.hydrate_all_from_host(mounts, allowed_roots=[host])
        assert read_files(fs) == {
            "w/.hidden": b"hidden",
            "w/README.md": b"new",
            "w/src/deep/er/util.py": b"util",
            "w/src/main.py": b"main",
            "w/src/more.py": b"more",
        }
        assert [str(entry) for entry in first.skipped] == ["README.md: replaced by a later mount"]
        assert (first.file_count, second.file_count) == (3, 2)

    def test_of_several_mounts_all_come_in_or_none(self, fs: BaseFilesystem, host: Path) -> None:
        mounts = [HostMount("project"), HostMount("single.txt", max_bytes=1)]
        with pytest.raises(LimitExceededError):
            fs.hydrate_all_from_host(mounts, allowed_roots=[host])
        mounts = [HostMount("single.txt"), HostMount("project", mount_path="single.txt")]
        with pytest.raises(NotADirectoryError):
            fs.hydrate_all_from_host(mounts, allowed_roots=[host])
        assert fs.list() == ()

    # --- what is said ---

    def test_a_mount_is_reported_like_writing_when_it_is_done(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        fs.write("project/README.md", "older")
        before = fs.content_hash("project/README.md")
        events: list[FilesystemEvent] = []
        seen: list[int] = []
        fs.subscribe(events.append)
        fs.subscribe(lambda _: seen.append(len(fs.glob("project/**"))))
        fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert [str(event) for event in events] == [
            "project/.hidden created",
            "project/README.md written",
            "project/src/ created",
            "project/src/deep/ created",
            "project/src/deep/er/ created",
            "project/src/deep/er/util.py created",
            "project/src/main.py created",
        ]
        after = fs.content_hash("project/README.md")
        assert events[1] == FileWritten(
            "project/README.md",
            6,
            "overwrite",
            created=False,
            before_hash=before,
            after_hash=after,
            before_size=5,
            after_size=6,
        )
        assert seen == [4] * 7

    def test_progress_is_reported_from_nothing_to_all_and_not_too_often(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        write_host_files(host / "many", {str(number): b"x" * number for number in range(500)})
        received: list[MountProgress] = []
        fs.hydrate_from_host(HostMount("many"), allowed_roots=[host], progress=received.append)
        size = sum(range(500))
        assert received[0] == MountProgress(0, 500, 0, size)
        assert received[-1] == MountProgress(500, 500, size, size)
        assert 20 <= len(received) <= 101
        assert all(
            one.done_files <= two.done_files and one.done_bytes < two.done_bytes
            for one, two in pairwise(received[1:])
        )

    def test_a_preview_shows_the_first_files_and_how_many_more(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert report.preview(limit=3).split("\n") == [
            "project (4 files, 20 bytes)",
            "- project/.hidden",
            "- project/README.md",
            "- project/src/main.py",
            "- ... and 1 more",
        ]

    def test_where_files_are_on_the_host_is_said_only_if_asked_for(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert all(str(host) not in text for text in (str(report), repr(report), report.preview()))
        assert str(host / "project") in report.preview(with_host_path=True)


def write_host_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Create files on the host, with their parent directories."""
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


class _AbortedError(Exception):
    """Raised by a progress listener to abort a mount."""


def _stop_at(share: float) -> Callable[[MountProgress], None]:
    def stop(progress: MountProgress) -> None:
        if progress.done_bytes >= share * progress.total_bytes:
            raise _AbortedError

    return stop


def read_files(fs: BaseFilesystem) -> dict[str, bytes]:
    """Return every file with its bytes."""
    return {match.path: fs.read_bytes(match.path).content for match in fs.glob("**")}


class MountRuleTests(HostSuite):
    """The rules of `hydrate_from_host`: every omission is reported, and no path leads out."""

    # --- what is left out, with a reason ---

    def test_links_are_left_out_and_reported(self, fs: BaseFilesystem, host: Path) -> None:
        (host / "project" / "out").symlink_to(host.parent)
        (host / "project" / "in").symlink_to("README.md")
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert [str(entry) for entry in report.skipped] == [
            "in: symbolic link",
            "out: symbolic link",
        ]
        assert report.file_count == len(read_files(fs)) == 4

    def test_followed_links_stay_within_the_allowed_roots(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        for name, target in {
            "in": "README.md", "folder": "src/deep", "gone": "missing", "loop": "loop",
            "out": str(host.parent / "secret"), "round": "..", "twin": "../../allowed-twin",
        }.items():  # fmt: skip
            (host / "project" / name).symlink_to(target)
        mount = HostMount("project", follow_symlinks=True)
        report = fs.hydrate_from_host(mount, allowed_roots=[host])
        assert fs.read("project/in").content == "readme"
        assert fs.read("project/folder/er/util.py").content == "util"
        assert {entry.path: entry.reason for entry in report.skipped} == {
            "gone": "symbolic link to nothing",
            "loop": "symbolic link to a directory above it",
            "out": "symbolic link to outside the allowed roots",
            "round": "symbolic link to a directory above it",
            "twin": "symbolic link to outside the allowed roots",
        }
        assert fs.grep("secret") == ()

    def test_special_files_and_reserved_names_are_left_out_and_reported(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        os.mkfifo(host / "project" / "pipe")
        write_host_files(host / "project", {".wink-tmp-tree/file": b""})
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert [str(entry) for entry in report.skipped] == [
            ".wink-tmp-tree: reserved name",
            "pipe: not a regular file",
        ]
        assert report.file_count == len(read_files(fs)) == 4

    def test_files_larger_than_asked_for_are_left_out_and_reported(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        mount = HostMount("project", max_file_bytes=5, max_bytes=8)
        report = fs.hydrate_from_host(mount, allowed_roots=[host])
        assert [str(entry) for entry in report.skipped] == [
            ".hidden: larger than max_file_bytes: 6 bytes",
            "README.md: larger than max_file_bytes: 6 bytes",
        ]
        assert report.total_bytes == 8

    def test_what_globs_leave_out_is_counted(self, fs: BaseFilesystem, host: Path) -> None:
        (host / "project" / "link.md").symlink_to("README.md")
        mount = HostMount("project", exclude_glob=("*.md", "src/deep/"))
        report = fs.hydrate_from_host(mount, allowed_roots=[host])
        assert (report.filtered_count, report.skipped) == (3, ())

    # --- rejected mounts change nothing ---

    @pytest.mark.parametrize(
        "path",
        ["../secret", "project/../../secret", "/etc/hosts", "../allowed-twin/secret", "..", "/"],
    )
    def test_what_is_below_no_allowed_root_is_refused(
        self, fs: BaseFilesystem, host: Path, path: str
    ) -> None:
        for follow in (False, True):
            with pytest.raises(PathEscapeError, match="escapes root"):
                fs.hydrate_from_host(HostMount(path, follow_symlinks=follow), allowed_roots=[host])
        assert fs.list() == ()

    def test_what_is_beside_an_allowed_root_is_refused(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        for path in (f"{host}/../secret", f"{host}-twin/secret", f"{host}-twin", str(host.parent)):
            with pytest.raises(PathEscapeError, match="escapes root"):
                fs.hydrate_from_host(HostMount(path), allowed_roots=[host])
        assert fs.list() == ()

    def test_no_allowed_root_allows_nothing(self, fs: BaseFilesystem, host: Path) -> None:
        for path in (str(host / "single.txt"), "single.txt", "."):
            with pytest.raises(PathEscapeError):
                fs.hydrate_from_host(HostMount(path), allowed_roots=[])
        assert fs.list() == ()

    def test_a_link_on_the_way_out_is_not_followed(self, fs: BaseFilesystem, host: Path) -> None:
        (host / "out").symlink_to(host.parent)
        for path in ("out", "out/secret"):
            for follow in (False, True):
                with pytest.raises(PermissionError):
                    fs.hydrate_from_host(
                        HostMount(path, follow_symlinks=follow), allowed_roots=[host]
                    )
        assert fs.list() == ()

    @pytest.mark.parametrize(
        ("mount", "error"),
        [
            (HostMount("missing"), FileNotFoundError),
            (HostMount("~"), FileNotFoundError),
            (HostMount("single.txt/below"), FileNotFoundError),
            (HostMount("a\0b"), InvalidPathError),
            (HostMount(""), InvalidPathError),
            (HostMount("project", mount_path="../x"), PathEscapeError),
            (HostMount("project", mount_path=".wink-tmp-x"), InvalidPathError),
            (HostMount("project", max_bytes=19), LimitExceededError),
            (HostMount("single.txt", max_file_bytes=5), LimitExceededError),
        ],
    )
    def test_a_mount_that_cannot_be_is_refused(
        self, fs: BaseFilesystem, host: Path, mount: HostMount, error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            fs.hydrate_from_host(mount, allowed_roots=[host])
        assert fs.list() == ()

    @pytest.mark.parametrize(
        ("there", "error"),
        [("project", NotADirectoryError), ("project/README.md/below", IsADirectoryError)],
    )
    def test_files_and_directories_do_not_replace_each_other(
        self, fs: BaseFilesystem, host: Path, there: str, error: type[OSError]
    ) -> None:
        fs.write(there, "mine")
        with pytest.raises(error):
            fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert read_files(fs) == {there: b"mine"}
