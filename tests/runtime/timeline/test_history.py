"""A history with the snapshots of its workspace, and the file that is made of it to be sent."""

import errno
import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.sizes import size
from weakincentives.adapters import UserMessage
from weakincentives.adapters.events import ModelResponded
from weakincentives.filesystem import (
    Content,
    HostFilesystem,
    Limits,
    PermissionsChanged,
    ReadableFilesystem,
    StateReplaced,
)
from weakincentives.filesystem.base import State
from weakincentives.filesystem.host import select_tree
from weakincentives.filesystem.reproducible import ReproducibleFiles
from weakincentives.history.log import RecordLog
from weakincentives.history.store import END, INDEX, PACK, PIECE_SIZE, SIGNATURE, STEP
from weakincentives.runtime import (
    ConversationStarted,
    PromptRendered,
    ToolInvoked,
)
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import (
    SessionRecorder,
    Timeline,
    TimelineError,
    export_history,
)
from weakincentives.runtime.timeline import files as files_module

LARGE = 2_500_000
Recorded = tuple[bytes, list[Mapping[str, object]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the directory that has the snapshots too."""
    return tmp_path / "git"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return tmp_path / "run.timeline"


def size_of(path: Path) -> int:
    """Return the bytes of all files in a directory."""
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with everything that a workspace can have."""
    root = tmp_path / "root"
    (root / "src/deep/er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "src/app.py").write_text("print(1)\n" * 200)
    (root / "src/run.sh").write_text("#!/bin/sh\n")
    (root / "src/run.sh").chmod(0o750)
    (root / "src/deep/er/caf\u00e9.txt").write_text("x\n")
    (root / "src/same.txt").write_text("x\n")
    (root / "nothing.txt").write_text("")
    (root / "src/link").symlink_to("app.py")
    (root / "large.bin").write_bytes(random.Random(1).randbytes(LARGE))
    return root


@pytest.fixture
def files(root: Path, tmp_path: Path) -> Iterator[HostFilesystem]:
    limits = Limits(max_write_length=10_000_000)
    with HostFilesystem(root, git_dir=tmp_path / "git", limits=limits) as filesystem:
        yield filesystem


def record(
    files: HostFilesystem, path: Path, session: Session, *, derived: bool = False
) -> SessionRecorder:
    leave_out = ReproducibleFiles(files) if derived else None
    return SessionRecorder(session, path, files, base=files.snapshot(), leave_out=leave_out)


def call(session: Session) -> None:
    session.dispatch(ToolInvoked(tool="t", paths=()))


def state_of(files: ReadableFilesystem) -> dict[str, object]:
    found: dict[str, object] = {}
    pending = ["."]
    while pending:
        for each in files.list(pending.pop()):
            stat = files.stat(each.path)
            content = files.read_bytes(each.path, limit=-1).content if each.is_file else None
            digest = files.content_hash(each.path) if each.is_file else None
            facts = (stat.kind, stat.size_bytes, stat.permissions, stat.link_target)
            found[each.path] = (*facts, content, digest, stat.content_hash)
            if each.is_directory:
                pending.append(each.path)
    return found


def test_every_step_has_its_files(files: HostFilesystem, path: Path):
    session, states = Session(), [state_of(files)]
    with record(files, path, session) as recording:
        assert recording.last == 1
        for change in (
            lambda: files.write("src/app.py", "print(1)\n" * 100 + "print(2)\n" * 100),
            lambda: files.write_bytes("large.bin", _edited(files)),
            lambda: files.write("src/new.txt", "x\n"),
            lambda: files.move("src/deep", "src/moved"),
            lambda: files.write("src/app.py", "print(1)\n" * 200),
            lambda: files.delete("src", recursive=True),
            lambda: files.write("nothing.txt", "something"),
        ):
            change()
            call(session)
            states.append(state_of(files))
    with Timeline(path) as timeline:
        assert (timeline.problem, timeline.verify()) == (None, [])
        for number, state in enumerate(states, start=1):
            assert state_of(timeline.files(number)) == state, number


def _edited(files: HostFilesystem) -> bytes:
    data = bytearray(files.read_bytes("large.bin", limit=-1).content)
    data[LARGE // 2] ^= 1
    return bytes(data)


def test_content_of_the_base_is_not_stored_again(files: HostFilesystem, path: Path):
    session = Session()
    with record(files, path, session):
        files.move("large.bin", "moved.bin")
        call(session)
        size = size_of(path)
        files.write_bytes("again.bin", files.read_bytes("moved.bin", limit=-1).content)
        call(session)
    assert size_of(path) - size < 10_000


def test_a_small_file_that_is_moved_is_not_stored_again(
    files: HostFilesystem, path: Path, root: Path
):
    (root / "small.bin").write_bytes(random.Random(5).randbytes(100_000))
    session = Session()
    with record(files, path, session):
        size = size_of(path)
        files.move("small.bin", "moved.bin")
        call(session)
    assert size_of(path) - size < 10_000


def test_no_file_is_read_to_record_a_snapshot(
    files: HostFilesystem, path: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshot = files.snapshot()

    def fail(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(files, "_open", fail)
    monkeypatch.setattr(files, "_contents", fail)
    with SessionRecorder(Session(), path, files, base=snapshot):
        pass
    with Timeline(path) as timeline:
        assert timeline.files(1).read("src/same.txt").content == "x\n"


# --- undone ---


def test_an_undo_is_recorded_without_a_walk(
    files: HostFilesystem, path: Path, monkeypatch: pytest.MonkeyPatch
):
    session = Session()
    with record(files, path, session):
        before, start = files.snapshot(), state_of(files)
        files.write("src/app.py", "new")
        files.write("new/file.txt", "new")
        after = files.snapshot()
        call(session)
        files.restore(before, expect=after)
        listed: list[str] = []
        scan = files._scan

        def note(directory: str, read: Callable[..., Any]) -> Any:
            listed.append(directory)
            return scan(directory, read)

        with monkeypatch.context() as patch:
            patch.setattr(files, "_scan", note)
            call(session)
        assert listed == []
    with Timeline(path) as timeline:
        assert timeline.step(3).paths == ("new", "new/file.txt", "src/app.py")
        assert state_of(timeline.files(3)) == start


def test_an_undo_of_what_somebody_put_back_is_recorded(
    files: HostFilesystem, path: Path, root: Path
):
    session = Session()
    with record(files, path, session):
        before, start = files.snapshot(), state_of(files)
        files.write("src/same.txt", "new")
        files.write("nothing.txt", "new")
        after = files.snapshot()
        call(session)
        (root / "nothing.txt").write_text("")
        files.restore(before, expect=after)
        call(session)
    with Timeline(path) as timeline:
        assert state_of(timeline.files(3)) == start


def test_every_undo_has_its_files(files: HostFilesystem, path: Path, root: Path):
    chance, session = random.Random(11), Session()
    names = [each.relative_to(root).as_posix() for each in sorted(root.rglob("*"))]
    states = [state_of(files)]
    with record(files, path, session):
        for _ in range(25):
            before = files.snapshot()
            for _ in range(chance.randrange(1, 4)):
                _change(files, session, chance, chance.choice(names))
            after = files.snapshot()
            call(session)
            states.append(state_of(files))
            files.restore(before, expect=after)
            if chance.randrange(2):
                _change(files, session, chance, chance.choice(names))
            call(session)
            states.append(state_of(files))
    with Timeline(path) as timeline:
        assert timeline.verify() == []
        for number, state in enumerate(states, start=1):
            assert state_of(timeline.files(number)) == state, number


def _change(files: HostFilesystem, session: Session, chance: random.Random, name: str) -> None:
    try:
        match chance.randrange(4):
            case 0:
                files.write(name, "x" * chance.randrange(50))
            case 1:
                files.delete(name, recursive=True)
            case 2:
                files.move(name, f"moved-{chance.randrange(9)}")
            case _:  # as a command does
                before, mode = files.stat(name).permissions, chance.choice([0o700, 0o750])
                Path(files.root, name).chmod(mode, follow_symlinks=False)
                files.invalidate()
                session.dispatch(PermissionsChanged(name, before, mode))
    except (OSError, NotImplementedError):
        return  # some are impossible; what counts is the state afterwards


# --- what is left out ---


@pytest.fixture
def cluttered(root: Path) -> Path:
    (root / ".gitignore").write_text("*.key\n/src/out/\n")
    (root / "src/out").mkdir()
    (root / "src/out/secret-name.txt").write_text("secret content in a directory\n" * 20)
    (root / "server.key").write_text("secret content of a key\n" * 20)
    (root / "copy.txt").write_text("shared content\n" * 20)
    (root / "copy.key").write_text("shared content\n" * 20)
    (root / "server.key").chmod(0o600)
    return root


def test_what_is_left_out_is_not_in_the_exported_file(
    cluttered: Path, files: HostFilesystem, path: Path, exported: Path
):
    session = Session()
    with record(files, path, session, derived=True):
        (cluttered / "later.key").write_text("secret content that comes later\n")
        files.write("src/new.txt", "new")
        files.invalidate()
        call(session)
    export_history(path, exported)
    with Timeline(exported) as timeline:
        assert timeline.verify() == []
        known: set[str] = set()
        ids = [each for step in timeline.steps for each in timeline.object_ids(step.number, known)]
        contents = [timeline.objects.read(each)[1] for each in ids]
        seen = timeline.files(2)
        assert not any(map(seen.exists, ("server.key", "copy.key", "src/out", "later.key")))
        assert seen.read("copy.txt").content.startswith("shared")
        assert timeline.files(1).read("copy.txt").content.startswith("shared")
    assert not any(b"secret" in each or b"server.key" in each for each in contents)
    with RecordLog(exported, SIGNATURE, read_only=True) as log:
        records = list(log.read_new())
        pack = b"".join(each.payload for each in records if each.kind == PACK)
        index = b"".join(each.payload for each in records if each.kind == INDEX)
    assert struct.unpack_from(">I", index, 8 + 255 * 4)[0] == len(ids), "more than the steps need"
    assert struct.unpack_from(">I", pack, 8)[0] == len(ids)
    steps = b"".join(each.payload for each in records if each.kind == STEP)
    assert b"key" not in steps.replace(b"prompt_key", b"")


def test_an_ignored_file_is_recorded_once_a_tool_writes_it(
    cluttered: Path, files: HostFilesystem, path: Path
):
    session = Session()
    with record(files, path, session, derived=True):
        files.write("server.key", "new\n")
        call(session)
    with Timeline(path) as timeline:
        assert timeline.files(2).read("server.key").content == "new\n"
        assert not timeline.files(2).exists("copy.key")


# --- one file ---


@pytest.fixture
def recorded(tmp_path: Path, exported: Path) -> Recorded:
    """Return the bytes of an exported history of six steps, and the state after each."""
    root = tmp_path / "small"
    root.mkdir()
    for number in range(5):
        (root / f"{number}.txt").write_text(f"{number}\n" * 50)
    states: list[Mapping[str, object]] = []
    session = Session()
    with (
        HostFilesystem(root, git_dir=tmp_path / "small-git") as files,
        record(files, tmp_path / "small-git", session),
    ):
        states.append(state_of(files))
        for number in range(5):
            files.write(f"{number}.txt", f"{number}\n" * 40 + "x\n")
            call(session)
            states.append(state_of(files))
    export_history(tmp_path / "small-git", exported)
    return exported.read_bytes(), states


def test_an_exported_history_has_every_step(recorded: Recorded, exported: Path):
    _, states = recorded
    with Timeline(exported) as timeline:
        assert (timeline.problem, timeline.verify()) == (None, [])
        assert not timeline.is_recording
        for number, state in enumerate(states, start=1):
            assert state_of(timeline.files(number)) == state
        assert len(timeline.session(6)[ToolInvoked].all()) == 5
    with pytest.raises(FileExistsError):
        export_history(exported, exported)
    with pytest.raises(TimelineError, match="cannot be continued"):
        SessionRecorder(Session(), exported, at=1)


def test_an_exported_history_cut_off_anywhere_has_its_whole_steps(
    recorded: Recorded, exported: Path
):
    data, states = recorded
    seen = set()
    for length in range(16, len(data), 7):
        exported.write_bytes(data[:length])
        try:
            timeline = Timeline(exported)
        except TimelineError as error:
            assert "empty or damaged" in str(error) or "Not a timeline" in str(error)
            continue
        with timeline:
            seen.add(len(timeline.steps))
            assert (
                "not a whole record" in (problem := timeline.problem or "") or "cut off" in problem
            )
            for number in range(1, len(timeline.steps) + 1):
                assert state_of(timeline.files(number)) == states[number - 1]
    assert seen == set(range(7))


def test_a_file_that_ends_between_two_records_is_cut_off_too(recorded: Recorded, exported: Path):
    data, _ = recorded
    with RecordLog(exported, SIGNATURE, read_only=True) as log:
        ends = [each.offset for each in log.read_new() if each.kind in {STEP, END}]
    for end in ends:
        exported.write_bytes(data[:end])
        with Timeline(exported) as timeline:
            assert "cut off" in (timeline.problem or "")
            assert f"{ends.index(end)} steps are intact" in (timeline.problem or "")


def test_a_flipped_bit_is_never_taken_for_data(recorded: Recorded, exported: Path):
    data, states = recorded
    opened = 0
    for place in range(16, len(data), size(19, 7)):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        exported.write_bytes(broken)
        try:
            with Timeline(exported) as timeline:
                assert timeline.verify() != []
                opened += 1
                for step in timeline.steps:
                    assert state_of(timeline.files(step.number)) == states[step.number - 1]
        except TimelineError as error:
            assert str(exported) in str(error) or "byte" in str(error)
    assert opened > size(35, 100)


# --- continued, or of another kind ---


def test_snapshots_can_be_pruned_and_the_steps_stay(files: HostFilesystem, path: Path, root: Path):
    session = Session()
    with record(files, path, session):
        files.write("src/new.txt", "1")
        files.write_bytes("huge.bin", random.Random(4).randbytes(LARGE))
        call(session)
        files.delete("large.bin")
        files.history.prune(keep=0)
        files.history.gc()
    with Timeline(path) as timeline:
        assert timeline.verify() == []
        assert timeline.files(2).stat("huge.bin").size_bytes == LARGE
        assert timeline.files(1).stat("large.bin").size_bytes == LARGE


def test_a_recording_with_a_base_continues(files: HostFilesystem, path: Path):
    session = Session()
    with record(files, path, session):
        files.write("src/new.txt", "1")
        call(session)
    files.write("src/other.txt", "2")
    with SessionRecorder(session, path, files, at=2):
        files.write_bytes("large.bin", _edited(files))
        call(session)
    with Timeline(path) as timeline:
        assert timeline.step(3).paths == ("src/other.txt",)
        assert state_of(timeline.files(timeline.last)) == state_of(files)
    with SessionRecorder(session, path, files, at=1):
        assert (files.exists("src/new.txt"), recorder_paths(path)) == (
            True,
            ("large.bin", "src/new.txt", "src/other.txt"),
        )


def test_a_recording_that_continues_reads_only_what_changed(
    files: HostFilesystem, root: Path, path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = ["large.bin", "nothing.txt", "src/app.py", "src/deep/er/caf\u00e9.txt", "src/run.sh"]
    while None in State(files).known_ids(names):  # a file must be a moment old for that
        files.snapshot()
    session = Session()
    with record(files, path, session):
        files.write("src/new.txt", "1")
        call(session)
    (root / "src/same.txt").write_text("y\n")  # of the same size
    opened: set[str] = set()
    open_file = files._open

    def note(name: str) -> Content:
        opened.add(name)
        return open_file(name)

    monkeypatch.setattr(files, "_open", note)
    with SessionRecorder(session, path, files, at=2):
        pass
    assert opened == {"src/new.txt", "src/same.txt"}
    with Timeline(path) as timeline:
        assert timeline.step(3).paths == ("src/same.txt",)
        assert timeline.files(3).read("src/same.txt").content == "y\n"


def recorder_paths(path: Path) -> tuple[str, ...]:
    with Timeline(path) as timeline:
        return timeline.step(timeline.last).paths


def test_a_pack_of_several_records_is_read_across_them(root: Path, path: Path, exported: Path):
    (root / "huge.bin").write_bytes(random.Random(2).randbytes(PIECE_SIZE + LARGE))
    with HostFilesystem(root, git_dir=path) as files:
        with record(files, path, Session()):
            pass
        export_history(path, exported)
        with Timeline(exported) as timeline:
            assert timeline.verify() == []
            assert timeline.files(1).content_hash("huge.bin") == files.content_hash("huge.bin")


def test_a_history_elsewhere_has_its_own_files(files: HostFilesystem, tmp_path: Path):
    path, session = tmp_path / "elsewhere", Session()
    with record(files, path, session):
        files.write("src/new.txt", "1")
        call(session)
        state = state_of(files)
    files.cleanup()
    with Timeline(path) as timeline:
        assert timeline.verify() == []
        assert state_of(timeline.files(2)) == state


def test_the_mode_of_a_directory_belongs_to_a_step(files: HostFilesystem, path: Path, root: Path):
    session = Session()
    with record(files, path, session):
        (root / "src").chmod(0o700)
        (root / "empty").chmod(0o2770)
        files.invalidate()
        session.dispatch(StateReplaced("restore", "r"))
        call(session)
        (root / "empty").chmod(0o755)
        session.dispatch(StateReplaced("restore", "r"))
        call(session)
    with Timeline(path) as timeline:
        found = [timeline.files(number).stat("src").permissions for number in (1, 2, 3)]
        assert found == [0o755, 0o700, 0o700]
        found = [timeline.files(number).stat("empty").permissions for number in (1, 2, 3)]
        assert found == [0o755, 0o2770, 0o755]
        assert timeline.step(2).paths == ("empty", "src")
        assert [each.before.mode for each in timeline.step(2).files] == [0o755, 0o755]


# --- a recording that begins in the background ---


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Return an event that a recording waits for before it writes its base."""
    gate = Event()

    def wait(*arguments: Any) -> str:
        assert gate.wait(60)
        return select_tree(*arguments)

    monkeypatch.setattr(files_module, "select_tree", wait)
    yield gate
    gate.set()


def begin(files: HostFilesystem, path: Path, session: Session) -> SessionRecorder:
    return SessionRecorder(session, path, files, base=files.snapshot(), wait=False)


def test_a_prompt_does_not_wait_for_the_first_step(files: HostFilesystem, path: Path, gate: Event):
    session, before = Session(), state_of(files)
    with begin(files, path, session):
        session.dispatch(ConversationStarted((UserMessage("hello"),), session.session_id))
        session.dispatch(PromptRendered(prompt_ns="a", prompt_key="b"))
        with Timeline(path) as timeline:
            assert timeline.steps == ()
        gate.set()
        files.write("src/new.txt", "new")
        call(session)
    with Timeline(path) as timeline:
        assert [each.kind for each in timeline.steps] == ["start", "prompt", "tool"]
        assert [len(timeline.messages(number)) for number in (1, 2, 3)] == [0, 1, 1]
        assert [len(timeline.session(n)[ToolInvoked].all()) for n in (1, 2, 3)] == [0, 0, 1]
        assert state_of(timeline.files(2)) == before
        assert timeline.step(3).paths == ("src/new.txt",)


@pytest.mark.parametrize("event", ["file", "answer", "step", "close"])
def test_everything_else_waits_for_the_first_step(
    files: HostFilesystem, path: Path, gate: Event, event: str
):
    session = Session()
    recording = begin(files, path, session)
    actions: dict[str, Callable[[], object]] = {
        "file": lambda: files.write("src/new.txt", "new"),
        # what somebody has seen of an answer must not be lost
        "answer": lambda: session.dispatch(
            ModelResponded(prompt_name="p", adapter="scripted", model="m", step=1)
        ),
        "step": lambda: call(session),
        "close": recording.close,
    }
    thread = Thread(target=actions[event])
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    gate.set()
    thread.join(60)
    assert not thread.is_alive()
    recording.close()
    with Timeline(path) as timeline:
        assert timeline.step(1).kind == "start"
        assert not timeline.files(1).exists("src/new.txt")


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (ZeroDivisionError("a bug"), "a bug"),
    ],
)
def test_a_first_step_that_cannot_be_written_ends_the_recording_only(
    files: HostFilesystem,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    fact: str,
):
    def fail(*_: object) -> str:
        raise error

    monkeypatch.setattr(files_module, "select_tree", fail)
    session = Session()
    with begin(files, path, session) as recording:
        call(session)
        files.write("src/new.txt", "new")
        call(session)
    assert recording.problem == f"Recording stopped after step 0: {fact}"
    assert len(session[ToolInvoked].all()) == 2
    assert recording.last == 0
