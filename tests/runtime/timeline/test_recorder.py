"""Recording a run: the conversation of every step is what the model saw."""

import errno
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from tests.adapters.workers import prompt
from tests.posix.forks import ends, in_a_child
from weakincentives.adapters import (
    CancellationToken,
    Completion,
    ScriptedAdapter,
    ScriptError,
    ToolCall,
    UserMessage,
)
from weakincentives.adapters.messages import load_messages
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.reproducible import ReproducibleFiles
from weakincentives.history import HistoryStore, log
from weakincentives.posix import cancellable
from weakincentives.runtime.events import CommandOutcome, ConversationStarted, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.snapshots import type_name
from weakincentives.runtime.timeline import SessionRecorder, Timeline, export_history


def write(path: str) -> ToolCall:
    return ToolCall("write_file", {"path": path, "content": "x"})


def test_a_run_is_recorded_step_by_step(tmp_path: Path):
    files, session = InMemoryFilesystem(), Session()
    path = tmp_path / "run.timeline"
    adapter = ScriptedAdapter([Completion("I write.", (write("a"), write("b"))), "Done."])
    with SessionRecorder(session, path, files):
        response = adapter.evaluate(
            prompt(files), session=session, messages=[UserMessage("please")]
        )
    with Timeline(path) as timeline:
        kinds = [each.kind for each in timeline.steps]
        assert kinds == ["start", "prompt", "model", "tool", "tool", "model", "end"]
        roles = [each["role"] for each in timeline.messages(timeline.last)]
        assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
        assert load_messages(timeline.messages(timeline.last))[1:] == response.messages
        # each request had exactly the conversation of the step before its answer
        for number, request in ((2, adapter.requests[0]), (5, adapter.requests[1])):
            assert load_messages(timeline.messages(number)) == request.messages
        assert timeline.step(4).paths == ("a",)
        assert timeline.step(5).paths == ("b",)


def test_a_run_that_fails_is_recorded_to_its_end(tmp_path: Path):
    files, session = InMemoryFilesystem(), Session()
    path = tmp_path / "run.timeline"
    adapter = ScriptedAdapter([Completion("", (write("a"),))])
    with SessionRecorder(session, path, files), pytest.raises(ScriptError):
        adapter.evaluate(prompt(files), session=session)
    with Timeline(path) as timeline:
        assert timeline.step(timeline.last).kind == "end"
        assert not timeline.step(timeline.last).success
        assert timeline.files(timeline.last).exists("a")


def test_a_cancelled_call_is_recorded(tmp_path: Path):
    root, path = tmp_path / "w", tmp_path / "run.timeline"
    root.mkdir()
    session = Session()
    with (
        HostFilesystem(root, git_dir=tmp_path / "git") as files,
        SessionRecorder(session, path, files) as recorder,
    ):
        before = files.snapshot()
        (root / "a").write_text("1")
        files.restore(before)
        cancellation = CancellationToken()
        cancellation.cancel("by the client")
        with cancellable(cancellation):
            session.dispatch(ToolInvoked(tool="slow", success=False))
        assert recorder.problem is None
        files.write("b", "2")
        session.dispatch(ToolInvoked(tool="next"))
    with Timeline(path) as timeline:
        assert [each.title for each in timeline.steps[1:3]] == ["slow", "next"]
        assert timeline.files(3).read("b").content == "2"


def test_what_a_person_saves_just_before_a_call_replaces_it_is_a_step_of_its_own(tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    (root / ".gitignore").write_text(".env\n")
    for name in ("a", ".env"):
        (root / name).write_text("old")
    with HostFilesystem(root, git_dir=tmp_path / "history") as files:
        session = Session()
        with SessionRecorder(
            session, tmp_path / "history", files, leave_out=ReproducibleFiles(files)
        ):
            for name in ("a", ".env"):
                (root / name).write_text("mine")
                files.write(name, "new")
    with Timeline(tmp_path / "history") as timeline:
        saved = [step for step in timeline.steps if "saved by the user" in step.title]
        assert [step.paths for step in saved] == [("a",)]  # not what git ignores
        assert timeline.files(saved[0].number).read("a").content == "mine"
        assert timeline.files(timeline.last).read("a").content == "new"


def test_a_save_that_cannot_be_recorded_waits_for_who_continues(tmp_path: Path):
    root, history = tmp_path / "root", tmp_path / "history"
    root.mkdir()
    (root / "a").write_text("old")

    def work() -> None:
        told: list[list[str]] = []
        full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with HostFilesystem(root, git_dir=history) as files:
            stop = files.subscribe_changes(lambda found: told.append([each.path for each in found]))
            with SessionRecorder(Session(), history, files) as recorder:
                with patch.object(HistoryStore, "append", full):
                    (root / "a").write_text("mine")
                    files.write("a", "new")
                    files.write("b", "")
                assert "No space left" in str(recorder.problem)
                assert told == [["a"], ["b"]]  # each once
                stop()

    assert ends(in_a_child(work)) == 0
    with (
        HostFilesystem(root, git_dir=history) as files,
        SessionRecorder(Session(), history, files, at=1) as recorder,
    ):
        [(step, paths)] = recorder.saved.items()
    with Timeline(history) as timeline:
        assert paths == ("a",)
        assert timeline.files(step - 1).read("a").content == "mine"
        assert timeline.files(step).read("a").content == "new"


def test_who_did_a_step_is_stored_with_it(tmp_path: Path):
    session, files = Session(), InMemoryFilesystem()
    with SessionRecorder(session, tmp_path / "run", files):
        session.dispatch(ToolInvoked(tool="read_file"))
        session.dispatch(ToolInvoked(tool="shell", command=CommandOutcome(exit_code=1)))
        session.dispatch(ToolInvoked(tool="edit_file", prompt_name="mcp:editor"))
        files.write("a", "1")
    with SessionRecorder(session, tmp_path / "run", files, at=5, undoes=4):
        pass
    export_history(tmp_path / "run", tmp_path / "run.timeline")
    with Timeline(tmp_path / "run.timeline") as timeline:
        actors = ["person", "tool", "command", "client", "person", "person"]
        assert [each.actor for each in timeline.steps] == actors
        assert [each.undoes for each in timeline.steps] == [None, None, None, None, None, 4]


def test_a_step_that_is_too_large_is_recorded_without_what_takes_most_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(log, "MAX_PAYLOAD", 1024 * 1024)
    session, files = Session(), InMemoryFilesystem()
    with SessionRecorder(session, tmp_path / "run", files) as recorder:
        files.write("a", "1")
        session.dispatch(ConversationStarted((UserMessage("x" * 600_000),), session.session_id))
        session.dispatch(ToolInvoked(tool="read_file", result_message="y" * 600_000))
        files.write("a", "2")
        session.dispatch(ToolInvoked(tool="next", result_message="short"))
        assert recorder.problem is None
    with Timeline(tmp_path / "run") as timeline:
        assert timeline.verify() == []
        large, last = timeline.step(2), timeline.step(3)
        assert large.title.startswith("read_file")
        assert "600" in large.details["too_large"]
        assert [timeline.files(number).read("a").content for number in (2, 3)] == ["1", "2"]
        calls = timeline.sessions(3)[session.session_id].slices[type_name(ToolInvoked)].items
        assert "too_large" in calls[0]
        assert calls[1]["result_message"] == last.details["result_message"] == "short"
        assert "too_large" in timeline.messages(3)[0]
        assert list(last.changed_slices()) == [(session.session_id, type_name(ToolInvoked), 1)]
