"""Backends that mount wrongly, and the test that each of them must fail."""

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.filesystem.mutants.mutant import Mutant
from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import (
    BaseFilesystem,
    HostMount,
    MountReport,
    validate_path,
)
from weakincentives.filesystem.events import Listeners
from weakincentives.filesystem.testing.contract import ConformanceSuite
from weakincentives.filesystem.testing.mounts import MountRuleTests, MountTests
from weakincentives.posix import RESERVED_PREFIX


def asking(name: str, change: Callable[[HostMount], HostMount]) -> type[BaseFilesystem]:
    """Return a backend that changes the mount it is given."""

    def call(
        self: BaseFilesystem, mounts: Sequence[HostMount], **named: Any
    ) -> tuple[MountReport, ...]:
        changed = [change(mount) for mount in mounts]
        return BaseFilesystem.hydrate_all_from_host(self, changed, **named)

    return type(name, (Memory,), {"hydrate_all_from_host": call})


def reporting(name: str, change: Callable[[MountReport], MountReport]) -> type[BaseFilesystem]:
    """Return a backend that changes the report."""

    def call(
        self: BaseFilesystem, mounts: Sequence[HostMount], **named: Any
    ) -> tuple[MountReport, ...]:
        reports = BaseFilesystem.hydrate_all_from_host(self, mounts, **named)
        return tuple(change(report) for report in reports)

    return type(name, (Memory,), {"hydrate_all_from_host": call})


def storing(name: str, change: Callable[[str, bytes], tuple[str, bytes]]) -> type[BaseFilesystem]:
    """Return a backend that stores something else than the mounted files."""

    def call(self: Memory, path: str, data: bytes, **options: Any) -> None:
        if RESERVED_PREFIX in path:
            path, data = change(path, data)
        Memory._store(self, path, data, **options)

    return type(name, (Memory,), {"_store": call})


HidesDotFiles = asking("HidesDotFiles", lambda mount: _without(mount, ".*"))
IgnoresGlobs = asking(
    "IgnoresGlobs", lambda mount: replace(mount, include_glob=(), exclude_glob=())
)
DropsEmptyDirectories = asking("DropsEmptyDirectories", lambda mount: _without(mount, "never"))
AlwaysFollows = asking("AlwaysFollows", lambda mount: replace(mount, follow_symlinks=True))
NeverFollows = asking("NeverFollows", lambda mount: replace(mount, follow_symlinks=False))
IgnoresTheSizeOfFiles = asking(
    "IgnoresTheSizeOfFiles", lambda mount: replace(mount, max_file_bytes=None)
)
IgnoresTheSizeOfAll = asking("IgnoresTheSizeOfAll", lambda mount: replace(mount, max_bytes=None))

StaysBelow = asking(
    "StaysBelow",
    lambda mount: replace(mount, host_path=posixpath.normpath(f"/{mount.host_path}")[1:] or "."),
)

ForgetsPaths = reporting("ForgetsPaths", lambda report: replace(report, paths=()))
NamesTheHost = reporting(
    "NamesTheHost", lambda report: replace(report, mount_path=report.host_path)
)
ForgetsTheHost = reporting("ForgetsTheHost", lambda report: replace(report, host_path=""))
SaysNothing = reporting("SaysNothing", lambda report: replace(report, skipped=()))
CountsNothing = reporting(
    "CountsNothing", lambda report: replace(report, filtered_count=0, binary_count=0)
)

KeepsText = storing("KeepsText", lambda path, data: (path, data.decode(errors="replace").encode()))
ChecksNames = storing(
    "ChecksNames", lambda path, data: (_checked(path.partition("/")[2], path), data)
)
FoldsCase = storing("FoldsCase", lambda path, data: (path.lower(), data))
CutsLargeFiles = storing("CutsLargeFiles", lambda path, data: (path, data[:48_000]))


def _without(mount: HostMount, pattern: str) -> HostMount:
    return replace(mount, exclude_glob=(*mount.exclude_glob, pattern))


def _checked(path: str, given: str) -> str:
    validate_path(path)
    return given


class ReplacesFolders(Memory):
    """Empties the place where a mount goes."""

    def hydrate_from_host(self, mount: HostMount, **named: Any) -> MountReport:
        if self.exists(mount.host_path):
            self.delete(mount.host_path, recursive=True)
        return super().hydrate_from_host(mount, **named)


class LeavesHiddenNames(Memory):
    """Does not clean up after itself."""

    def _remove(self, path: str) -> None:
        if RESERVED_PREFIX not in path:
            super()._remove(path)


