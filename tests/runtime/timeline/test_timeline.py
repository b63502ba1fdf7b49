"""Timelines: every step can be read back, whatever changed and however the recording ended."""

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import pytest

from tests.sizes import size
from weakincentives.filesystem import (
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
    ReadableFilesystem,
    diff,
)
from weakincentives.history import StepRecord
from weakincentives.history.log import RecordLog
from weakincentives.history.steps import Delta
from weakincentives.history.store import HEADER, SIGNATURE, STEP, encode_step
from weakincentives.runtime import (
    ConversationStarted,
    MessageAdded,
    PromptExecuted,
    PromptRendered,
    ToolInvoked,
    transaction,
)
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import (
    SessionRecorder,
    Timeline,
    TimelineError,
    TimelineHeader,
)
from weakincentives.serde import encode

DATE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Note:
    text: str


Files: TypeAlias = InMemoryFilesystem | HostFilesystem
LIMITS = Limits(max_write_length=10_000_000)


@pytest.fixture(params=["memory", "host"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "memory":
        yield InMemoryFilesystem(limits=LIMITS)
        return
    root = tmp_path / "root"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "git", limits=LIMITS) as filesystem:
        yield filesystem


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def log(path: Path) -> Path:
    """Return the file with the steps."""
    return path / "steps"


def state_of(filesystem: ReadableFilesystem) -> dict[str, tuple[object, ...]]:
    """Return everything that a step must keep, by path."""
    found: dict[str, tuple[object, ...]] = {}
    pending = ["."]
    while pending:
        for entry in filesystem.list(pending.pop()):
            stat = filesystem.stat(entry.path)
            data = filesystem.read_bytes(entry.path).content if stat.is_file else None
            mode = None if stat.is_symlink else stat.permissions
            found[entry.path] = (stat.kind, mode, stat.link_target, data)
            if stat.is_directory:
                pending.append(entry.path)
    return found


def call(session: Session, tool: str = "write_file", **details: object) -> None:
    session.dispatch(ToolInvoked(tool=tool, **details))  # pyright: ignore[reportArgumentType]


def test_every_step_has_the_files_of_its_moment(files: Files, path: Path):
    session = Session()
    files.write("kept.txt", "kept\n")
    files.write("a/b/deep.txt", "old\n")
    states = []
    with SessionRecorder(session, path, files):
        states.append(state_of(files))
        files.write("a/b/deep.txt", "new\n")
        call(session)
        states.append(state_of(files))
        files.delete("a", recursive=True)
        call(session, "rm")
        states.append(state_of(files))
        files.write("a", "a file where a directory was")
        files.mkdir("empty/inner")
        call(session)
        states.append(state_of(files))
        files.move("empty", "moved")
        files.write_bytes("moved/data.bin", bytes(range(256)) * 9000)
        call(session)
        states.append(state_of(files))
    with Timeline(path) as timeline:
        assert timeline.problem is None
        assert [each.kind for each in timeline.steps] == ["start", "tool", "tool", "tool", "tool"]
        assert [state_of(timeline.files(number)) for number in range(1, 6)] == states
        assert timeline.verify() == []


def test_a_rolled_back_call_is_a_step_without_changes(files: Files, path: Path):
    session = Session()
    files.write("a.txt", "old")
    with SessionRecorder(session, path, files):
        with transaction(session, files) as step:
            files.write("a.txt", "new")
            files.write("b/c.txt", "new")
            step.rollback()
        call(session, success=False, error="refused")
    with Timeline(path) as timeline:
        assert not timeline.step(2).files
        assert not timeline.step(2).success
        assert state_of(timeline.files(2)) == state_of(files)


def test_restoring_a_snapshot_is_recorded(files: Files, path: Path):
    session = Session()
    files.write("a.txt", "one")
    files.write("d/b.txt", "two")
    with SessionRecorder(session, path, files):
        snapshot = files.snapshot()
        files.write("a.txt", "six")
        files.delete("d", recursive=True)
        call(session)
        files.restore(snapshot)
        call(session, "undo")
    with Timeline(path) as timeline:
        assert state_of(timeline.files(3)) == state_of(files)
        assert state_of(timeline.files(1)) == state_of(files)
        assert set(timeline.step(3).paths) == {"a.txt", "d", "d/b.txt"}


def test_random_changes_are_recorded(files: Files, path: Path):
    chance = random.Random(7)
    session = Session()
    names = ["a", "b", "c/d", "c/e", "f/g/h", "f/g/i"]
    expected = []
    with SessionRecorder(session, path, files, durable=False):
        expected.append(state_of(files))
        for _ in range(60):
            for _ in range(chance.randrange(3)):
                change(files, chance, names)
            call(session)
            expected.append(state_of(files))
    with Timeline(path) as timeline:
        numbers = list(range(1, 62))
        chance.shuffle(numbers)
        for number in numbers:
            assert state_of(timeline.files(number)) == expected[number - 1]


def change(files: Files, chance: random.Random, names: list[str]) -> None:
    name = chance.choice(names)
    try:
        match chance.randrange(4):
            case 0:
                files.write(name, "x" * chance.randrange(5000) + "\n")
            case 1:
                files.write(name, "line\n" * 50, mode="append")
            case 2:
                files.delete(chance.choice([name, name.split("/")[0]]), recursive=True)
            case _:
                files.move(name, chance.choice(names))
    except OSError:
        return  # some are impossible; what counts is the state afterwards


def test_a_file_larger_than_a_chunk_is_kept(path: Path):
    files = InMemoryFilesystem(limits=LIMITS)
    data = random.Random(3).randbytes(2_500_000)
    files.write_bytes("large.bin", data)
    with SessionRecorder(Session(), path, files):
        pass
    with Timeline(path) as timeline:
        view = timeline.files(1)
        assert view.read_bytes("large.bin", limit=len(data)).content == data
        assert (
            view.read_bytes("large.bin", offset=1_048_570, limit=12).content
            == (data[1_048_570:1_048_582])
        )


def test_slices_and_messages_are_those_of_the_step(path: Path):
    session = Session()
    child = Session(parent=session, tags={"role": "helper"})
    with SessionRecorder(session, path):
        session.dispatch(ConversationStarted(({"role": "user", "text": "hi"},), session.session_id))
        session[Note].append(Note("one"))
        session.dispatch(PromptRendered(prompt_ns="a", prompt_key="b"))
        session.dispatch(MessageAdded({"role": "assistant", "text": "hello"}, session.session_id))
        child[Note].append(Note("inner"))
        call(session)
        session[Note].clear()
        session[Note].append(Note("two"))
        session.dispatch(PromptExecuted(prompt_ns="a", prompt_key="b"))
    with Timeline(path) as timeline:
        name = f"{Note.__module__}:Note"

        def notes(number: int) -> list[object]:
            stored = timeline.sessions(number)[session.session_id].slices.get(name)
            return [] if stored is None else list(stored.items)

        assert [notes(number) for number in (1, 2, 3, 4)] == [
            [],
            [{"text": "one"}],
            [{"text": "one"}],
            [{"text": "two"}],
        ]
        assert timeline.sessions(3)[child.session_id].slices[name].items == [{"text": "inner"}]
        assert timeline.sessions(3)[child.session_id].tags == {"role": "helper"}
        assert [len(timeline.messages(number)) for number in (1, 2, 3, 4)] == [0, 1, 2, 2]


def test_a_slice_that_json_cannot_represent_does_not_end_the_recording(path: Path):
    @dataclass(frozen=True)
    class Strange:
        value: object

    session = Session()
    with SessionRecorder(session, path) as recorder:
        session[Strange].append(Strange(object()))
        session[Note].append(Note("fine"))
        call(session)
        assert recorder.problem is None
    with Timeline(path) as timeline:
        stored = timeline.sessions(2)[session.session_id].slices
        (strange,) = (stored[name].items for name in stored if "Strange" in name)
        assert "not_serializable" in strange[0]


def test_a_recording_continues_at_any_step_as_a_branch(files: Files, path: Path):
    session = Session()
    files.write("a.txt", "one\n")
    with SessionRecorder(session, path, files):
        files.write("a.txt", "two\n")
        call(session)
        files.write("a.txt", "three\n")
        call(session)
    files.write("a.txt", "one\n")
    other = Session()
    with SessionRecorder(other, path, files, at=1, branch="again"):
        files.write("a.txt", "zwei\n")
        call(other)
    with Timeline(path) as timeline:
        assert timeline.leaves() == (3, 5)
        assert timeline.children(1) == (2, 4)
        assert timeline.step(4).branch == "again"
        assert timeline.ancestors(5) == [1, 4, 5]
        assert timeline.files(5).read("a.txt").content == "zwei\n"
        assert timeline.files(3).read("a.txt").content == "three\n"
        patch = timeline.diff(3, 5).patch()
        assert "-three" in patch
        assert "+zwei" in patch


def test_two_recordings_continue_one_history_as_branches(files: Files, path: Path):
    first, second = Session(), Session()
    with SessionRecorder(first, path, files) as recorder:
        with pytest.raises(FileExistsError):
            SessionRecorder(Session(), path)
        with SessionRecorder(second, path, at=1, branch="other") as other, Timeline(path) as read:
            assert read.is_recording
            files.write("a.txt", "1")
            call(first)
            call(second)
            assert (other.last, recorder.last) == (4, 3)
    with Timeline(path) as timeline:
        assert not timeline.is_recording
        assert (timeline.problem, timeline.verify()) == (None, [])
        assert [each.parent for each in timeline.steps] == [None, 1, 1, 2]
        assert timeline.branches == {"main": 3, "other": 4}
        assert timeline.files(3).exists("a.txt")
        assert not timeline.files(4).exists("a.txt")


def test_the_history_is_private(path: Path, log: Path):
    SessionRecorder(Session(), path).close()
    assert path.stat().st_mode & 0o777 == 0o700
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def recorded(path: Path, log: Path) -> tuple[bytes, list[Mapping[str, object]]]:
    """Return the bytes of a log of six steps, and the state after each."""
    files, session = InMemoryFilesystem(), Session()
    files.write("a.txt", "0\n" * 100)
    states: list[Mapping[str, object]] = []
    with SessionRecorder(session, path, files):
        states.append(state_of(files))
        for number in range(5):
            files.write("a.txt", f"{number}\n" * 100)
            files.write(f"{number}.txt", f"{number}\n")
            call(session)
            states.append(state_of(files))
    return log.read_bytes(), states


def test_a_log_cut_off_anywhere_has_its_whole_steps(
    recorded: tuple[bytes, list[Mapping[str, object]]], path: Path, log: Path
):
    data, states = recorded
    seen = set()
    for length in range(16, len(data), 7):
        log.write_bytes(data[:length])
        try:
            timeline = Timeline(path)
        except TimelineError as error:
            assert "empty or damaged" in str(error) or "Not a timeline" in str(error)
            continue
        with timeline:
            count = len(timeline.steps)
            seen.add(count)
            assert timeline.problem is None or "not a whole record" in timeline.problem
            for number in range(1, count + 1):
                assert state_of(timeline.files(number)) == states[number - 1]
    assert seen == set(range(6))


def test_a_flipped_bit_is_never_taken_for_data_and_costs_one_step(
    recorded: tuple[bytes, list[Mapping[str, object]]], path: Path, log: Path
):
    data, states = recorded
    opened = 0
    for place in range(16, len(data), size(11, 3)):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        log.write_bytes(broken)
        try:
            timeline = Timeline(path)
        except TimelineError:
            continue
        with timeline:
            assert timeline.verify() != []
            opened += 1
            intact = [step for step in timeline.steps if step.kind != "lost"]
            assert len(intact) >= 5, "more than one step is lost"
            for step in intact:
                try:
                    found = state_of(timeline.files(step.number))
                except TimelineError as error:
                    assert "is lost, and no later one says" in str(error)
                    continue
                assert found == states[step.number - 1]
    assert opened > size(30, 100)


def test_after_a_lost_step_that_changed_no_file_the_files_are_known(path: Path, log: Path):
    files, session = InMemoryFilesystem(), Session()
    with SessionRecorder(session, path, files):
        files.write("a.txt", "1")
        call(session)
        before = log.stat().st_size
        session.dispatch(PromptExecuted(prompt_ns="a", prompt_key="b"))
        size = log.stat().st_size
        files.write("a.txt", "2")
        call(session)
    data = bytearray(log.read_bytes())
    data[(before + size) // 2] ^= 1
    log.write_bytes(data)
    with Timeline(path) as timeline:
        assert [each.kind for each in timeline.steps] == ["start", "tool", "lost", "tool"]
        problem = timeline.problem or ""
        assert "record 3 lost" in problem
        assert "what step 3 did is lost" in problem
        assert "3 steps are intact" in problem
        assert timeline.files(4).read("a.txt").content == "2"
        with pytest.raises(TimelineError, match="of step 4 are not known, because step 3 is lost"):
            timeline.messages(4)


def test_what_a_lost_step_did_is_had_from_later_ones(path: Path, log: Path):
    files, session = InMemoryFilesystem(), Session()
    states: list[Mapping[str, object]] = []
    with SessionRecorder(session, path, files):
        for number in range(8):
            if number in (2, 5):
                files.write("a.txt", f"{number}")
            files.write(f"{number}.txt", "new\n")
            if number == 6:
                files.delete("2.txt")
            call(session)
            states.append(state_of(files))
    data = log.read_bytes()
    lose(log, 4)  # it changed a.txt, which a later step changes, and 2.txt, which one removes
    with Timeline(path) as timeline:
        for number, state in enumerate(states, start=2):
            if number in (4, 5, 6):  # what it wrote was in the lost record
                assert timeline.files(number).read("1.txt").content == "new\n"
                with pytest.raises(TimelineError, match=r"a\.txt: Object is missing"):
                    timeline.entries(number)
            else:
                assert state_of(timeline.files(number)) == state
    log.write_bytes(data)
    lose(log, 6)  # it made 4.txt, which stays
    with Timeline(path) as timeline:
        with pytest.raises(TimelineError, match="step 6 is lost, and no later one says"):
            timeline.files(8)
        assert state_of(timeline.files(5)) == states[3]


def test_a_step_far_behind_the_others_is_damage(path: Path, log: Path):
    with SessionRecorder(Session(), path):
        pass
    far = 10**15
    with RecordLog(log, SIGNATURE) as file:
        file._last[STEP] = far - 1
        file.append(
            STEP, lambda number: encode_step(encode(StepRecord(number, 1, "files", DATE, "")))
        )
    with Timeline(path) as timeline:
        assert timeline.last == 1
        assert f"Step {far} does not follow" in (timeline.problem or "")


def lose(log: Path, number: int) -> None:
    """Damage the record of a step."""
    with RecordLog(log, SIGNATURE, read_only=True) as file:
        offsets = [
            each.offset for each in file.read_new() if (each.kind, each.number) == (STEP, number)
        ]
    data = bytearray(log.read_bytes())
    data[offsets[0] + 60] ^= 255
    log.write_bytes(data)


def test_a_torn_step_is_cut_off_when_the_recording_continues(
    recorded: tuple[bytes, list[Mapping[str, object]]], path: Path, log: Path
):
    data, _ = recorded
    log.write_bytes(data[:-5])
    with Timeline(path) as timeline:
        last = timeline.last
        assert timeline.problem is not None
    files, session = InMemoryFilesystem(), Session()
    with SessionRecorder(session, path, files, at=last):
        files.write("new.txt", "new")
        call(session)
    with Timeline(path) as timeline:
        assert timeline.problem is None
        assert timeline.last == last + 2
        assert state_of(timeline.files(last + 2)) == state_of(files)


def test_a_growing_file_is_followed(path: Path):
    files, session = InMemoryFilesystem(), Session()
    with SessionRecorder(session, path, files), Timeline(path) as timeline:
        assert timeline.refresh() == 0
        files.write("a.txt", "1")
        call(session)
        assert timeline.refresh() == 1
        assert timeline.files(2).read("a.txt").content == "1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Not a timeline"),
        (b"PK\x03\x04", "Not a timeline"),
        (b"wink-steps 9\n" + bytes(16), "version '9'"),
        (SIGNATURE + bytes(16), "empty or damaged"),
        (b"wink-timeline 2\n", "Not a timeline"),
    ],
)
def test_other_files_are_refused(path: Path, content: bytes, message: str):
    path.write_bytes(content)
    with pytest.raises(TimelineError, match=message):
        Timeline(path)


