"""What a mount leaves out with a reason, and what it refuses."""

import os
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    HostMount,
    InvalidPathError,
    LimitExceededError,
    PathEscapeError,
)
from weakincentives.filesystem.testing.mounts import HostSuite, files_of, plant


class MountRuleTests(HostSuite):
    """The rules of `hydrate_from_host`: nothing is left out silently, nothing leads out."""

    # --- what is left out, with a reason ---

    def test_links_are_left_out_and_reported(self, fs: BaseFilesystem, host: Path) -> None:
        (host / "project" / "out").symlink_to(host.parent)
        (host / "project" / "in").symlink_to("README.md")
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert [str(entry) for entry in report.skipped] == [
            "in: symbolic link",
            "out: symbolic link",
        ]
        assert report.file_count == len(files_of(fs)) == 4

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
            "loop": "symbolic link back to where it is found",
            "out": "symbolic link to outside the allowed roots",
            "round": "symbolic link back to where it is found",
            "twin": "symbolic link to outside the allowed roots",
        }
        assert fs.grep("secret") == ()

    def test_special_files_and_reserved_names_are_left_out_and_reported(
        self, fs: BaseFilesystem, host: Path
    ) -> None:
        os.mkfifo(host / "project" / "pipe")
        plant(host / "project", {".wink-tmp-tree/file": b""})
        report = fs.hydrate_from_host(HostMount("project"), allowed_roots=[host])
        assert [str(entry) for entry in report.skipped] == [
            ".wink-tmp-tree: reserved name",
            "pipe: not a regular file",
        ]
        assert report.file_count == len(files_of(fs)) == 4

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

    # --- what is refused, and then changes nothing ---

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
        assert files_of(fs) == {there: b"mine"}
