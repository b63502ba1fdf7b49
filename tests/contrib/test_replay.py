"""Replay: recorded calls give recorded results, and the first one that does not is named."""

import os
import stat
from pathlib import Path

import pytest

from weakincentives.adapters import (
    CancellationToken,
    Completion,
    RunCancelledError,
    ScriptedAdapter,
    ToolCall,
    UserMessage,
)
from weakincentives.cli.timeline.export import write_directory
from weakincentives.contrib.replay import assert_replays, replay
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.contrib.tools.shell import shell_handlers
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.backend import BaseFilesystem
from weakincentives.history.log import RecordLog
from weakincentives.history.store import SIGNATURE, STEP
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline, export_history
from weakincentives.sandbox import LocalSandbox

RECORDED = sorted((Path(__file__).parent / "timelines").glob("*.timeline"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_session_replays(path: Path):
    assert_replays(path)


def test_there_is_a_recorded_session_in_every_dialect():
    assert {path.stem for path in RECORDED} == set(DIALECTS)


class Greeting:
    """A tool of somebody's own, whose result and file can be changed."""

    def __init__(self, text: str = "hello", content: str = "hi\n") -> None:
        self.text = text
        self.content = content

    def greet(self, params: None, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        context.filesystem.write("greeting.txt", self.content)
        return ToolResult(message=self.text, value=None)

    def prompt(self, files: BaseFilesystem, session: Session) -> Prompt[None]:
        tool = Tool[None, None](name="greet", description="Greets.", handler=self.greet)
        workspace = FilesystemSection(filesystem=files, session=session)
        greeting = MarkdownSection[None](title="Greeting", template="Greet.", tools=[tool])
        return Prompt[None](ns="t", key="t", sections=[workspace, greeting])


def record_greeting(path: Path, *calls: ToolCall) -> Path:
    files, session = InMemoryFilesystem(), Session()
    steps = [Completion(tool_calls=(call,)) for call in (*calls, ToolCall("greet"))]
    with SessionRecorder(session, path, files):
        ScriptedAdapter([*steps, "Done."]).evaluate(
            Greeting().prompt(files, session), session=session, messages=[UserMessage("hi")]
        )
    return path


def test_a_changed_result_is_named_at_its_step(tmp_path: Path):
    path = record_greeting(tmp_path / "x.timeline", ToolCall("ls", {}))
    assert_replays(path, create_prompt=Greeting().prompt)
    found = replay(path, create_prompt=Greeting(text="good day").prompt).difference
    assert found is not None
    assert (found.step, found.what) == (6, "result")
    assert "-hello\n+good day" in found.text
    with pytest.raises(
        AssertionError, match=r"Step 6, greet greeting.txt: the result is not the recorded one"
    ):
        assert_replays(path, create_prompt=Greeting(text="good day").prompt)


def test_a_changed_file_is_named_at_its_step(tmp_path: Path):
    path = record_greeting(tmp_path / "x.timeline", ToolCall("ls", {}))
    found = replay(path, create_prompt=Greeting(content="ho\n").prompt).difference
    assert found is not None
    assert (found.step, found.what) == (6, "files")
    assert "-hi\n+ho" in found.text


def test_a_timeline_without_calls_proves_nothing(tmp_path: Path):
    path = tmp_path / "x.timeline"
    with SessionRecorder(Session(), path, InMemoryFilesystem()):
        pass
    with pytest.raises(AssertionError, match="no step could be replayed"):
        assert_replays(path)


def test_the_files_start_as_they_were_at_each_prompt(tmp_path: Path):
    files, session = InMemoryFilesystem(), Session()
    path = tmp_path / "x.timeline"
    read = Completion(tool_calls=(ToolCall("read_file", {"file_path": "a.txt"}),))
    section = FilesystemSection(filesystem=files, session=session)
    prompt = Prompt[None](ns="t", key="t", sections=[section])
    with SessionRecorder(session, path, files):
        for content in ("one\n", "two\n"):  # changed by somebody else, between two runs
            files.write("a.txt", content)
            ScriptedAdapter([read, "Done."]).evaluate(
                prompt, session=session, messages=[UserMessage("read")]
            )
    assert_replays(path)


def record_commands(tmp_path: Path, *scripts: str) -> Path:
    root, session = tmp_path / "recorded", Session()
    root.mkdir()
    path = tmp_path / "x.timeline"
    calls = [ToolCall("shell_execute", {"command": ["sh", "-c", each]}) for each in scripts]
    steps = [Completion(tool_calls=(call,)) for call in calls]
    with HostFilesystem(root) as files, LocalSandbox(files) as sandbox:
        section = FilesystemSection(
            filesystem=files, session=session, extra_handlers=shell_handlers(sandbox)
        )
        prompt = Prompt[None](ns="t", key="t", sections=[section])
        with SessionRecorder(session, path, files):
            ScriptedAdapter([*steps, "Done."]).evaluate(
                prompt, session=session, messages=[UserMessage("run")]
            )
    return path


def test_commands_run_again_and_what_always_differs_is_normalized(tmp_path: Path):
    path = record_commands(tmp_path, "pwd; date; date +%T; echo took 1.$$ s > out; cat out; rm out")
    report = replay(path, sandbox="local")
    assert report.difference is None
    assert len(report.replayed) == 1


def test_a_command_that_writes_something_else_is_named(tmp_path: Path):
    path = record_commands(tmp_path, "date +%N > number")
    found = replay(path, sandbox="local").difference
    assert found is not None
    assert found.what == "files"
    assert "number" in found.text


def test_without_a_sandbox_commands_are_skipped_and_their_files_are_the_recorded_ones(
    tmp_path: Path,
):
    root, session, path = tmp_path / "recorded", Session(), tmp_path / "x.timeline"
    root.mkdir()
    command = ToolCall("shell_execute", {"command": ["sh", "-c", "echo made > made.txt"]})
    read = ToolCall("read_file", {"file_path": "made.txt"})
    with HostFilesystem(root) as files, LocalSandbox(files) as sandbox:
        section = FilesystemSection(
            filesystem=files, session=session, extra_handlers=shell_handlers(sandbox)
        )
        prompt = Prompt[None](ns="t", key="t", sections=[section])
        steps = [Completion(tool_calls=(call,)) for call in (command, read)]
        with SessionRecorder(session, path, files):
            ScriptedAdapter([*steps, "Done."]).evaluate(
                prompt, session=session, messages=[UserMessage("run")]
            )
    report = replay(path)
    assert (report.skipped, report.replayed, report.difference) == ((4,), (6,), None)


def test_a_call_that_was_interrupted_is_not_run_to_its_end(tmp_path: Path):
    cancellation, replaying = CancellationToken(), tmp_path / "replaying"

    class Tools:
        def stop(self, params: None, *, context: ToolContext) -> ToolResult[None]:
            assert not replaying.exists()
            assert context.filesystem is not None
            context.filesystem.write("half.txt", "half")
            cancellation.cancel("by the user")
            cancellation.check("Tool call 'stop'")
            raise AssertionError

        def prompt(self, files: BaseFilesystem, session: Session) -> Prompt[None]:
            tools = [Tool[None, None](name="stop", description="Stops.", handler=self.stop)]
            sections = [
                FilesystemSection(filesystem=files, session=session),
                MarkdownSection(title="Tools", key="tools", template="Use them.", tools=tools),
            ]
            return Prompt[None](ns="t", key="t", sections=sections)

    files, session = InMemoryFilesystem(), Session()
    steps = [
        ToolCall("write_file", {"file_path": "a.txt", "content": "a"}),
        ToolCall("stop", {}),
    ]
    model = ScriptedAdapter([Completion(tool_calls=(each,)) for each in steps])
    with SessionRecorder(session, tmp_path / "run", files), pytest.raises(RunCancelledError):
        model.evaluate(Tools().prompt(files, session), session=session, cancellation=cancellation)
    replaying.touch()
    report = replay(tmp_path / "run", create_prompt=Tools().prompt)
    assert (report.replayed, report.skipped, report.interrupted) == ((4,), (6,), (6,))
    assert (report.difference, report.problem) == (None, None)


def test_a_replay_changes_neither_the_timeline_nor_the_workspace(tmp_path: Path):
    path = record_commands(tmp_path, "echo made > made.txt")
    before = (path / "steps").read_bytes()
    (tmp_path / "recorded" / "made.txt").unlink()
    assert_replays(path, sandbox="local")
    assert (path / "steps").read_bytes() == before
    assert not (tmp_path / "recorded" / "made.txt").exists()
    with Timeline(path) as timeline:
        assert timeline.problem is None


def test_a_recording_that_was_cut_off_is_never_all_the_same(tmp_path: Path):
    recorded = RECORDED[0].read_bytes()
    path = tmp_path / "cut.timeline"
    with Timeline(RECORDED[0]) as timeline:
        steps = len(timeline.steps)
    for size in range(len(recorded) - 1, len(recorded) - 2_000, -97):
        path.write_bytes(recorded[:size])
        report = replay(path)
        assert report.difference is None
        assert report.problem is not None
        with Timeline(path) as timeline:
            assert f"{len(timeline.steps)} steps are intact" in report.problem
            assert len(timeline.steps) <= steps
        with pytest.raises(AssertionError, match="steps are intact"):
            assert_replays(path)


def test_a_recording_that_was_killed_says_where_it_ends(tmp_path: Path):
    path = record_commands(tmp_path, "true", "false")
    with Timeline(path) as timeline:
        ends = [each.number for each in timeline.steps if each.kind == "end"]
        last = timeline.step(ends[0] - 1)
    with RecordLog(path / "steps", SIGNATURE, read_only=True) as log:
        offsets = [each.offset for each in log.read_new() if each.kind == STEP]
    os.truncate(path / "steps", offsets[ends[0] - 1])
    report = replay(path)
    problem = f"The recording ends at step {last.number}, {last.title}, before the run did"
    assert report.problem == problem


def test_a_directory_mode_that_a_command_changes_is_recorded_and_restored(tmp_path: Path):
    command = "mkdir -p a/b; chmod 700 a/b; mkdir old; chmod 750 old; touch old/x"
    path = record_commands(tmp_path, command, "chmod 2711 old; chmod 755 a/b")
    with Timeline(path) as timeline:
        first, second = (each.number for each in timeline.steps if each.kind == "tool")
        found = [
            {name: timeline.files(number).stat(name).permissions for name in ("a/b", "old")}
            for number in (first, second)
        ]
        assert found == [{"a/b": 0o700, "old": 0o750}, {"a/b": 0o755, "old": 0o2711}]
        assert timeline.step(second).paths == ("a/b", "old")
        assert timeline.verify() == []
        write_directory(timeline.files(first), tmp_path / "first")
        write_directory(timeline.files(second), tmp_path / "second")
    modes = [stat.S_IMODE((tmp_path / each / "old").stat().st_mode) for each in ("first", "second")]
    assert modes == [0o750, 0o711], "a recording set the set-group-ID bit"
    assert stat.S_IMODE((tmp_path / "first" / "a/b").stat().st_mode) == 0o700


def test_nothing_that_a_recording_has_becomes_set_user_id(tmp_path: Path):
    root, path = tmp_path / "root", tmp_path / "history"
    root.mkdir()
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o6755)
    (root / "shared").mkdir()
    (root / "shared").chmod(0o3777)
    with (
        HostFilesystem(root, git_dir=path) as files,
        SessionRecorder(Session(), path, files, base=files.snapshot()),
    ):
        pass
    export_history(path, tmp_path / "sent.timeline")
    for source in (path, tmp_path / "sent.timeline"):
        with Timeline(source) as timeline:
            assert timeline.files(1).stat("program").permissions == 0o6755
            target = tmp_path / f"from-{source.name}"
            write_directory(timeline.files(1), target)
        assert stat.S_IMODE((target / "program").stat().st_mode) == 0o755
        assert stat.S_IMODE((target / "shared").stat().st_mode) == 0o1777