def test_a_pipe_is_refused_and_does_not_block(path: Path):
    os.mkfifo(path)
    with pytest.raises(PermissionError):
        Timeline(path)


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../b", "a\0b", ".wink-tmp-1"])
def test_names_that_leave_the_workspace_are_damage(path: Path, name: str):
    write_step(path, {"entries": [{"path": name, "kind": "directory", "permissions": 493}]})
    with Timeline(path) as timeline:
        assert timeline.steps == ()
        assert timeline.problem is not None
        assert "Step 1 is damaged" in timeline.problem


def write_step(path: Path, files: Mapping[str, object]) -> None:
    """Write a history by hand, with one step."""
    with RecordLog(path, SIGNATURE) as log:
        log.append(HEADER, lambda _: encode(TimelineHeader(uuid4(), DATE, "/", "test")))
        step = {
            "number": 1,
            "parent": None,
            "kind": "start",
            "created_at": DATE,
            "title": "",
            "files": files,
        }
        log.append(STEP, lambda _: encode_step(encode(step)))


def test_a_full_disk_stops_the_recording_and_not_the_session(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    files, session = InMemoryFilesystem(), Session()
    with SessionRecorder(session, path, files) as recorder:
        files.write("a.txt", "1")
        call(session)

        def fail(_descriptor: int, _data: bytes) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("weakincentives.history.log.write_all", fail)
            files.write("a.txt", "2")
            call(session)
        assert recorder.problem is not None
        assert "No space left" in recorder.problem
        call(session)
    with Timeline(path) as timeline:
        assert timeline.problem is None
        assert timeline.last == 2


def test_a_step_compares_with_any_backend(files: Files, path: Path):
    files.write("a/b.txt", "text\n")
    with SessionRecorder(Session(), path, files):
        pass
    with Timeline(path) as timeline:
        assert not diff(timeline.files(1), files)


# --- slices with one large item ---


@dataclass(frozen=True)
class Listing:
    """Like the projection of the files: one item, replaced by every change."""

    name: str
    lines: tuple[str, ...] = ()
    other: object = None


def seeded(*items: Listing) -> Session:
    session = Session()
    session.install(Listing)
    session[Listing].seed(items)
    return session


def replay_listings(path: Path) -> list[tuple[object, ...]]:
    with Timeline(path) as timeline:
        assert (timeline.problem, timeline.verify()) == (None, [])
        return [timeline.session(step.number)[Listing].all() for step in timeline.steps]


@pytest.mark.parametrize("seed", range(5))
def test_a_large_item_is_read_back_at_every_step(path: Path, seed: int):
    chance = random.Random(seed)
    lines = tuple(str(number) for number in range(50))
    session = seeded(Listing("a", lines))
    expected = [session[Listing].all()]
    with SessionRecorder(session, path):
        for number in range(30):
            start = chance.randrange(len(lines) + 1)
            stop = chance.randrange(start, min(len(lines), start + 4) + 1)
            new = tuple(f"new {number}" for _ in range(chance.randrange(4)))
            lines = lines[:start] + new + lines[stop:]
            name = chance.choice("ab")
            session[Listing].seed([Listing(name, lines)] * chance.choice((1, 1, 1, 2)))
            call(session)
            expected.append(session[Listing].all())
    assert replay_listings(path) == expected


def test_a_change_of_a_large_item_takes_little_room(path: Path, log: Path):
    lines = tuple(f"{random.Random(number).random()}" for number in range(10_000))
    session = seeded(Listing("a", lines))
    with SessionRecorder(session, path):
        size = log.stat().st_size
        session[Listing].seed([Listing("a", (*lines[:5_000], "new", *lines[5_001:]))])
        call(session)
    assert log.stat().st_size - size < 1_000


def test_an_item_that_json_cannot_represent_is_stored_whole_again(path: Path):
    session = seeded(Listing("a", ("1", "2"), other=object()))
    with SessionRecorder(session, path):
        session[Listing].seed([Listing("a", ("1", "3"))])
        call(session)
        session[Listing].seed([Listing("a", ("1", "4"))])
        call(session)
    with Timeline(path) as timeline:
        [first] = timeline.sessions(1).values()
        [last] = timeline.sessions(3).values()
        [described] = first.slices[f"{__name__}:Listing"].items
        assert "not_serializable" in described
        [item] = last.slices[f"{__name__}:Listing"].items
        assert item == {"name": "a", "lines": ["1", "4"], "other": None}


@pytest.mark.parametrize(
    "change",
    [
        {"start": 5, "inner": {"fields": {"name": {"whole": ["b"]}}}},
        {"start": -9, "inner": {"fields": {"name": {"whole": ["b"]}}}},
        {"inner": {"fields": {"missing": {"start": 0, "items": ["1"]}}}},
        {"inner": {"fields": {"name": {"start": 0, "items": ["1"]}}}},
        {"fields": {"name": {"whole": ["b"]}}},
    ],
)
def test_a_change_of_what_is_not_there_is_damage(path: Path, change: dict[str, object]):
    session = seeded(Listing("a", ("1", "2")))
    with SessionRecorder(session, path):
        call(session)
    slices = {"fields": {f"{__name__}:Listing": {"fields": {"items": change}}}}
    step = {
        "number": 3,
        "parent": 2,
        "kind": "tool",
        "created_at": DATE.isoformat(),
        "title": "t",
        "sessions": {"fields": {str(session.session_id): {"fields": {"slices": slices}}}},
    }
    with RecordLog(path / "steps", SIGNATURE) as log:
        log.append(STEP, lambda _: encode_step(encode(step)))
    with Timeline(path) as timeline:
        assert timeline.last == 3
        with pytest.raises(TimelineError, match="not there"):
            timeline.sessions(3)


def test_states_that_were_returned_stay_when_later_ones_are_built_in_place():
    steps = [
        Delta(fields={"items": Delta(whole=(["a"],))}),
        Delta(fields={"items": Delta(start=1, items=("b", "c"))}),
        Delta(fields={"items": Delta(start=1, items=("d",), stop=1)}),
        Delta(fields={"items": Delta(start=2, inner=Delta(whole=("e",)))}),
    ]
    values: list[object] = [{}]
    for length in range(1, len(steps) + 1):
        drafts: dict[int, list[object]] = {}
        value: object = values[-1] if length % 2 else {}
        for step in steps[length - 1 if length % 2 else 0 : length]:
            value = step.apply(value, drafts)
        values.append(value)
    expected = [["a"], ["a", "b", "c"], ["a", "d", "c"], ["a", "d", "e"]]
    assert values[1:] == [{"items": each} for each in expected]
    assert steps[0].fields["items"].whole == (["a"],)
