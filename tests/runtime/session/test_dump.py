"""Dumps: a session and its files are written to disk and loaded anywhere."""

import importlib
import json
import os
import re
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest

from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    ArchiveFilesystem,
    BaseFilesystem,
    HostFilesystem,
    InMemoryFilesystem,
    InvalidPathError,
    LimitExceededError,
    Limits,
    SnapshotManager,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.runtime import InProcessEventBus, ManualClock, ToolInvoked
from weakincentives.runtime.session import (
    DumpError,
    Session,
    Snapshot,
    append_all,
    dump_session_tree,
    load_dump,
    load_session,
)
from weakincentives.serde import SerdeError

HERE = __name__
DATE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Task:
    name: str
    data: bytes = b""


@dataclass(frozen=True)
class Odd:
    value: Any


@dataclass(frozen=True)
class LongNote(Note):
    more: str = ""


TYPES = (Note, Task)


class Section:
    """A section, as far as a dump is concerned."""

    def __init__(self, filesystem: BaseFilesystem | None) -> None:
        self.filesystem = filesystem


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseFilesystem]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    (tmp_path / "workspace").mkdir()
    with HostFilesystem(tmp_path / "workspace", git_dir=tmp_path / "store") as host:
        yield host


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "dumps"
    made.mkdir()
    return made


def noted(*texts: str, **options: Any) -> Session:
    session = Session(**options)
    session[Note].seed(Note(each) for each in texts)
    return session


def dumped(session: Session, target: Path, filesystem: BaseFilesystem | None = None) -> Path:
    path = dump_session_tree(session, target, filesystem, created_at=DATE)
    assert path is not None
    return path


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change_line(path: Path, number: int, **fields: Any) -> None:
    lines = lines_of(path)
    lines[number] |= fields
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))


# --- what is written ---


def test_a_session_and_its_files_are_two_files_named_after_it(target: Path, fs: BaseFilesystem):
    session = noted("a")
    fs.write("src/main.py", "print()")
    path = dump_session_tree(session, target, filesystem_section=Section(fs))
    assert path is not None
    assert path == target / f"{session.session_id}.jsonl"
    assert {each.name for each in target.iterdir()} == {
        f"{session.session_id}.jsonl",
        f"{session.session_id}.fs.zip",
    }
    assert path.with_suffix(".fs.zip").exists()


def test_the_label_session_id_names_the_dump(target: Path):
    path = dumped(noted("a", tags={"session_id": "abc123"}), target)
    assert path == target / "abc123.jsonl"


@pytest.mark.parametrize("label", ["../up", "a/b", "", ".", ".hidden", "a\0b", " a", "a" * 300])
def test_a_label_that_is_no_plain_name_is_refused(target: Path, label: str):
    with pytest.raises((InvalidPathError, LimitExceededError)):
        dumped(noted("a", tags={"session_id": label}), target)
    assert list(target.iterdir()) == []


def test_the_target_may_be_a_file_in_the_directory_or_a_directory_to_be_made(tmp_path: Path):
    session = noted("a", tags={"session_id": "x"})
    assert dumped(session, tmp_path / "run.jsonl") == tmp_path / "x.jsonl"
    assert dumped(session, tmp_path / "x.jsonl") == tmp_path / "x.jsonl"
    assert dumped(session, tmp_path / "new" / "deep") == tmp_path / "new" / "deep" / "x.jsonl"


def test_the_files_are_for_their_owner_alone(target: Path):
    fs = InMemoryFilesystem()
    fs.write("a", "secret")
    path = dumped(noted("a"), target, fs)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_suffix(".fs.zip").stat().st_mode & 0o777 == 0o600