class StopsTooLate(Memory):
    """Reports progress only after everything is done."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], *, progress: Any = None, **named: Any
    ) -> tuple[MountReport, ...]:
        told: list[object] = []
        reports = super().hydrate_all_from_host(mounts, progress=told.append, **named)
        for each in told if progress else ():
            progress(each)
        return reports


class ReportsTheEndOnly(Memory):
    """Reports only the last progress."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], *, progress: Any = None, **named: Any
    ) -> tuple[MountReport, ...]:
        def last(told: Any) -> None:
            if progress and told.done_files == told.total_files:
                progress(told)

        return super().hydrate_all_from_host(mounts, progress=last, **named)


class EarlierWins(Memory):
    """Mounts from the last to the first."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], **named: Any
    ) -> tuple[MountReport, ...]:
        return super().hydrate_all_from_host(mounts[::-1], **named)[::-1]


class OneByOne(Memory):
    """Keeps what came in before one failed."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], **named: Any
    ) -> tuple[MountReport, ...]:
        return tuple(
            report
            for mount in mounts
            for report in super(OneByOne, self).hydrate_all_from_host((mount,), **named)
        )


class ReportsNothing(Memory):
    """Emits no events."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], **named: Any
    ) -> tuple[MountReport, ...]:
        listeners, self._listeners = self._listeners, Listeners()
        try:
            return super().hydrate_all_from_host(mounts, **named)
        finally:
            self._listeners = listeners


class AllowsTheParent(Memory):
    """Allows siblings of an allowed root."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], *, allowed_roots: Any = None, **named: Any
    ) -> tuple[MountReport, ...]:
        wider = [*allowed_roots, *(Path(root).parent for root in allowed_roots)]
        return super().hydrate_all_from_host(mounts, allowed_roots=wider, **named)


class TakesNothingForTheDefault(Memory):
    """Allows the current directory when nothing is allowed."""

    def hydrate_all_from_host(
        self, mounts: Sequence[HostMount], *, allowed_roots: Any = None, **named: Any
    ) -> tuple[MountReport, ...]:
        return super().hydrate_all_from_host(mounts, allowed_roots=allowed_roots or None, **named)


def _all(
    suite: type[ConformanceSuite], killers: dict[str, Sequence[type[BaseFilesystem]]]
) -> tuple[Mutant, ...]:
    return tuple(
        Mutant(backend, suite, killer)
        for killer, backends in killers.items()
        for backend in backends
    )


MOUNT_MUTANTS = (
    *_all(
        MountTests,
        {
            "test_a_folder_comes_in_with_its_content": [HidesDotFiles],
            "test_what_is_wanted_goes_where_it_should": [IgnoresGlobs],
            "test_empty_directories_come_along_unless_globs_choose": [DropsEmptyDirectories],
            "test_bytes_of_any_kind_come_in_and_binary_files_are_counted": [
                KeepsText,
                CountsNothing,
            ],
            "test_a_name_that_may_not_be_created_comes_in_and_is_shown_escaped": [ChecksNames],
            "test_names_that_differ_in_case_come_in_both": [FoldsCase],
            "test_what_may_be_written_in_one_call_does_not_bind_a_mount": [CutsLargeFiles],
            "test_files_are_replaced_and_directories_merge": [ReplacesFolders],
            "test_a_mount_that_is_stopped_changes_nothing": [LeavesHiddenNames, StopsTooLate],
            "test_several_mounts_merge_and_the_later_one_wins": [EarlierWins],
            "test_of_several_mounts_all_come_in_or_none": [OneByOne],
            "test_a_mount_is_reported_like_writing_when_it_is_done": [ReportsNothing],
            "test_progress_is_reported_from_nothing_to_all_and_not_too_often": [ReportsTheEndOnly],
            "test_a_preview_shows_the_first_files_and_how_many_more": [ForgetsPaths],
            "test_where_files_are_on_the_host_is_said_only_if_asked_for": [
                NamesTheHost,
                ForgetsTheHost,
            ],
        },
    ),
    *_all(
        MountRuleTests,
        {
            "test_links_are_left_out_and_reported": [AlwaysFollows],
            "test_followed_links_stay_within_the_allowed_roots": [NeverFollows, AllowsTheParent],
            "test_special_files_and_reserved_names_are_left_out_and_reported": [SaysNothing],
            "test_files_larger_than_asked_for_are_left_out_and_reported": [IgnoresTheSizeOfFiles],
            "test_what_globs_leave_out_is_counted": [CountsNothing],
            "test_what_is_below_no_allowed_root_is_refused": [StaysBelow],
            "test_what_is_beside_an_allowed_root_is_refused": [AllowsTheParent],
            "test_no_allowed_root_allows_nothing": [TakesNothingForTheDefault],
            "test_a_link_on_the_way_out_is_not_followed": [AllowsTheParent],
            "test_a_mount_that_cannot_be_is_refused": [IgnoresTheSizeOfAll],
            "test_files_and_directories_do_not_replace_each_other": [ReplacesFolders],
        },
    ),
)
