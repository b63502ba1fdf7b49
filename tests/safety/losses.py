"""The losses: what happened to what a person saved, and what would let it happen again."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """A way in which a save was lost: its tests, and a change of the code that loses it again."""

    number: int
    fact: str
    tests: tuple[str, ...]
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        """Return its number and what happened."""
        return f"{self.number} {self.fact}"


LOSSES = (
    Loss(
        1,
        "an undo of an MCP call replaced what was saved meanwhile",
        (
            "tests/mcp/test_person.py::test_a_save_at_any_point_of_a_call_is_kept",
            "tests/mcp/test_undo.py::test_undo_never_loses_an_edit_of_somebody_else",
        ),
        "history/change.py",
        "        if not matches(self._tree, operation.slot, operation.before):\n"
        "            return False\n",
        "        return True\n",
    ),
    Loss(
        2,
        "an MCP call replaced a save that was in neither state",
        ("tests/mcp/test_undo.py::test_what_a_person_saved_before_a_call_is_a_step_of_its_own",),
        "mcp/history.py",
        "        if states.known is not None:\n",
        "        if False:\n",
    ),
    Loss(
        3,
        "a cancelled command took saves with it",
        (
            "tests/mcp/test_rollback.py::"
            "test_what_changed_while_a_cancelled_command_ran_can_be_had_again",
        ),
        "mcp/history.py",
        "        if not call.replaced or call.draft.before is None:\n",
        "        if True:\n",
    ),
    Loss(
        4,
        "a store into a memory map was in no snapshot",
        (
            "tests/filesystem/host/test_snapshots.py::"
            "test_a_store_into_a_memory_mapping_is_in_the_next_snapshot",
        ),
        "filesystem/host/snapshots/capture.py",
        "            if has_writer:\n",
        "            if False:\n",
    ),
    Loss(
        5,
        "a continued run undid what was edited in its copy",
        ("tests/cli/test_continue.py::test_what_the_user_saves_right_after_the_kill_stays",),
        "cli/run/resume.py",
        "        if not workspace_path(place).is_dir() or runs.is_incomplete(place):\n"
        "            return None\n"
        "        try:\n",
        "        return None\n        try:\n",
    ),
    Loss(
        6,
        "a rollback skipped a directory that was renamed away and back",
        (
            "tests/contrib/review/test_saves.py::"
            "test_a_directory_that_is_renamed_away_and_back_is_rolled_back",
            "tests/contrib/review/test_saves.py::"
            "test_a_rollback_follows_a_directory_that_was_renamed",
        ),
        "history/entries.py",
        "        parent = self._parents.get(directory)\n        if parent is None:\n",
        "        parent = None\n        if parent is None:\n",
    ),
    Loss(
        7,
        "a killed run was continued in a new copy",
        (
            "tests/cli/test_continue.py::"
            "test_a_copy_with_a_damaged_record_is_not_replaced_by_a_new_one",
        ),
        "cli/run/resume.py",
        "        except CopyError as error:\n            raise click.ClickException(\n"
        '                f"{error}; its files are kept',
        "        except CopyError as error:\n            return None\n"
        "            raise click.ClickException(\n"
        '                f"{error}; its files are kept',
    ),
    Loss(
        8,
        "an undone commit left the lines of the agent staged",
        (
            "tests/contrib/review/test_commit.py::"
            "test_an_undo_restores_the_index_of_a_partly_staged_file",
        ),
        "contrib/review/commit.py",
        '    _move_head(repository, made, f"{made}~1")\n'
        "    repository.change_entries(_invert(review.applies.last_staged))\n",
        '    _move_head(repository, made, f"{made}~1")\n',
    ),
    Loss(
        9,
        "the mode of a directory was in no step",
        (
            "tests/contrib/test_replay.py::"
            "test_a_directory_mode_that_a_command_changes_is_recorded_and_restored",
            "tests/runtime/timeline/test_history.py::test_the_mode_of_a_directory_belongs_to_a_step",
        ),
        "runtime/timeline/files.py",
        '        return EntryState("directory", found.permissions)\n',
        '        return EntryState("directory", 0o755)\n',
    ),
    Loss(
        10,
        "wink clean removed a copy that was edited since its review",
        (
            "tests/cli/test_runs.py::test_only_what_is_proven_to_be_decided_and_unedited_is_removed",
            "tests/cli/test_runs.py::test_what_is_saved_at_the_last_moment_is_kept",
        ),
        "cli/clean.py",
        "    if edited:\n",
        "    if False:\n",
    ),
    Loss(
        11,
        "an interrupt left a lock behind",
        (
            "tests/runtime/test_interrupts.py::"
            "test_an_interrupt_at_any_line_leaves_one_state_and_no_lock",
        ),
        "posix/interrupts.py",
        "            _set_handler(_SIGINT, self._record)\n",
        "            pass\n",
    ),
    Loss(
        12,
        "a conflict between sessions ran a handler twice",
        (
            "tests/runtime/test_parallel_sessions.py::"
            "test_a_call_sends_its_request_once_whatever_others_do_meanwhile",
            "tests/runtime/test_parallel_sessions.py::"
            "test_two_that_read_and_write_the_same_take_turns",
        ),
        "runtime/session/store.py",
        "                self._wait(place)\n",
        "                pass\n",
    ),
    Loss(
        13,
        "a save right after a killed call was replaced by its recovery",
        (
            "tests/filesystem/host/test_journal.py::"
            "test_what_was_saved_after_the_crash_stays_however_soon_that_was",
        ),
        "history/rollback.py",
        "        is_same = any(matches(self.tree, operation.slot, each) for each in versions)\n",
        "        is_same = True\n",
    ),
    Loss(
        14,
        "Ctrl-C in a command of a run undid saves without a word",
        (
            "tests/cli/test_undo.py::"
            "test_what_the_user_saved_during_a_command_that_ctrl_c_ends_can_be_had_back",
        ),
        "cli/run/job.py",
        "                if paths:\n                    found[",
        "                if False:\n                    found[",
    ),
    Loss(
        15,
        "a replay of a recording that was cut off found all the same",
        ("tests/contrib/test_replay.py::test_a_recording_that_was_cut_off_is_never_all_the_same",),
        "contrib/replay.py",
        "        problem = timeline.problem or _find_end_problem(timeline)\n",
        "        problem = None\n",
    ),
    Loss(
        16,
        "a recording or store of a stranger set set-user-ID bits",
        (
            "tests/contrib/test_replay.py::test_nothing_that_a_recording_has_becomes_set_user_id",
            "tests/filesystem/host/test_store.py::test_a_store_of_another_root_gives_no_rights",
        ),
        "filesystem/host/snapshots/store.py",
        "        then = then if with_rights else then.without_rights()\n",
        "",
    ),
    Loss(
        16,
        "a copy from a recording of a stranger had set-user-ID bits",
        (
            "tests/contrib/review/test_states.py::"
            "test_recorded_states_give_no_rights_to_run_as_somebody_else",
        ),
        "contrib/review/copy.py",
        "    before = before.without_rights()\n",
        "",
    ),
    Loss(
        16,
        "a record of a stranger inflated without bounds",
        ("tests/history/test_log.py::test_a_record_from_a_stranger_inflates_to_a_bounded_size",),
        "history/log.py",
        "MAX_PAYLOAD = 64 * 1024 * 1024\n",
        "MAX_PAYLOAD = 64 * 1024 * 1024 * 1024\n",
    ),
    Loss(
        17,
        "after an apply every directory was listed to see what is left",
        (
            "tests/contrib/review/test_review.py::"
            "test_after_an_apply_untouched_directories_are_not_listed_again",
        ),
        "contrib/review/views.py",
        "        if path in self._above:\n            return False\n        if isinstance(other",
        "        return False\n        if isinstance(other",
    ),
    Loss(
        18,
        "an undo by number undid another call",
        (
            "tests/mcp/test_history_log.py::"
            "test_a_call_has_one_number_in_every_session_although_others_failed",
        ),
        "mcp/history.py",
        "            return self.log.add(call.draft.as_failed())\n",
        "            return None\n",
    ),
    Loss(
        19,
        "a full disk cut an undo off without a word",
        (
            "tests/mcp/test_undo.py::test_an_undo_on_a_full_disk_changes_nothing_and_says_so",
            "tests/mcp/test_history_log.py::test_a_command_whose_start_cannot_be_recorded_says_so",
        ),
        "mcp/history.py",
        '            call.notes.append(\n                f"[This call cannot be undone if',
        '            str(\n                f"[This call cannot be undone if',
    ),
    Loss(
        20,
        "an attribute that was set after the look at a file counted as expected",
        (
            "tests/contrib/review/test_saves.py::"
            "test_what_is_set_after_the_look_at_a_file_is_a_conflict",
        ),
        "history/change.py",
        "            seen = self._seen.get(operation.path)\n",
        "            seen = None\n",
    ),
    Loss(
        21,
        "an attribute that was set while a file was written was in no state",
        (
            "tests/filesystem/host/test_filesystem.py::"
            "test_an_attribute_that_is_set_during_a_write_is_carried_over",
        ),
        "history/slots.py",
        "    given = read_attributes_at(slot)\n",
        "    given: dict[str, bytes] = {}\n",
    ),
    Loss(
        22,
        "what was saved through a link could not be had again where another path was in the way",
        (
            "tests/mcp/test_undo.py::"
            "test_what_was_saved_through_a_link_is_had_again_where_the_link_led",
        ),
        "mcp/history.py",
        "        if rest:\n",
        "        if False:\n",
    ),
    Loss(
        23,
        "what a rollback replaced was listed nowhere after a kill between its two records",
        (
            "tests/mcp/test_undo.py::"
            "test_a_rollback_that_was_cut_off_between_its_records_can_be_undone",
        ),
        "mcp/steps.py",
        "step.number == 0 or step.is_rolled_back",
        "step.number == 0",
    ),
    Loss(
        24,
        "git removed what a savepoint held, because it was neither tracked nor ignored",
        (
            "tests/filesystem/host/test_journal.py::"
            "test_git_neither_removes_nor_stages_what_it_holds",
        ),
        "filesystem/host/journal/records.py",
        'b"*\\n# wink-journal "',
        'b"# wink-journal "',
    ),
    Loss(
        25,
        "what a killed call had replaced was told to the recorder of the next server alone",
        (
            "tests/mcp/test_beside.py::"
            "test_a_save_that_a_killed_call_had_replaced_is_found_by_the_next_server",
        ),
        "cli/mcp/service.py",
        "    made = engine = None\n",
        "    made = engine = None\n    place.filesystem.subscribe_changes(lambda _: None)\n",
    ),
    Loss(
        26,
        "a save that a killed call of a run had replaced was recorded as if it were still there",
        ("tests/cli/test_undo.py::test_what_a_call_replaced_can_be_had_back_also_after_a_kill",),
        "runtime/timeline/files.py",
        "        self._paths.update(each.path for each in saved)",
        "        pass",
    ),
    Loss(
        27,
        "a damaged record took the files of all later steps with it",
        (
            "tests/runtime/timeline/test_timeline.py::"
            "test_what_a_lost_step_did_is_had_from_later_ones",
        ),
        "runtime/timeline/timeline.py",
        "        for each in self.steps if step.number in self._lost else ():\n",
        "        for each in ():\n",
    ),
    Loss(
        28,
        "an MCP call went through although what it replaced could not be stored",
        (
            "tests/mcp/test_history_log.py::"
            "test_no_call_changes_anything_while_the_disk_with_the_history_is_full",
        ),
        "mcp/history.py",
        "            self.log.check_room()\n",
        "            pass\n",
    ),
    Loss(
        29,
        "the recorded files of an undo were others where somebody had put one back",
        (
            "tests/runtime/timeline/test_history.py::"
            "test_an_undo_of_what_somebody_put_back_is_recorded",
        ),
        "filesystem/host/snapshots/store.py",
        "        rewritten = [each.path for each in planned]\n",
        "        rewritten = [each.path for each in edits]\n",
    ),
    Loss(
        30,
        "a save that a full disk let nobody record was discarded as if it were",
        (
            "tests/runtime/timeline/test_recorder.py::"
            "test_a_save_that_cannot_be_recorded_waits_for_who_continues",
        ),
        "runtime/timeline/recorder.py",
        "            if self.problem is not None:\n                raise OSError(f",
        "            if False:\n                raise OSError(f",
    ),
    Loss(
        31,
        "a rollback took its own records for a file with a writer, and forgot who else was writing",
        (
            "tests/filesystem/test_savepoints.py::"
            "test_what_is_appended_to_what_a_rollback_displaces_is_kept",
        ),
        "filesystem/host/journal/completion.py",
        'Rollback(self.tree, journal.name, "probe")',
        "Rollback(self.tree, journal.name)",
    ),
    Loss(
        32,
        "a run that changed nothing removed its copy, in which a program had a file open",
        (
            "tests/cli/test_run.py::"
            "test_a_run_that_changes_nothing_keeps_a_copy_in_which_somebody_works",
            "tests/cli/test_runs.py::test_a_copy_stays_while_a_program_has_one_of_its_files_open",
        ),
        "contrib/review/removal.py",
        "                is_file = unless_open and stat.S_ISREG(found.st_mode)\n",
        "                is_file = False\n",
    ),
    Loss(
        33,
        "a run that changed nothing removed its copy with the attributes that a person had set",
        (
            "tests/cli/test_run.py::"
            "test_a_run_that_changes_nothing_keeps_a_copy_in_which_somebody_works",
        ),
        "contrib/review/removal.py",
        "        for path in sorted(marked):\n",
        "        for path in ():\n",
    ),
)
