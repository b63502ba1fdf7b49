"""Which mutant must fail which test.

Collected only by tests/filesystem/test_mutants.py, which runs this file in a separate
process: every mutant gets the suite that should catch it, the sound backend gets all.
"""

import os
from pathlib import Path

import pytest

from tests.filesystem.mutants import broad, capable, read, search, suites, write
from tests.filesystem.mutants.mounts import MOUNT_MUTANTS
from tests.filesystem.mutants.mutant import Mutant
from tests.filesystem.mutants.rollback import UNDO_MUTANTS
from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
)
from weakincentives.filesystem.testing import entries, savepoints

MUTANTS = (
    Mutant(read.SplitsOnFormFeed, suites.TextTests, "test_lines_end_at_a_newline_only"),
    Mutant(read.TextMode, suites.TextTests, "test_text_survives"),
    Mutant(read.TextMode, suites.BytesTests, "test_text_is_stored_as_utf_8"),
    Mutant(read.DropsTheMark, suites.TextTests, "test_pages_joined_are_the_file"),
    Mutant(read.IgnoresLimit, suites.ReadingTests, "test_read_stops_at_the_default_limit"),
    Mutant(
        read.AcceptsNegatives,
        suites.ReadingTests,
        "test_a_negative_number_is_refused[limit--2]",
    ),
    Mutant(
        read.DecodesEverything, suites.ReadingTests, "test_read_decodes_only_the_page_asked_for"
    ),
    Mutant(read.ForgetsTruncation, suites.BytesTests, "test_a_range_is_the_bytes_asked_for"),
    Mutant(read.Unsorted, suites.ListTests, "test_list_is_sorted_by_name"),
    Mutant(read.SortsByKind, suites.ListTests, "test_list_sorts_files_and_directories_together"),
    Mutant(read.HasNoSizes, suites.StatTests, "test_stat_follows_the_size"),
    Mutant(read.StaleHash, suites.StatTests, "test_the_content_hash_is_the_sha_256_of_the_bytes"),
    Mutant(
        read.OldTimes,
        suites.StatTests,
        "test_the_times_of_stat_are_now_where_they_are_known",
    ),
    Mutant(
        read.FrozenTimes,
        suites.StatTests,
        "test_a_write_moves_the_time_of_the_change_on_where_it_is_known",
    ),
    Mutant(
        read.TimesGoBack,
        suites.StatTests,
        "test_a_write_moves_the_time_of_the_change_on_where_it_is_known",
    ),
    Mutant(read.PrefixExists, suites.StatTests, "test_what_is_not_there_does_not_exist"),
    Mutant(
        read.ExistsRaises,
        suites.StatTests,
        "test_what_is_no_path_of_the_workspace_does_not_exist",
    ),
    Mutant(write.ForgetsCreate, suites.WritingTests, "test_create_refuses_what_exists"),
    Mutant(
        write.CountsAppendTotal, suites.WritingTests, "test_append_counts_the_appended_bytes_only"
    ),
    Mutant(write.AlwaysMakesParents, suites.WritingTests, "test_parents_are_not_made_when_refused"),
    Mutant(
        write.AlwaysMakesParents,
        suites.DirectoryTests,
        "test_mkdir_without_parents_needs_the_parent",
    ),
    Mutant(write.LeavesParents, suites.NameTests, "test_a_name_that_misleads_is_refused"),
    Mutant(write.CountsBytes, suites.WriteLimitTests, "test_the_longest_text_is_written"),
    Mutant(
        write.LimitsTheFile,
        suites.WriteLimitTests,
        "test_appends_may_grow_a_file_beyond_one_write",
    ),
    Mutant(write.OffByOne, suites.WriteLimitTests, "test_the_longest_bytes_are_written"),
    Mutant(
        write.KeepsTheSpelling,
        suites.WritingTests,
        "test_a_write_reports_the_normal_form_of_the_path",
    ),
    Mutant(write.NoLimit, suites.WriteLimitTests, "test_longer_content_is_refused"),
    Mutant(
        write.DeletesSiblings,
        suites.DeleteTests,
        "test_delete_takes_all_below_and_nothing_beside",
    ),
    Mutant(
        write.DeletesEmpty,
        suites.DeleteTests,
        "test_an_empty_directory_is_deleted_only_if_recursive",
    ),
    Mutant(
        write.PrunesParents,
        suites.DeleteTests,
        "test_delete_removes_a_file_and_keeps_its_directory",
    ),
    Mutant(write.MissingIsFine, suites.PathTests, "test_what_an_entry_does_not_allow_is_refused"),
    Mutant(write.DeletesRoot, suites.DeleteTests, "test_the_root_cannot_be_deleted"),
    Mutant(write.StrictMkdir, suites.DirectoryTests, "test_mkdir_of_the_root_does_nothing"),
    Mutant(write.MkdirReplaces, suites.DirectoryTests, "test_mkdir_refuses_a_file_that_exists"),
    Mutant(write.FollowsDotDot, suites.PathTests, "test_a_path_that_leaves_the_root_is_refused"),
    Mutant(write.CutsAtNul, suites.PathTests, "test_a_path_with_nul_is_refused"),
    Mutant(
        write.ChecksNamesOnRead,
        suites.PathTests,
        "test_a_name_that_cannot_be_created_is_just_not_there",
    ),
    Mutant(write.AnyName, suites.NameTests, "test_a_longer_name_is_refused"),
    Mutant(write.JudgesByCategory, suites.NameTests, "test_a_name_that_misleads_is_refused"),
    Mutant(write.FoldsCase, suites.NameTests, "test_names_that_differ_in_case_are_different"),
    Mutant(
        search.CrossesSegments,
        suites.GlobTests,
        "test_a_pattern_matches_files_by_their_whole_path",
    ),
    Mutant(search.GlobHidesDots, suites.GlobTests, "test_matches_are_sorted_by_the_whole_path"),
    Mutant(search.GlobInTreeOrder, suites.GlobTests, "test_matches_are_sorted_by_the_whole_path"),
    Mutant(search.GlobRelative, suites.GlobTests, "test_a_base_narrows_the_match_and_not_the_path"),
    Mutant(
        search.GrepFindsAll, suites.GrepTests, "test_only_the_first_match_of_a_line_is_reported"
    ),
    Mutant(search.GrepCountsFromZero, suites.GrepTests, "test_a_match_has_path_line_and_columns"),
    Mutant(
        search.GrepIgnoresCase,
        suites.GrepTests,
        "test_case_counts_unless_the_pattern_says_otherwise",
    ),
    Mutant(
        search.GrepIgnoresFilter,
        suites.GrepScopeTests,
        "test_a_filter_without_a_slash_matches_names_at_any_depth",
    ),
    Mutant(
        search.GrepLosesWhatItFound,
        suites.GrepScopeTests,
        "test_a_search_that_runs_out_of_time_returns_what_it_found",
    ),
    Mutant(
        search.GrepRunsOutOfTimeSilently,
        suites.GrepScopeTests,
        "test_a_search_that_runs_out_of_time_returns_what_it_found",
    ),
    Mutant(
        search.GrepForgetsWhatItMissed,
        suites.GrepScopeTests,
        "test_what_was_not_searched_is_counted_and_named",
    ),
    Mutant(
        search.GlobLosesWhatItFound,
        suites.GlobTests,
        "test_a_glob_that_runs_out_of_time_returns_what_it_found",
    ),
    Mutant(
        search.GrepSkipsLateNuls,
        suites.GrepTests,
        "test_a_nul_counts_in_the_first_8_kib_only",
    ),
    Mutant(
        search.GrepNeedsUtf8,
        suites.GrepTests,
        "test_bytes_that_are_not_utf_8_count_in_the_first_8_kib_only",
    ),
    Mutant(
        read.ClaimsToCountAll,
        suites.QuotaTests,
        "test_a_page_says_whether_all_lines_were_counted",
    ),
    Mutant(
        read.LoadsWhatDoesNotFit,
        suites.QuotaTests,
        "test_what_does_not_fit_into_memory_is_refused_before_it_is_read",
    ),
    Mutant(search.GrepSaysItIsAll, suites.GrepScopeTests, "test_max_matches_bounds_the_result"),
    Mutant(
        search.ReadsNoIgnoreFiles,
        suites.IgnoreFileTests,
        "test_what_ignore_files_exclude_is_left_out",
    ),
    Mutant(capable.DropsEvents, suites.EventTests, "test_every_directory_made_is_reported"),
    Mutant(capable.Unobservable, suites.EventTests, "test_the_filesystem_is_observable"),
    Mutant(
        capable.NeverUnsubscribes,
        suites.EventTests,
        "test_an_unsubscribed_listener_gets_no_more_events",
    ),
    Mutant(
        capable.ReportsEveryDeletion, suites.EventTests, "test_a_deleted_directory_is_reported_once"
    ),
    *(
        Mutant(
            capable.ReportsNoHashes,
            suites.EventTests,
            f"test_a_write_is_reported_with_before_and_after[{case}]",
        )
        for case in ("new", "replaced", "appended")
    ),
    Mutant(
        capable.ReportsDeletionsPlainly,
        suites.EventTests,
        "test_a_deleted_file_is_reported_with_what_it_was",
    ),
    Mutant(
        capable.ReportsTheLastFirst,
        suites.EventTests,
        "test_listeners_are_called_in_subscription_order",
    ),
    Mutant(
        capable.ReportsEachListenerOnce,
        suites.EventTests,
        "test_one_listener_subscribed_twice_is_two",
    ),
    Mutant(search.GrepCountsFromZero, suites.GrepTests, "test_edges_are_the_edges_of_lines"),
    Mutant(
        capable.MovesByName, suites.TransferTests, "test_a_directory_takes_everything_below_along"
    ),
    Mutant(capable.SharesCopies, suites.TransferTests, "test_a_copy_changes_apart_from_its_source"),
    Mutant(capable.ReportsMoveAsCopy, suites.TransferTests, "test_a_move_is_reported_as_one_event"),
    Mutant(capable.FollowsLinks, suites.LinkTests, "test_a_link_is_not_followed"),
    Mutant(
        capable.DeletesTargets, suites.LinkTests, "test_delete_removes_the_link_and_not_its_target"
    ),
    Mutant(capable.HidesLinks, suites.LinkTests, "test_list_shows_the_link"),
    Mutant(capable.OpensPipes, suites.SpecialFileTests, "test_a_special_file_is_never_opened"),
    Mutant(capable.KeepsPipes, suites.SpecialFileTests, "test_delete_removes_a_special_file"),
    Mutant(capable.KeepsPipes, suites.SpecialFileTests, "test_searches_pass_over_special_files"),
    Mutant(
        capable.CallsPipesFiles, suites.SpecialFileTests, "test_stat_and_list_show_a_special_file"
    ),
    Mutant(capable.NoQuota, suites.QuotaTests, "test_growth_stops_at_the_quota_of_bytes"),
    Mutant(capable.LeakyQuota, suites.QuotaTests, "test_what_is_deleted_makes_room"),
    Mutant(capable.SilentReadOnly, suites.ReadOnlyTests, "test_it_refuses_to_be_written"),
    Mutant(capable.WritableReadOnly, suites.ReadOnlyTests, "test_it_refuses_to_be_written"),
    Mutant(capable.TornRead, suites.ThreadTests, "test_a_reader_sees_the_old_text_or_the_new"),
    Mutant(capable.LosesAppends, suites.ThreadTests, "test_no_append_is_lost"),
    Mutant(
        capable.MovesInSteps, suites.ThreadTests, "test_a_directory_is_there_whole_or_not_at_all"
    ),
    *UNDO_MUTANTS,
    *MOUNT_MUTANTS,
)
KILLERS = {each.killer.partition("[")[0] for each in MUTANTS}
"""The tests that some mutant fails, and that it takes to tell a wrong backend from a right one."""
SUITES = (*suites.PROTOCOL_SUITES, *suites.CAPABILITY_SUITES)
SOUND = tuple(
    Mutant(HostFilesystem if suite is suites.SpecialFileTests else Memory, suite, "")
    for suite in SUITES
)
BROAD = (
    *(Mutant(broad.break_errors(sound.backend), sound.suite, "") for sound in SOUND),
    *(
        Mutant(backend, suite, "")
        for backend in (broad.ForgetsEverything, broad.Shouts)
        for suite in SUITES
        if suite is not suites.SpecialFileTests
    ),
    *(
        Mutant(broad.Lies, suite, "")
        for suite in (suites.StatTests, suites.QuotaTests, suites.ReadOnlyTests)
    ),
)
"""Wrong in many ways: together they show that every test can fail."""


