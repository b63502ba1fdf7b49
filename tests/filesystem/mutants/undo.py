"""Which mutant must fail which test of the suites for snapshots and archives."""

from tests.filesystem.mutants import archiving, savepointing, snapshotting
from tests.filesystem.mutants.mutant import Mutant
from weakincentives.filesystem import BaseFilesystem
from weakincentives.filesystem.testing import ConformanceSuite, suites


def _all(
    suite: type[ConformanceSuite], killers: dict[type[BaseFilesystem], str]
) -> tuple[Mutant, ...]:
    return tuple(Mutant(backend, suite, killer) for backend, killer in killers.items())


SAVEPOINT_MUTANTS = _all(
    suites.SavepointTests,
    {
        savepointing.NeverRollsBack: "test_a_rollback_brings_everything_back",
        savepointing.RollsBackAlways: "test_a_release_keeps_what_was_changed",
        savepointing.SharesTheTree: "test_every_change_can_be_taken_back",
        savepointing.GoesOnWithTheKeptTree: (
            "test_what_follows_an_inner_rollback_is_taken_back_by_the_outer_one"
        ),
        savepointing.ForgetsModes: "test_links_and_permissions_come_back",
        savepointing.LosesLinks: "test_a_rollback_makes_anything_what_it_was",
        savepointing.SkipsNames: "test_a_rollback_brings_back_names_that_others_made",
        savepointing.EndsWithARollback: "test_the_state_after_a_rollback_can_be_changed",
        savepointing.RemembersPages: (
            "test_pages_hashes_and_searches_are_of_the_state_that_came_back"
        ),
        savepointing.GoesBackToTheFirst: ("test_an_inner_rollback_leaves_what_was_done_before_it"),
        savepointing.KeepsWhatWasReleased: (
            "test_an_outer_rollback_takes_back_what_an_inner_one_released"
        ),
        savepointing.AlwaysChanged: "test_what_takes_nothing_back_is_not_told",
        savepointing.NeverChanged: "test_nothing_has_changed_until_something_has",
        savepointing.CountsWhatWasTakenBack: "test_what_was_taken_back_inside_is_no_change",
        savepointing.TellsEveryRelease: "test_what_takes_nothing_back_is_not_told",
        savepointing.TellsTooEarly: "test_a_rollback_is_told_once_when_it_is_done",
        savepointing.NeverCountsAgain: "test_the_quota_counts_what_a_rollback_brought_back",
        savepointing.NeverFindsRoom: "test_what_a_rollback_took_away_makes_room",
        savepointing.SwallowsExceptions: (
            "test_an_exception_takes_back_what_the_block_did_and_goes_on"
        ),
        savepointing.KeepsWhatWasInterrupted: (
            "test_an_exception_takes_back_what_the_block_did_and_goes_on"
        ),
        savepointing.ComplainsAtTheEnd: "test_a_block_may_end_its_savepoint_itself",
        savepointing.EndsTwice: "test_a_savepoint_ends_once",
        savepointing.WaitsForNobody: "test_the_changes_of_other_threads_wait_for_its_end",
        savepointing.LetsNobodyRead: "test_other_threads_read_meanwhile",
    },
)
SNAPSHOT_MUTANTS = _all(
    suites.SnapshotTests,
    {
        snapshotting.NotSnapshotable: "test_the_filesystem_is_snapshotable",
        snapshotting.SharesState: "test_everything_comes_back_and_nothing_else_stays",
        snapshotting.SharesRestored: "test_a_snapshot_does_not_see_later_changes",
        snapshotting.KeepsNewFiles: "test_everything_comes_back_and_nothing_else_stays",
        snapshotting.ForgetsEmptyDirectories: "test_empty_directories_come_back",
        snapshotting.KeepsNewDirectories: "test_new_empty_directories_are_gone",
        snapshotting.TranslatesLineEnds: "test_any_bytes_come_back",
        snapshotting.CutsAtNulByte: "test_any_bytes_come_back",
        snapshotting.SkipsNames: "test_any_name_comes_back",
        snapshotting.FoldsCaseBack: "test_names_that_differ_in_case_come_back",
        snapshotting.KeepsKinds: "test_what_changed_its_kind_changes_back",
        snapshotting.LimitsDepth: "test_the_deepest_path_comes_back",
        snapshotting.DoubtsTheEmptyState: "test_the_empty_state_is_a_state",
        snapshotting.StoresInTheWorkspace: "test_keeping_a_state_does_not_change_it",
        snapshotting.RemembersTheLast: "test_many_snapshots_come_back_in_any_order",
        snapshotting.ForgetsWhatCameBack: "test_a_restore_can_be_undone",
        snapshotting.EndsWithARestore: "test_a_restored_state_can_be_changed",
        snapshotting.RemembersPages: "test_pages_hashes_and_searches_are_of_the_restored_state",
        snapshotting.ForgetsTheTag: "test_the_value_tells_when_where_and_the_tag",
        snapshotting.NamesTheContent: "test_every_snapshot_has_a_name_of_its_own",
        snapshotting.KnowsObjectsOnly: "test_a_value_that_was_stored_restores",
        snapshotting.DiesWithItsObject: "test_a_stored_value_restores_when_the_first_one_is_gone",
        snapshotting.NeedsThePlace: "test_a_value_without_the_place_of_its_store_restores",
        snapshotting.GuessesTheSnapshot: (
            "test_an_unknown_snapshot_is_refused_and_changes_nothing"
        ),
        snapshotting.ChangesThenRefuses: "test_an_unknown_snapshot_is_refused_and_changes_nothing",
        snapshotting.KnowsEverySnapshot: (
            "test_a_snapshot_of_another_workspace_is_refused_and_changes_nothing"
        ),
        snapshotting.WalksWithoutALock: "test_a_snapshot_is_one_moment",
        snapshotting.RestoresInHalves: "test_a_reader_sees_the_old_state_of_a_file_or_the_new",
        snapshotting.RefusesOthers: "test_snapshots_of_several_threads_all_succeed",
    },
)
PARTIAL_MUTANTS = _all(
    suites.PartialRestoreTests,
    {
        snapshotting.TakesAll: "test_a_file_comes_back_and_all_else_stays",
        snapshotting.TakesTheFirst: "test_several_paths_come_back_together",
        snapshotting.TakesNoneForAll: "test_no_paths_are_nothing",
        snapshotting.TakesTheParents: "test_missing_parents_are_made_with_nothing_else_in_them",
        snapshotting.OneByOne: "test_a_path_that_is_nowhere_is_refused_and_nothing_changes",
        snapshotting.KeepsWhatWasNotThere: "test_what_was_not_there_is_removed",
        snapshotting.KeepsNewFiles: "test_a_directory_comes_back_with_all_below_it",
        snapshotting.KeepsKinds: "test_a_partial_restore_changes_kinds_back",
        snapshotting.ForgetsEmptyDirectories: "test_an_empty_directory_comes_back",
        snapshotting.NeedsTheParent: "test_missing_parents_are_made_with_nothing_else_in_them",
        snapshotting.ReplacesWhatIsInTheWay: "test_a_file_in_the_way_is_not_replaced",
        snapshotting.ReadsPathsAsGiven: "test_paths_may_overlap_and_be_spelled_in_any_way",
        snapshotting.ChangesThenRefuses: "test_an_unknown_snapshot_restores_no_path",
        snapshotting.GuessesTheSnapshot: "test_an_unknown_snapshot_restores_no_path",
        snapshotting.SharesRestored: (
            "test_a_snapshot_does_not_see_what_follows_a_partial_restore"
        ),
        snapshotting.LosesTheRest: "test_a_partial_restore_can_be_undone",
    },
)
VIEW_MUTANTS = _all(
    suites.SnapshotViewTests,
    {
        snapshotting.ShowsTheLiveState: "test_a_view_does_not_move",
        snapshotting.SharesState: "test_a_view_shows_what_was_kept",
        snapshotting.ShowsNothing: "test_a_view_can_be_searched",
        snapshotting.GuessesTheSnapshot: "test_an_unknown_snapshot_cannot_be_viewed",
        snapshotting.LooksBackwards: "test_a_preview_names_what_would_change",
        snapshotting.RestoresToLook: "test_a_preview_changes_nothing",
        snapshotting.TakesAll: "test_a_preview_of_the_present_is_empty",
        snapshotting.TakesTheFirst: "test_a_preview_tells_exactly_what_the_restore_does",
        snapshotting.TakesNoneForAll: "test_a_preview_tells_exactly_what_the_restore_does",
    },
)
SNAPSHOT_DETAIL_MUTANTS = _all(
    suites.SnapshotDetailTests,
    {
        snapshotting.FollowsLinksBack: "test_links_come_back_as_links",
        snapshotting.KeepsKinds: "test_anything_becomes_what_it_was",
        snapshotting.WritesThroughLinks: (
            "test_nothing_is_written_through_a_link_that_is_in_the_way"
        ),
        snapshotting.ForgetsModes: "test_permissions_come_back",
        snapshotting.SkipsNames: "test_names_that_others_made_come_back",
        snapshotting.TellsNothingOfStates: "test_a_restore_is_told_once_when_it_is_done",
        snapshotting.KeepsNewFiles: "test_a_restore_is_told_once_when_it_is_done",
        snapshotting.TellsTooEarly: "test_a_refused_restore_is_not_told",
        snapshotting.NeverCountsAgain: "test_the_quota_counts_what_a_restore_brought_back",
        snapshotting.CountsForever: "test_what_a_restore_took_away_makes_room",
        snapshotting.RestoresReadOnly: "test_a_read_only_filesystem_is_not_restored",
    },
)
ARCHIVE_MUTANTS = _all(
    suites.ArchiveTests,
    {
        archiving.NotArchivable: "test_the_filesystem_is_archivable",
        archiving.CountsEntries: "test_the_number_of_files_is_returned",
        archiving.Merges: "test_an_import_brings_the_state_back",
        archiving.EmptiesFirst: "test_a_truncated_archive_is_refused_and_changes_nothing",
        archiving.Unpacks: "test_an_archive_that_leads_out_is_refused_and_changes_nothing",
        archiving.DropsWhatIsEmpty: "test_an_import_brings_the_state_back",
        archiving.PrintableNames: "test_any_name_is_archived",
        archiving.FoldsCaseOnImport: "test_names_that_differ_in_case_are_archived",
        archiving.LeavesADraft: "test_an_export_changes_nothing",
        archiving.ExportsIntoItself: "test_an_archive_is_read_as_the_state_it_was_made_of",
        archiving.DatesItself: "test_the_same_state_and_date_give_the_same_bytes",
        archiving.KeepsTheFirst: "test_an_export_makes_parents_and_replaces_what_is_there",
        archiving.ReadsLater: "test_an_imported_state_does_not_need_the_archive",
        archiving.EndsWithAnImport: "test_an_imported_state_can_be_changed",
        archiving.OwnArchivesOnly: "test_a_plain_archive_is_imported",
    },
)
ARCHIVE_DETAIL_MUTANTS = _all(
    suites.ArchiveDetailTests,
    {
        archiving.DropsBitsAndLinks: "test_links_are_archived_as_links",
        archiving.PrintableNames: "test_names_that_others_made_are_archived",
        archiving.Merges: "test_an_import_makes_anything_what_it_was",
        archiving.TellsExports: "test_an_export_and_a_refused_import_are_not_told",
        archiving.ImportsBeyondTheQuota: (
            "test_an_archive_beyond_the_quota_is_refused_and_changes_nothing"
        ),
        archiving.IgnoresTheQuota: (
            "test_an_archive_beyond_the_quota_is_refused_and_changes_nothing"
        ),
        archiving.ImportsReadOnly: "test_a_read_only_filesystem_is_exported_and_not_imported",
        snapshotting.TellsNothingOfStates: "test_an_import_is_told_once_when_it_is_done",
        snapshotting.TellsTooEarly: "test_an_export_and_a_refused_import_are_not_told",
        snapshotting.NeverCountsAgain: "test_the_quota_counts_what_an_import_brought",
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
