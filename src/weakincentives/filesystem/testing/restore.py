"""Conformance of restores: partial restores, views, previews, links, permissions and quotas."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
    InvalidPathError,
    PathEscapeError,
    ReadOnlyError,
    SnapshotableFilesystem,
    StateReplaced,
    diff,
)
from weakincentives.filesystem.testing import changes
from weakincentives.filesystem.testing.contract import (
    ConformanceSuite,
    LimitedSuite,
    PlantingSuite,
    ReadOnlySuite,
    read_state,
)
from weakincentives.filesystem.testing.events import record_events
from weakincentives.filesystem.testing.snapshots import keep_snapshot, unknown_snapshot

Backend: TypeAlias = InMemoryFilesystem | HostFilesystem
"""A backend on the base classes with all of their methods; others will do as well."""


class SampleSuite(ConformanceSuite):
    """A suite that needs a snapshot of a state that has changed since."""

    @pytest.fixture
    def kept(self, fs: Backend) -> FilesystemSnapshot:
        """A snapshot of the sample tree; the workspace has changed since."""
        changes.write_sample(fs)
        kept = fs.snapshot()
        changes.change_sample(fs)
        return kept


_IN_THE_WAY = r"vendor/\.git/HEAD.*restore 'vendor'"
_REFUSED: dict[str, tuple[str, type[Exception], str | None]] = {
    **{
        f"nowhere {path}": (path, SnapshotRestoreError, f"Failed to restore '{path}'")
        for path in ("gone", "src/gone", ".gitattributes/below")
    },
    "in the way": ("vendor/.git/HEAD", SnapshotRestoreError, _IN_THE_WAY),
    "above the root": ("..", PathEscapeError, None),
    "out of the root": ("src/../../x", PathEscapeError, None),
    "nul": ("a\0b", InvalidPathError, None),
}
"""Paths that cannot be restored, the error, and what it says if that is known."""


class PartialRestoreTests(SampleSuite):
    """`restore(snapshot, paths=...)`."""

    def test_a_file_comes_back_and_all_else_stays(
        self, fs: Backend, kept: FilesystemSnapshot
    ) -> None:
        expected = read_state(fs)
        expected["README.md"] = ("file", expected["README.md"][1], b"# Read me")
        fs.restore(kept, paths=["README.md"])
        assert read_state(fs) == expected

    def test_a_directory_comes_back_with_all_below_it(self, fs: Backend) -> None:
        fs.write("dir/changed", "old")
        fs.write("dir/sub/deleted", "old")
        fs.mkdir("dir/empty")
        fs.write("beside", "old")
        kept = fs.snapshot()
        fs.write("dir/changed", "new")
        fs.delete("dir/sub", recursive=True)
        fs.delete("dir/empty", recursive=True)
        fs.write("dir/added/file", "new")
        fs.write("beside", "new")
        fs.restore(kept, paths=["dir"])
        assert [match.path for match in fs.glob("**")] == [
            "beside",
            "dir/changed",
            "dir/sub/deleted",
        ]
        assert [entry.name for entry in fs.list("dir")] == ["changed", "empty", "sub"]
        assert (fs.read("dir/changed").content, fs.read("beside").content) == ("old", "new")

    def test_what_was_not_there_is_removed(self, fs: Backend, kept: FilesystemSnapshot) -> None:
        fs.restore(kept, paths=["new/deep/file"])
        assert [entry.name for entry in fs.list("new/deep")] == []
        fs.restore(kept, paths=["new"])
        assert not fs.exists("new")
        assert fs.read("README.md").content == "# Red me?"

    def test_missing_parents_are_made_with_nothing_else_in_them(self, fs: Backend) -> None:
        fs.write("a/b/wanted", "text")
        fs.write("a/b/beside", "")
        fs.write("a/above", "")
        kept = fs.snapshot()
        fs.delete("a", recursive=True)
        fs.restore(kept, paths=["a/b/wanted"])
        assert [match.path for match in fs.glob("**")] == ["a/b/wanted"]
        assert fs.read("a/b/wanted").content == "text"

    def test_an_empty_directory_comes_back(self, fs: Backend, kept: FilesystemSnapshot) -> None:
        fs.restore(kept, paths=["empty/below"])
        assert fs.stat("empty/below").is_directory
        assert not fs.exists(".gitignore")

    @pytest.mark.parametrize("path", ["src/data.bin", "vendor"])
    def test_a_partial_restore_changes_kinds_back(
        self, fs: Backend, kept: FilesystemSnapshot, path: str
    ) -> None:
        before = fs.stat(path).kind
        fs.restore(kept, paths=[path])
        assert fs.stat(path).kind != before
        assert fs.exists("new/deep/file")

    def test_several_paths_come_back_together(self, fs: Backend, kept: FilesystemSnapshot) -> None:
        fs.restore(kept, paths=["src/main.py", "empty", "new", "README.md"])
        assert fs.read("src/main.py").content == "print()\r\n"
        assert fs.read("README.md").content == "# Read me"
        assert [entry.name for entry in fs.list()] == [
            ".gitattributes", "README.md", "empty", "src", "vendor",
        ]  # fmt: skip
        assert fs.stat("src/data.bin").is_directory

    @pytest.mark.parametrize(
        "paths", [["vendor", "vendor/.git"], ["vendor/.git/HEAD", "vendor"], ["vendor/", "/vendor"]]
    )
    def test_paths_may_overlap_and_be_spelled_in_any_way(
        self, fs: Backend, kept: FilesystemSnapshot, paths: Sequence[str]
    ) -> None:
        fs.restore(kept, paths=paths)
        assert fs.read("vendor/.git/HEAD").content == "ref: refs/heads/main"
        assert fs.read("README.md").content == "# Red me?"

    @pytest.mark.parametrize("paths", [["."], ["/"], [""], ["README.md", "."]])
    def test_the_root_is_everything(self, fs: Backend, paths: Sequence[str]) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        kept = fs.snapshot()
        changes.change_sample(fs)
        fs.restore(kept, paths=paths)
        assert read_state(fs) == before

    def test_no_paths_are_nothing(self, fs: Backend, kept: FilesystemSnapshot) -> None:
        before = read_state(fs)
        fs.restore(kept, paths=[])
        assert read_state(fs) == before

    @pytest.mark.parametrize(("path", "error", "message"), _REFUSED.values(), ids=_REFUSED)
    def test_a_path_that_cannot_be_restored_is_refused_and_nothing_changes(
        self,
        fs: Backend,
        kept: FilesystemSnapshot,
        path: str,
        error: type[Exception],
        message: str | None,
    ) -> None:
        before = read_state(fs)
        with pytest.raises(error, match=message):
            fs.restore(kept, paths=["README.md", path])
        assert read_state(fs) == before

    def test_an_unknown_snapshot_restores_no_path(
        self, fs: Backend, kept: FilesystemSnapshot
    ) -> None:
        before = read_state(fs)
        with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
            fs.restore(unknown_snapshot(kept), paths=["README.md"])
        assert read_state(fs) == before

    def test_a_snapshot_does_not_see_what_follows_a_partial_restore(self, fs: Backend) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        kept = fs.snapshot()
        changes.change_sample(fs)
        fs.restore(kept, paths=["src", "empty"])
        fs.write("src/main.py", "changed")
        fs.write("src/more/file", "more")
        fs.write("empty/below/file", "more")
        fs.restore(kept)
        assert read_state(fs) == before

    def test_a_partial_restore_can_be_undone(self, fs: Backend, kept: FilesystemSnapshot) -> None:
        before = read_state(fs)
        spoiled = fs.snapshot()
        fs.restore(kept, paths=["src", "new", "vendor"])
        partly = fs.snapshot()
        half = read_state(fs)
        fs.restore(spoiled)
        assert read_state(fs) == before
        fs.restore(partly)
        assert read_state(fs) == half


class SnapshotViewTests(SampleSuite):
    """`view` and `preview`: the state of a snapshot, and what a restore would change."""

    def test_a_view_shows_what_was_kept(self, fs: Backend) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        kept = fs.snapshot()
        changes.change_sample(fs)
        assert read_state(fs.view(kept)) == before

    def test_a_view_does_not_move(self, fs: Backend) -> None:
        first = fs.snapshot()
        changes.write_sample(fs)
        before = read_state(fs)
        view = fs.view(fs.snapshot())
        changes.change_sample(fs)
        fs.restore(first)
        fs.write("README.md", "third")
        assert read_state(view) == before

    def test_a_view_can_be_searched(self, fs: Backend) -> None:
        fs.write("dir/file", "one\nword\n")
        kept = fs.snapshot()
        fs.delete("dir", recursive=True)
        view = fs.view(kept)
        assert [(match.path, match.line_number) for match in view.grep("word")] == [("dir/file", 2)]
        assert [match.path for match in view.glob("*/*")] == ["dir/file"]
        assert view.read("dir/file", offset=1).content == "word\n"

    def test_an_unknown_snapshot_cannot_be_viewed(self, fs: Backend) -> None:
        kept = fs.snapshot()
        with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
            fs.view(unknown_snapshot(kept))

    @pytest.mark.parametrize(
        "paths", [None, ["README.md"], ["new", "vendor"], ["src", "empty"], ["."], []]
    )
    def test_a_preview_lists_exactly_what_the_restore_does(
        self, fs: Backend, kept: FilesystemSnapshot, paths: Sequence[str] | None
    ) -> None:
        fs.write_bytes("src/renamed.py", fs.read_bytes("src/main.py").content)
        fs.delete("src/main.py")
        spoiled = fs.snapshot()
        received = fs.preview(kept, paths=paths).entries
        fs.restore(kept, paths=paths)
        done = diff(fs.view(spoiled), fs.view(fs.snapshot())).entries
        assert [str(change) for change in received] == [str(change) for change in done]

    def test_a_preview_names_what_would_change(self, fs: Backend) -> None:
        fs.write("changed", "old")
        fs.write("deleted", "old")
        kept = fs.snapshot()
        fs.write("changed", "new")
        fs.delete("deleted")
        fs.write("added", "something else")
        found = fs.preview(kept)
        assert [str(change) for change in found.entries] == [
            "removed added",
            "modified changed",
            "added deleted",
        ]
        assert "-new" in found.patch()

    def test_a_preview_changes_nothing(self, fs: Backend, kept: FilesystemSnapshot) -> None:
        before = read_state(fs)
        fs.preview(kept)
        fs.preview(kept, paths=["vendor", "new", "empty"])
        assert read_state(fs) == before

    def test_a_preview_of_the_present_is_empty(self, fs: Backend) -> None:
        changes.write_sample(fs)
        kept = fs.snapshot()
        assert not fs.preview(kept)
        fs.write("README.md", "changed")
        assert not fs.preview(kept, paths=["src"])

    @pytest.mark.parametrize("paths", [["gone"], ["vendor/.git"], ["../x"]])
    def test_a_preview_refuses_what_the_restore_would_refuse(
        self, fs: Backend, kept: FilesystemSnapshot, paths: Sequence[str]
    ) -> None:
        errors: list[tuple[type[BaseException], str]] = []
        calls: tuple[Callable[..., object], ...] = (fs.preview, fs.restore)
        for call in calls:
            with pytest.raises((SnapshotRestoreError, PathEscapeError)) as caught:
                call(kept, paths=paths)
            errors.append((caught.type, str(caught.value)))
        assert errors[0] == errors[1]

    def test_an_unknown_snapshot_cannot_be_previewed(self, fs: Backend) -> None:
        kept = fs.snapshot()
        with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
            fs.preview(unknown_snapshot(kept))


class SnapshotDetailTests(PlantingSuite, LimitedSuite, ReadOnlySuite):
    """Restores with links, permissions, strange names, events, quotas and read-only backends."""

    @pytest.mark.parametrize(
        "planted", changes.PLANTED_CHANGES.values(), ids=changes.PLANTED_CHANGES
    )
    def test_anything_becomes_what_it_was(self, fs: Backend, planted: changes.Planted) -> None:
        changes.check_undo(fs, planted(self), keep_snapshot)

    def test_nothing_is_written_through_a_link_that_is_in_the_way(self, fs: Backend) -> None:
        fs.write("dir/file", "then")
        fs.mkdir("other")
        kept = fs.snapshot()
        fs.delete("dir", recursive=True)
        self.make_link(fs, "dir", "other")
        fs.restore(kept)
        assert fs.read("dir/file").content == "then"
        assert fs.list("other") == ()

    def test_a_restore_is_reported_once_when_it_is_done(self, fs: Backend) -> None:
        [(event, text, count)] = changes.record_undo(fs, keep_snapshot)
        assert isinstance(event, StateReplaced)
        assert (event.reason, text, count) == ("restore", "then", 1)

    def test_a_refused_restore_is_not_reported(self, fs: Backend) -> None:
        received = record_events(fs)
        with pytest.raises(SnapshotRestoreError):
            fs.restore(unknown_snapshot(fs.snapshot()))
        assert received == []

    @pytest.mark.parametrize("check", changes.QUOTA_CHECKS.values(), ids=changes.QUOTA_CHECKS)
    def test_a_restore_changes_what_the_quota_counts(
        self, tmp_path: Path, check: changes.QuotaCheck
    ) -> None:
        check(self, tmp_path, _keep)

    def test_a_read_only_filesystem_is_not_restored(self, fs: Backend) -> None:
        kept = fs.snapshot()
        fs.write("file", "text")
        frozen = self.make_read_only(fs)
        assert isinstance(frozen, SnapshotableFilesystem)
        with pytest.raises(ReadOnlyError):
            frozen.restore(kept)
        assert frozen.read("file").content == "text"


def _keep(fs: BaseFilesystem) -> changes.Undo:
    assert isinstance(fs, SnapshotableFilesystem)
    return keep_snapshot(fs)