def class_name(mutant: Mutant) -> str:
    """Return the name of the test class for a mutant."""
    return f"Test{mutant.backend.__name__}{mutant.suite.__name__}"


class Hooks:
    """The hooks of the suites, for any of the backends above."""

    backend: type[BaseFilesystem]

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wait in vain no longer than it takes to see that: most of these tests must fail."""
        monkeypatch.setattr(entries, "_CLOCK_RESOLUTION", 0.1)
        if self.backend is not Memory:
            monkeypatch.setattr(savepoints, "_THREAD_TIMEOUT", 3)

    def make_filesystem(self, tmp_path: Path) -> BaseFilesystem:
        return self.make_limited(tmp_path, None)

    def make_limited(self, tmp_path: Path, limits: Limits | None) -> BaseFilesystem:
        if issubclass(self.backend, HostFilesystem):
            return self.backend(tmp_path)
        return self.backend() if limits is None else self.backend(limits=limits)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        assert isinstance(filled, InMemoryFilesystem)
        frozen = self.backend(read_only=True)
        assert isinstance(frozen, InMemoryFilesystem)
        frozen._root_node = filled._root_node
        return frozen

    def make_special(self, fs: BaseFilesystem, path: str) -> None:
        os.mkfifo(Path(fs.root, path))


globals().update(
    {
        class_name(mutant): type(
            class_name(mutant), (Hooks, mutant.suite), {"backend": mutant.backend}
        )
        for mutant in (*MUTANTS, *BROAD, *SOUND)
    }
)