def test_the_text_is_a_header_and_a_snapshot_for_each_session(target: Path):
    session = noted("a", session_id=UUID(int=1), clock=ManualClock(), tags={"k": "v"})
    child = Session(parent=session, session_id=UUID(int=2), clock=ManualClock())
    child[Task].append(Task("b", b"\xff"))
    header, first, second = lines_of(dumped(session, target))
    assert header == {
        "format": "wink-dump",
        "version": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "archive": None,
        "sessions": [
            {
                "session_id": str(UUID(int=1)),
                "snapshot_id": first["snapshot_id"],
                "parent": None,
                "created_at": "2026-01-01T00:00:00Z",
                "tags": {"k": "v"},
            },
            {
                "session_id": str(UUID(int=2)),
                "snapshot_id": second["snapshot_id"],
                "parent": 0,
                "created_at": "2026-01-01T00:00:00Z",
                "tags": {},
            },
        ],
    }
    assert first["slices"] == [{"type": f"{HERE}:Note", "log": False, "items": [{"text": "a"}]}]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_a_line_is_what_a_snapshot_gives_as_json(target: Path, count: int):
    session = noted(*map(str, range(count)))
    session.dispatch(ToolInvoked(tool="ls"))
    session[Task].clear()
    line = dumped(session, target).read_text().splitlines()[1]
    snapshot = Snapshot.from_json(line, TYPES)
    assert snapshot.to_json() == line
    assert snapshot.slices[Note] == session[Note].all()


def test_nothing_to_persist_is_none_and_writes_nothing(target: Path, fs: BaseFilesystem):
    session = Session()
    Session(parent=session)
    session[Note].clear()
    assert dump_session_tree(session, target) is None
    assert dump_session_tree(session, target, Section(fs)) is None
    assert dump_session_tree(session, target, Section(None)) is None
    assert list(target.iterdir()) == []


def test_files_alone_or_items_alone_or_a_child_alone_are_worth_a_dump(
    target: Path, fs: BaseFilesystem
):
    assert dump_session_tree(noted("a"), target, fs) is not None
    fs.mkdir("empty")
    assert dump_session_tree(Session(), target, fs) is not None
    parent = Session()
    noted("a", parent=parent)
    assert dump_session_tree(parent, target) is not None


def test_an_item_that_json_cannot_say_leaves_the_earlier_dump(target: Path, fs: BaseFilesystem):
    session = noted("old", tags={"session_id": "x"})
    fs.write("a", "old")
    path = dumped(session, target, fs)
    fs.write("a", "new")
    session[Odd].append(Odd(float("nan")))
    with pytest.raises(SerdeError, match=r"Slice '.*:Odd'"):
        dump_session_tree(session, target, fs)
    assert load_dump(path, TYPES).session[Note].all() == (Note("old"),)
    assert len(list(target.iterdir())) == 2


def test_an_item_of_a_subclass_is_refused(target: Path):
    session = Session()
    session[Note].append(LongNote("a"))
    with pytest.raises(SerdeError, match="cannot store a subclass"):
        dump_session_tree(session, target)


def test_labels_that_could_not_be_read_back_are_refused(target: Path):
    labels: Any = {"number": 1}
    with pytest.raises(SerdeError):
        dump_session_tree(noted("a", tags=labels), target)
    assert list(target.iterdir()) == []


def test_a_date_without_a_time_zone_is_refused(target: Path):
    with pytest.raises(ValueError, match="time zone"):
        dump_session_tree(noted("a"), target, created_at=datetime(2026, 1, 1))  # noqa: DTZ001 # what is refused


def test_a_dump_inside_the_workspace_is_refused(tmp_path: Path):
    with HostFilesystem(tmp_path, git_dir=tmp_path.parent / "store") as fs:
        fs.write("a", "1")
        with pytest.raises(ValueError, match="inside the workspace"):
            dump_session_tree(noted("a"), tmp_path / "dumps", fs)


def test_a_directory_that_takes_no_files_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place in (Path("/proc/self"), tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=re.escape(repr(str(place)))):
            dump_session_tree(noted("a"), place)


@pytest.mark.parametrize("section", [object(), MockFilesystem()])
def test_what_gives_no_archive_is_refused(target: Path, section: Any):
    with pytest.raises(TypeError):
        dump_session_tree(noted("a"), target, section)
    assert list(target.iterdir()) == []


def test_what_holds_a_filesystem_can_be_dumped_and_so_can_an_archive(target: Path):
    fs = InMemoryFilesystem()
    fs.write("a", "1")
    for each in (Section(fs), SnapshotManager(fs, target / "kept"), fs):
        path = dump_session_tree(noted("a"), target, each)
        assert path is not None
        with ArchiveFilesystem(path.with_suffix(".fs.zip")) as files:
            assert files.read("a").content == "1"
            again = dump_session_tree(noted("a"), target, files)
        assert again is not None
        with ArchiveFilesystem(again.with_suffix(".fs.zip")) as files:
            assert files.read("a").content == "1"


