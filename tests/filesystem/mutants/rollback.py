"""Which mutant must fail which test of the suites for snapshots and archives."""

from tests.filesystem.mutants import archives, savepoints, snapshots, suites
from tests.filesystem.mutants.mutant import Mutant
from weakincentives.filesystem import BaseFilesystem
from weakincentives.filesystem.testing import ConformanceSuite

_BACK = "test_everything_comes_back_and_nothing_else_stays"
_KIND_BACK = "test_anything_becomes_what_it_was"
_ROLLED_BACK = "test_a_rollback_makes_anything_what_it_was"
_IMPORTED = "test_an_import_makes_anything_what_it_was"


def _all(
    suite: type[ConformanceSuite], killers: dict[type[BaseFilesystem], str]
) -> tuple[Mutant, ...]:
    return tuple(Mutant(backend, suite, killer) for backend, killer in killers.items())


SAVEPOINT_MUTANTS = _all(
    suites.SavepointTests,
    {
        savepoints.NeverRollsBack: "test_a_rollback_brings_everything_back[sample]",
        savepoints.RollsBackAlways: "test_a_release_keeps_what_was_changed",
        savepoints.SharesTheTree: "test_every_change_can_be_taken_back",
        savepoints.GoesOnWithTheKeptTree: (
            "test_what_follows_an_inner_rollback_is_taken_back_by_the_outer_one"
        ),
        savepoints.ForgetsModes: f"{_ROLLED_BACK}[permissions]",
        savepoints.LosesLinks: f"{_ROLLED_BACK}[links]",
        savepoints.SkipsNames: f"{_ROLLED_BACK}[strange names write]",
        savepoints.EndsWithARollback: (
            "test_the_state_that_came_back_is_like_any_other[later changes]"
        ),
        savepoints.RemembersPages: (
            "test_the_state_that_came_back_is_like_any_other[pages, hashes, searches]"
        ),
        savepoints.GoesBackToTheFirst: ("test_an_inner_rollback_leaves_what_was_done_before_it"),
        savepoints.KeepsWhatWasReleased: (
            "test_an_outer_rollback_takes_back_what_an_inner_one_released"
        ),
        savepoints.AlwaysChanged: "test_what_takes_nothing_back_is_not_reported",
        savepoints.NeverChanged: "test_nothing_has_changed_until_something_has",
        savepoints.CountsWhatWasTakenBack: "test_what_was_taken_back_inside_is_no_change",
        savepoints.ReportsEveryRelease: "test_what_takes_nothing_back_is_not_reported",
        savepoints.ReportsTooEarly: "test_a_rollback_is_reported_once_when_it_is_done",
        savepoints.NeverCountsAgain: "test_a_rollback_changes_what_the_quota_counts[growth]",
        savepoints.NeverFindsRoom: "test_a_rollback_changes_what_the_quota_counts[room]",
        savepoints.SwallowsExceptions: (
            "test_an_exception_takes_back_what_the_block_did_and_goes_on"
        ),
        savepoints.KeepsWhatWasInterrupted: (
            "test_an_exception_takes_back_what_the_block_did_and_goes_on"
        ),
        savepoints.ComplainsAtTheEnd: "test_a_block_may_end_its_savepoint_itself",
        savepoints.EndsTwice: "test_a_savepoint_ends_once",
        savepoints.WaitsForNobody: "test_the_changes_of_other_threads_wait_for_its_end",
        savepoints.LetsNobodyRead: "test_other_threads_read_meanwhile",
    },
)
SNAPSHOT_MUTANTS = _all(
    suites.SnapshotTests,
    {
        snapshots.NotSnapshotable: "test_the_filesystem_is_snapshotable",
        snapshots.SharesState: f"{_BACK}[sample]",
        snapshots.SharesRestored: "test_a_snapshot_does_not_see_later_changes",
        snapshots.KeepsNewFiles: f"{_BACK}[from nothing]",
        snapshots.ForgetsEmptyDirectories: f"{_BACK}[empty directories]",
        snapshots.KeepsNewDirectories: f"{_BACK}[new empty directories]",
        snapshots.TranslatesLineEnds: f"{_BACK}[line ends]",
        snapshots.CutsAtNulByte: f"{_BACK}[every byte]",
        snapshots.SkipsNames: f"{_BACK}[any name]",
        snapshots.FoldsCaseBack: f"{_BACK}[names that differ in case]",
        snapshots.KeepsKinds: f"{_BACK}[kinds]",
        snapshots.LimitsDepth: f"{_BACK}[deepest path]",
        snapshots.DoubtsTheEmptyState: f"{_BACK}[from nothing]",
        snapshots.StoresInTheWorkspace: "test_keeping_a_state_does_not_change_it",
        snapshots.RemembersTheLast: "test_many_snapshots_come_back_in_any_order",
        snapshots.ForgetsWhatCameBack: "test_a_restore_can_be_undone",
        snapshots.EndsWithARestore: "test_a_restored_state_is_like_any_other[later changes]",
        snapshots.RemembersPages: (
            "test_a_restored_state_is_like_any_other[pages, hashes, searches]"
        ),
        snapshots.ForgetsTheTag: "test_the_value_has_date_root_and_tag",
        snapshots.NamesTheContent: "test_every_snapshot_has_a_unique_name",
        snapshots.KnowsObjectsOnly: "test_a_stored_value_restores_when_the_first_one_is_gone",
        snapshots.DiesWithItsObject: "test_a_stored_value_restores_when_the_first_one_is_gone",
        snapshots.NeedsThePlace: "test_a_value_without_the_place_of_its_store_restores",
        snapshots.GuessesTheSnapshot: ("test_an_unknown_snapshot_is_refused_and_changes_nothing"),
        snapshots.ChangesThenRefuses: "test_an_unknown_snapshot_is_refused_and_changes_nothing",
        snapshots.KnowsEverySnapshot: (
            "test_a_snapshot_of_another_workspace_is_refused_and_changes_nothing"
        ),
        snapshots.WalksWithoutALock: "test_a_snapshot_is_one_moment",
        snapshots.RestoresInHalves: "test_a_reader_sees_the_old_state_of_a_file_or_the_new",
        snapshots.RefusesOthers: "test_snapshots_of_several_threads_all_succeed",
    },
)
_REFUSAL = "test_a_path_that_cannot_be_restored_is_refused_and_nothing_changes"
PARTIAL_MUTANTS = _all(
    suites.PartialRestoreTests,
    {
        snapshots.TakesAll: "test_a_file_comes_back_and_all_else_stays",
        snapshots.TakesTheFirst: "test_several_paths_come_back_together",
        snapshots.TakesNoneForAll: "test_no_paths_are_nothing",
        snapshots.TakesTheParents: "test_missing_parents_are_made_with_nothing_else_in_them",
        snapshots.OneByOne: f"{_REFUSAL}[nowhere gone]",
        snapshots.KeepsWhatWasNotThere: "test_what_was_not_there_is_removed",
        snapshots.KeepsNewFiles: "test_a_directory_comes_back_with_all_below_it",
        snapshots.KeepsKinds: "test_a_partial_restore_changes_kinds_back",
        snapshots.ForgetsEmptyDirectories: "test_an_empty_directory_comes_back",
        snapshots.NeedsTheParent: "test_missing_parents_are_made_with_nothing_else_in_them",
        snapshots.ReplacesWhatIsInTheWay: f"{_REFUSAL}[in the way]",
        snapshots.ReadsPathsAsGiven: "test_paths_may_overlap_and_be_spelled_in_any_way",
        snapshots.ChangesThenRefuses: "test_an_unknown_snapshot_restores_no_path",
        snapshots.GuessesTheSnapshot: "test_an_unknown_snapshot_restores_no_path",
        snapshots.SharesRestored: ("test_a_snapshot_does_not_see_what_follows_a_partial_restore"),
        snapshots.LosesTheRest: "test_a_partial_restore_can_be_undone",
    },
)
VIEW_MUTANTS = _all(
    suites.SnapshotViewTests,
    {
        snapshots.ShowsTheLiveState: "test_a_view_does_not_move",
        snapshots.SharesState: "test_a_view_shows_what_was_kept",
        snapshots.ShowsNothing: "test_a_view_can_be_searched",
        snapshots.GuessesTheSnapshot: "test_an_unknown_snapshot_cannot_be_viewed",
        snapshots.LooksBackwards: "test_a_preview_names_what_would_change",
        snapshots.RestoresToLook: "test_a_preview_changes_nothing",
        snapshots.TakesAll: "test_a_preview_of_the_present_is_empty",
        snapshots.TakesTheFirst: "test_a_preview_lists_exactly_what_the_restore_does",
        snapshots.TakesNoneForAll: "test_a_preview_lists_exactly_what_the_restore_does",
    },
)
SNAPSHOT_DETAIL_MUTANTS = _all(
    suites.SnapshotDetailTests,
    {
        snapshots.FollowsLinksBack: f"{_KIND_BACK}[links]",
        snapshots.KeepsKinds: f"{_KIND_BACK}[directory to file]",
        snapshots.WritesThroughLinks: ("test_nothing_is_written_through_a_link_that_is_in_the_way"),
        snapshots.ForgetsModes: f"{_KIND_BACK}[permissions]",
        snapshots.SkipsNames: f"{_KIND_BACK}[strange names write]",
        snapshots.ReportsNothingOfStates: "test_a_restore_is_reported_once_when_it_is_done",
        snapshots.KeepsNewFiles: "test_a_restore_is_reported_once_when_it_is_done",
        snapshots.ReportsTooEarly: "test_a_refused_restore_is_not_reported",
        snapshots.NeverCountsAgain: "test_a_restore_changes_what_the_quota_counts[growth]",
        snapshots.CountsForever: "test_a_restore_changes_what_the_quota_counts[room]",
        snapshots.RestoresReadOnly: "test_a_read_only_filesystem_is_not_restored",
    },
)
ARCHIVE_MUTANTS = _all(
    suites.ArchiveTests,
    {
        archives.NotArchivable: "test_the_filesystem_is_archivable",
        archives.CountsEntries: "test_the_number_of_files_is_returned",
        archives.Merges: "test_an_import_brings_the_state_back[sample]",
        archives.EmptiesFirst: "test_a_wrong_archive_is_refused_and_changes_nothing[cut at 100]",
        archives.Unpacks: "test_a_wrong_archive_is_refused_and_changes_nothing[wrong byte]",
        archives.DropsWhatIsEmpty: "test_an_import_brings_the_state_back[empty directories]",
        archives.PrintableNames: "test_an_import_brings_the_state_back[any name]",
        archives.FoldsCaseOnImport: (
            "test_an_import_brings_the_state_back[names that differ in case]"
        ),
        archives.LeavesADraft: "test_an_export_changes_nothing",
        archives.ExportsIntoItself: "test_an_archive_is_read_as_the_state_it_was_made_of",
        archives.DatesItself: "test_the_same_state_and_date_give_the_same_bytes",
        archives.KeepsTheFirst: "test_an_export_makes_parents_and_replaces_what_is_there",
        archives.ReadsLater: "test_an_imported_state_does_not_need_the_archive",
        archives.EndsWithAnImport: "test_an_imported_state_is_like_any_other[later changes]",
        archives.OwnArchivesOnly: "test_a_plain_archive_is_imported",
    },
)
ARCHIVE_DETAIL_MUTANTS = _all(
    suites.ArchiveDetailTests,
    {
        archives.DropsBitsAndLinks: f"{_IMPORTED}[links]",
        archives.PrintableNames: f"{_IMPORTED}[strange names write]",
        archives.Merges: f"{_IMPORTED}[file to nothing]",
        archives.ReportsExports: "test_an_export_and_a_refused_import_are_not_reported",
        archives.ImportsBeyondTheQuota: (
            "test_an_archive_beyond_the_quota_is_refused_and_changes_nothing"
        ),
        archives.IgnoresTheQuota: (
            "test_an_archive_beyond_the_quota_is_refused_and_changes_nothing"
        ),
        archives.ImportsReadOnly: "test_a_read_only_filesystem_is_exported_and_not_imported",
        snapshots.ReportsNothingOfStates: "test_an_import_is_reported_once_when_it_is_done",
        snapshots.ReportsTooEarly: "test_an_export_and_a_refused_import_are_not_reported",
        snapshots.NeverCountsAgain: "test_an_import_changes_what_the_quota_counts[growth]",
    },
)
UNDO_MUTANTS = (
    *SAVEPOINT_MUTANTS,
    *SNAPSHOT_MUTANTS,
    *PARTIAL_MUTANTS,
    *VIEW_MUTANTS,
    *SNAPSHOT_DETAIL_MUTANTS,
    *ARCHIVE_MUTANTS,
    *ARCHIVE_DETAIL_MUTANTS,
)