def test_a_large_session_is_written_piece_by_piece(target: Path):
    session = Session()
    session[Note].seed(Note(f"{number}" * 300) for number in range(10_000))
    tracemalloc.start()
    path = dumped(session, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4


def test_every_session_in_a_dump_is_of_one_moment(target: Path):
    session = Session()
    session[Note].register(Task, lambda items, event: (*items[-9:], Note(event.name)))
    session[Task].register(Task, lambda items, event: (*items[-9:], event))
    stop = Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            session.dispatch(Task(str(number)))
            number += 1

    thread = Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            path = dump_session_tree(session, target)
            if path is not None:
                loaded = load_session(path, TYPES)
                assert [each.text for each in loaded[Note].all()] == [
                    each.name for each in loaded[Task].all()
                ]
    finally:
        stop.set()
        thread.join()
    assert session[Note].all()


# --- what is loaded ---


def test_a_session_comes_back_with_all_that_it_was(target: Path):
    session = noted("a", "b", tags={"role": "root"})
    session.dispatch(ToolInvoked(tool="ls", params={"path": "."}))
    session[Task].clear()
    loaded = load_session(dumped(session, target), TYPES)
    assert (loaded.session_id, loaded.created_at) == (session.session_id, session.created_at)
    assert loaded.tags == session.tags
    assert loaded[Note].all() == (Note("a"), Note("b"))
    assert loaded[ToolInvoked].all() == session[ToolInvoked].all()
    assert loaded.parent is None


def test_a_tree_of_sessions_comes_back_in_its_shape(target: Path):
    root = noted("root")
    first, second = noted("first", parent=root), noted("second", parent=root)
    noted("below", parent=first)
    noted("deep", parent=noted("empty", parent=second))

    def shape(session: Session) -> Any:
        return session[Note].all(), session.session_id, [shape(each) for each in session.children]

    assert shape(load_session(dumped(root, target), TYPES)) == shape(root)


def test_a_part_of_a_tree_is_a_tree(target: Path):
    child = noted("child", parent=noted("root"))
    loaded = load_session(dumped(child, target), TYPES)
    assert loaded.parent is None
    assert loaded[Note].all() == (Note("child"),)


def test_two_sessions_of_one_id_stay_two(target: Path):
    root = noted("root", session_id=UUID(int=1))
    noted("child", parent=root, session_id=UUID(int=1))
    (child,) = load_session(dumped(root, target), TYPES).children
    assert child[Note].all() == (Note("child"),)


def test_a_loaded_session_goes_on(target: Path):
    bus = InProcessEventBus()
    loaded = load_session(dumped(noted("a"), target), TYPES, bus=bus)
    loaded[Note].register(Note, append_all)
    bus.publish(Note("b"))
    bus.publish(ToolInvoked(tool="ls"))
    assert loaded[Note].all() == (Note("a"), Note("b"))
    assert len(loaded[ToolInvoked].all()) == 1
    savepoint = loaded.savepoint()
    loaded[Note].append(Note("c"))
    loaded.restore_savepoint(savepoint)
    assert loaded[Note].all() == (Note("a"), Note("b"))


def test_a_slice_stays_a_log_or_state(target: Path):
    session = Session()
    session.install(Note, log=True)
    session.install(ToolInvoked, log=False)
    session[Note].append(Note("a"))
    session[ToolInvoked].append(ToolInvoked(tool="ls"))
    path = dumped(session, target)
    before = path.read_bytes()
    assert dumped(load_session(path, TYPES), target).read_bytes() == before


def test_files_go_into_memory_or_into_the_filesystem_given(
    target: Path, fs: BaseFilesystem, tmp_path: Path
):
    source = InMemoryFilesystem()
    source.write("src/main.py", "print()")
    path = dumped(noted("a"), target, source)
    loaded = load_dump(path, TYPES)
    assert isinstance(loaded.filesystem, InMemoryFilesystem)
    assert loaded.filesystem.read("src/main.py").content == "print()"
    assert loaded.created_at == DATE
    fs.write("other", "gone afterwards")
    session = load_session(path, TYPES, filesystem=fs)
    assert session[Note].all() == (Note("a"),)
    assert fs.read("src/main.py").content == "print()"
    assert not fs.exists("other")


def test_an_empty_workspace_is_a_state_too(target: Path, fs: BaseFilesystem):
    path = dumped(noted("a"), target, InMemoryFilesystem())
    fs.write("other", "gone afterwards")
    load_session(path, TYPES, filesystem=fs)
    assert list(fs.list(".")) == []


def test_a_dump_without_files_leaves_the_filesystem_alone(target: Path, fs: BaseFilesystem):
    fs.write("a", "1")
    path = dumped(noted("a"), target)
    assert load_dump(path, TYPES, filesystem=fs).filesystem is None
    assert fs.read("a").content == "1"


def test_the_archive_alone_goes_to_any_backend(target: Path, fs: BaseFilesystem, tmp_path: Path):
    source = InMemoryFilesystem()
    source.write("code.py", "v1")
    path = dumped(noted("a"), target, source)
    session = load_session(path, TYPES)
    SnapshotManager(fs, tmp_path / "kept").restore(path.with_suffix(".fs.zip"))
    assert session[Note].all() == (Note("a"),)
    assert fs.read("code.py").content == "v1"


def test_types_may_be_an_iterator_or_have_other_names(target: Path):
    root = noted("root")
    noted("child", parent=root)
    path = dumped(root, target)
    assert load_session(path, iter(TYPES)).children[0][Note].all() == (Note("child"),)
    path.write_text(path.read_text().replace(f"{HERE}:Note", "before:Text"))
    assert load_session(path, {"before:Text": Note})[Note].all() == (Note("root"),)


def test_a_link_to_a_dump_is_followed(target: Path, tmp_path: Path):
    fs = InMemoryFilesystem()
    fs.write("a", "1")
    path = dumped(noted("a"), target, fs)
    (tmp_path / "latest").symlink_to(path)
    loaded = load_dump(tmp_path / "latest", TYPES)
    assert loaded.filesystem is not None
    assert loaded.filesystem.read("a").content == "1"


def test_a_dump_may_be_given_another_name(target: Path):
    fs = InMemoryFilesystem()
    fs.write("a", "1")
    path = dumped(noted("a"), target, fs)
    path.rename(target / "final.v2.jsonl")
    path.with_suffix(".fs.zip").rename(target / "final.v2.fs.zip")
    loaded = load_dump(target / "final.v2.jsonl", TYPES)
    assert loaded.filesystem is not None
    assert loaded.filesystem.read("a").content == "1"


# --- what is refused ---


@pytest.fixture
def path(target: Path) -> Path:
    """A dump of a session with a child and a file."""
    fs = InMemoryFilesystem()
    fs.write("a", "1" * 100)
    session = noted("root", tags={"session_id": "x"})
    noted("child", parent=session)
    return dumped(session, target, fs)


def refused(path: Path, names: Path | None = None) -> str:
    """Return why a dump is not loaded; the error is one of ours and names the file."""
    fs = InMemoryFilesystem()
    fs.write("kept", "as it was")
    with pytest.raises(DumpError) as caught:
        load_session(path, TYPES, filesystem=fs)
    assert fs.read("kept").content == "as it was"
    assert isinstance(caught.value, WinkError)
    assert isinstance(caught.value, ValueError)
    text = str(caught.value)
    assert repr(str(names or path)) in text
    assert text.endswith(")")
    return text


def test_a_dump_that_is_not_there_is_a_missing_file(target: Path):
    with pytest.raises(FileNotFoundError, match="No such dump"):
        load_session(target / "x.jsonl")


def test_every_truncation_of_a_dump_is_refused(path: Path):
    data = path.read_bytes()
    for size in [*range(0, len(data), 7), *(at for at, each in enumerate(data) if each == 10)]:
        path.write_bytes(data[:size])
        assert "truncated" in refused(path)
    path.write_bytes(data[: data.index(b"\n") + 1])
    assert "Dump is truncated after 0 of 2 sessions" in refused(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"PK\3\4\n",
        b"\xff\xfe\n",
        b'{"format":"wink-session","version":1}\n',
        b'{"format":"wink-dump"}\n',
        b'{"format":"wink-dump","version":"1"}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_dump_is_refused(path: Path, data: bytes):
    path.write_bytes(data)
    assert "Not a session dump" in refused(path)


def test_a_newer_version_is_refused_whatever_else_it_has(path: Path):
    change_line(path, 0, version=2, more={"new": True})
    assert "Session dump has version 2, this program reads 1" in refused(path)
    change_line(path, 0, version=1)
    assert "Header of the dump is damaged" in refused(path)


def test_a_newer_version_of_a_session_is_refused(path: Path):
    change_line(path, 1, version=2)
    text = refused(path)
    assert "Line 2" in text
    assert "newer weakincentives" in text


@pytest.mark.parametrize(
    "fields",
    [
        {"sessions": []},
        {"sessions": None},
        {"created_at": "2026-01-01T00:00:00"},
        {"created_at": "yesterday"},
        {"archive": {"sha256": "0", "size": 1}},
        {"archive": {"sha256": "0" * 64, "size": -1}},
        {"archive": {"sha256": "0" * 64, "size": 1, "path": "/etc/passwd"}},
    ],
)
def test_a_damaged_header_is_refused(path: Path, fields: dict[str, Any]):
    change_line(path, 0, **fields)
    assert "Header of the dump is damaged" in refused(path)


@pytest.mark.parametrize("parents", [(0, 0), (None, None), (None, 1), (None, -1), (None, 7)])
def test_a_tree_that_is_none_is_refused(path: Path, parents: tuple[int | None, ...]):
    sessions = lines_of(path)[0]["sessions"]
    changed = [each | {"parent": parent} for each, parent in zip(sessions, parents, strict=True)]
    change_line(path, 0, sessions=changed)
    assert "does not follow its parent" in refused(path)


def test_lines_of_another_dump_are_refused(path: Path, target: Path):
    header, first, second = path.read_text().splitlines(keepends=True)
    path.write_text(header + second + first)
    assert "Line 2 of the dump belongs to another dump" in refused(path)
    path.write_text(header + first + second + second)
    assert "Dump continues after its last session, line 3" in refused(path)


def test_a_type_that_was_not_given_is_refused_and_never_imported(path: Path):
    for name in ("os:system", "builtins:eval", "subprocess:Popen", "no.such:Thing"):
        lines = lines_of(path)
        lines[2]["slices"][0]["type"] = name
        path.write_text("".join(json.dumps(each) + "\n" for each in lines))
        text = refused(path)
        assert f"Slice type is not among those given: {name!r}" in text
        assert "pass the type in types=" in text


def test_items_that_do_not_fit_their_type_are_refused(path: Path):
    change_line(path, 1, slices=[{"type": f"{HERE}:Note", "log": False, "items": [{"text": 1}]}])
    assert "Line 2" in refused(path)


def test_the_archive_of_another_dump_is_refused(path: Path, target: Path):
    other = InMemoryFilesystem()
    other.write("a", "2" * 100)
    another = dumped(noted("other"), target, other)
    another.with_suffix(".fs.zip").replace(path.with_suffix(".fs.zip"))
    text = refused(path, path.with_suffix(".fs.zip"))
    assert "Archive does not belong to 'x.jsonl'" in text


def test_an_archive_with_one_bit_changed_or_cut_off_is_refused(path: Path):
    archive = path.with_suffix(".fs.zip")
    data = archive.read_bytes()
    for changed in (data[:-1], data + b"\0", data[:50] + bytes([data[50] ^ 1]) + data[51:]):
        archive.write_bytes(changed)
        assert "Archive does not belong to" in refused(path, archive)


def test_a_missing_archive_is_named_and_the_session_can_be_had_without(path: Path):
    archive = path.with_suffix(".fs.zip")
    archive.unlink()
    assert "archive is missing" in refused(path, archive)
    assert load_session(path, TYPES, session_only=True)[Note].all() == (Note("root"),)


def test_links_and_pipes_in_the_place_of_the_files_are_refused(path: Path, tmp_path: Path):
    archive = path.with_suffix(".fs.zip")
    archive.rename(tmp_path / "moved.zip")
    archive.symlink_to(tmp_path / "moved.zip")
    refused(path, archive)
    path.unlink()
    path.symlink_to(path)
    assert "is a symbolic link" in refused(path)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in refused(path)


def test_a_directory_is_no_dump(path: Path):
    assert "not a regular file" in refused(path.parent)


def test_a_text_that_is_too_large_is_refused_before_it_is_read(path: Path):
    size = path.stat().st_size
    assert load_session(path, TYPES, max_bytes=size)[Note].all() == (Note("root"),)
    with pytest.raises(DumpError, match="max_bytes="):
        load_session(path, TYPES, max_bytes=size - 1)


def test_a_filesystem_that_refuses_the_files_stays_as_it_is(path: Path):
    small = InMemoryFilesystem(limits=Limits(max_total_bytes=10))
    small.write("kept", "1")
    with pytest.raises(LimitExceededError):
        load_session(path, TYPES, filesystem=small)
    assert [each.path for each in small.list(".")] == ["kept"]
    foreign: Any = MockFilesystem()
    with pytest.raises(TypeError, match="cannot import archives"):
        load_session(path, TYPES, filesystem=foreign)


@dataclass(frozen=True)
class Remark:
    text: str

    @dataclass(frozen=True)
    class Answer:
        text: str


class Plain:
    pass


@dataclass
class Changeable:
    text: str


SOMETHING = Remark("no type")


def named(path: Path, name: str) -> Path:
    """Let a dump have a slice of a type with this name."""
    change_line(path, 1, slices=[{"type": name, "log": False, "items": [{"text": "x"}]}])
    return path


@pytest.mark.parametrize("kind", [Remark, Remark.Answer])
def test_a_type_of_a_module_that_is_imported_need_not_be_given(target: Path, kind: type[Any]):
    session = Session(tags={"session_id": "x"})
    session[kind].append(kind("found"))
    path = dumped(session, target)
    assert load_session(path)[kind].all() == (kind("found"),)
    assert load_dump(path).session[kind].all() == (kind("found"),)


def test_a_module_that_is_imported_later_makes_a_dump_loadable(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = (
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Item:\n    text: str\n"
    )
    (tmp_path / "items_of_a_user.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    named(path, "items_of_a_user:Item")
    assert "pass the type in types=, or import its module" in refused(path)
    assert "items_of_a_user" not in sys.modules
    module = importlib.import_module("items_of_a_user")  # noqa: TID251 # what the message says
    monkeypatch.setitem(sys.modules, "items_of_a_user", module)
    assert load_session(path, TYPES)[module.Item].all() == (module.Item("x"),)


@pytest.mark.parametrize("name", [f"{HERE}:make.<locals>.Item", f"{HERE}:Missing"])
def test_nobody_is_told_to_import_a_module_that_is_imported(path: Path, name: str):
    text = refused(named(path, name))
    assert "pass the type in types=; if it has moved" in text
    assert "import its module" not in text


def test_a_type_that_has_moved_is_given_with_its_old_name(path: Path):
    named(path, "old_module:Remark")
    assert "if it has moved, under this name: types={'old_module:Remark': ...}" in refused(path)
    loaded = load_session(path, {"old_module:Remark": Remark})
    assert loaded[Remark].all() == (Remark("x"),)


@pytest.mark.parametrize(
    "name",
    [
        f"{HERE}:Plain",
        f"{HERE}:Changeable",
        f"{HERE}:SOMETHING",
        f"{HERE}:Missing",
        f"{HERE}:Remark.Missing",
        f"{HERE}:Remark.__class__",
        f"{HERE}:Session",
        f"{HERE}:Note.",
        f"{HERE}:",
        f"{HERE}",
        ":Remark",
        "os:environ",
        "weakincentives.filesystem:FilesystemSnapshot",
    ],
)
def test_what_is_no_dataclass_of_its_module_is_not_found(path: Path, name: str):
    assert f"Slice type is not among those given: {name!r}" in refused(named(path, name))


def test_looking_for_a_type_runs_no_code(path: Path, monkeypatch: pytest.MonkeyPatch):
    module = ModuleType("computed_names")
    asked: list[str] = []
    module.__getattr__ = asked.append  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "computed_names", module)
    assert "not among those given" in refused(named(path, "computed_names:Anything"))
    assert asked == []
