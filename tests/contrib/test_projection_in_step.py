"""However a session or its files go back, the session knows the files that are there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.contrib.plain import Plain
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.contrib.tools.file_projection import ProjectionUpdater, VirtualFileSystem
from weakincentives.filesystem import (
    BaseFilesystem,
    FileStat,
    Filesystem,
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
)
from weakincentives.filesystem.text import is_binary
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.checkpoints import checkpoint, rollback_to
from weakincentives.runtime.session import Session, Snapshot
from weakincentives.runtime.transactions import transaction

WAIT = 60.0


@dataclass(frozen=True)
class Note:
    text: str


def known(session: Session) -> dict[str, tuple[int, str | None]]:
    found = session[VirtualFileSystem].latest()
    assert found is not None
    return {str(each.path): (each.size_bytes, each.encoding) for each in found.files}


def truth(files: Filesystem) -> dict[str, tuple[int, str | None]]:
    found: dict[str, tuple[int, str | None]] = {}
    for each in files.glob("**"):
        data = files.read_bytes(each.path).content
        found[each.path] = len(data), "binary" if is_binary(data) else "utf-8"
    return found


def version(session: Session, path: str) -> int:
    found = session[VirtualFileSystem].latest()
    assert found is not None
    file = found.file(path)
    assert file is not None
    return file.version


@pytest.fixture(params=["memory", "host", "plain"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "host":
        (tmp_path / "root").mkdir()
        with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as made:
            yield made
    else:
        yield InMemoryFilesystem() if request.param == "memory" else Plain()


def call(session: Session, files: Filesystem, act: Callable[[Filesystem], object]) -> bool:
    """Change files in a tool call; return whether it succeeded."""

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        assert context.filesystem is not None
        act(context.filesystem)
        return ToolResult("done")

    context = ToolContext(None, None, None, session, filesystem=files)
    executor = ToolExecutor([Tool("work", "Works.", handler)], context=context)
    return executor.execute(ToolCall("work")).result.success


BACK: dict[str, Callable[[Session, Snapshot, Any], object]] = {
    "restore": lambda session, snapshot, savepoint: session.restore(snapshot),
    "restore with logs": lambda session, snapshot, savepoint: session.restore(
        snapshot, preserve_logs=False
    ),
    "rollback": lambda session, snapshot, savepoint: session.rollback("kept"),
    "savepoint": lambda session, snapshot, savepoint: session.restore_savepoint(savepoint),
    "json": lambda session, snapshot, savepoint: session.restore(
        Snapshot.from_json(snapshot.to_json(), [Note])
    ),
    "reset": lambda session, snapshot, savepoint: session.reset(),
}


@pytest.mark.parametrize("way", BACK)
def test_a_session_that_goes_back_alone_knows_the_files_of_now(files: Any, way: str):
    session = Session()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("a", "1"))
    call(session, files, lambda fs: fs.write("gone", "1"))
    call(session, files, lambda fs: fs.write("same", "1"))
    snapshot, savepoint = session.snapshot("kept"), session.savepoint()
    call(session, files, lambda fs: fs.write_bytes("a", b"\0four"))
    call(session, files, lambda fs: fs.delete("gone"))
    call(session, files, lambda fs: fs.write("new", "22"))
    BACK[way](session, snapshot, savepoint)
    assert known(session) == truth(files)
    if way != "reset":
        assert version(session, "a") == 2
    assert version(session, "same") == 1
    call(session, files, lambda fs: fs.write("a", "one more"))
    assert known(session) == truth(files)


class WithoutDates(Plain):
    """A backend whose `stat` says no more than it has to."""

    __slots__ = ()

    def stat(self, path: str) -> FileStat:
        found = self.backend.stat(path)
        return FileStat(found.path, found.is_file, found.is_directory, found.size_bytes)


def test_a_file_that_is_the_same_keeps_its_version_whatever_stat_says():
    session, files = Session(), WithoutDates()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("same", "1"))
    call(session, files, lambda fs: fs.write("other", "1"))
    snapshot = session.snapshot()
    call(session, files, lambda fs: fs.write("other", "2"))
    session.restore(snapshot)
    assert (version(session, "same"), version(session, "other")) == (1, 2)


def test_a_clone_knows_the_files_and_so_does_one_that_goes_back(files: Any):
    session = Session()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("a", "1"))
    session.snapshot("kept")
    call(session, files, lambda fs: fs.write("a", "22"))
    clone = session.clone()
    assert known(clone) == truth(files)
    clone.rollback("kept")
    assert known(clone) == truth(files)


def test_files_that_go_back_alone_are_known(files: Any):
    if not isinstance(files, HostFilesystem | InMemoryFilesystem):
        return
    session = Session()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("a", "1"))
    kept = files.snapshot()
    call(session, files, lambda fs: fs.write_bytes("a", b"\0four"))
    files.restore(kept)
    assert known(session) == truth(files)


def test_a_snapshot_that_is_older_than_its_files_is_brought_up_to_date():
    session, files = Session(), InMemoryFilesystem()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("a", "1"))
    checkpoint(session, files)
    call(session, files, lambda fs: fs.write("a", "four"))
    later = session.snapshot()
    call(session, files, lambda fs: fs.write("a", "22"))
    rollback_to(session, later, files)
    assert files.read("a").content == "1"
    assert known(session) == truth(files)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("way", BACK)
def test_going_back_inside_a_call_keeps_in_step_with_its_files(way: str, fails: bool):
    session, files = Session(), InMemoryFilesystem()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("d/x", "1"))
    snapshot, savepoint = session.snapshot("kept"), session.savepoint()
    call(session, files, lambda fs: fs.write("d/x", "four"))

    def work(fs: Any) -> None:
        fs.move("d", "e")
        fs.write("d/x", "another")
        BACK[way](session, snapshot, savepoint)
        fs.write("f", "later")
        if fails:
            raise OSError("no")

    call(session, files, work)
    assert known(session) == truth(files)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("bypasses_filesystem", [True, False])
@pytest.mark.parametrize("way", BACK)
def test_going_back_while_a_call_has_changed_files(
    files: Any, way: str, bypasses_filesystem: bool, fails: bool
):
    session = Session()
    FilesystemSection(session=session, filesystem=files)
    call(session, files, lambda fs: fs.write("d/x", "1"))
    snapshot, savepoint = session.snapshot("kept"), session.savepoint()
    with transaction(session, files, bypasses_filesystem=bypasses_filesystem) as step:
        files.write("d/x", "four")
        files.write("e", "new")
        thread = threading.Thread(target=lambda: BACK[way](session, snapshot, savepoint))
        thread.start()
        thread.join(WAIT)
        files.delete("d", recursive=True)
        if fails:
            step.rollback()
    assert known(session) == truth(files)


def test_what_a_call_of_another_session_did_to_the_files_is_known():
    mine, theirs, files = Session(), Session(), InMemoryFilesystem()
    ProjectionUpdater(mine, files)
    call(theirs, files, lambda fs: fs.write("a", "1"))
    assert known(mine) == truth(files)


def test_files_that_a_failed_call_changed_beside_its_workspace_are_known():
    session, files, workspace = Session(), InMemoryFilesystem(), InMemoryFilesystem()
    ProjectionUpdater(session, files)

    def work(_: Filesystem) -> None:
        files.write("a", "1")
        raise OSError("no")

    assert not call(session, workspace, work)
    assert known(session) == truth(files) == {"a": (1, "utf-8")}


def test_files_that_a_call_changes_after_it_was_given_up_are_known():
    session, files = Session(), InMemoryFilesystem()
    ProjectionUpdater(session, files)
    with transaction(session, files) as step:
        here = copy_context()
        step.rollback()
    here.run(files.write, "late", "1")
    assert known(session) == truth(files) == {"late": (1, "utf-8")}


def test_text_that_is_cut_within_a_character_is_text():
    session, files = Session(), InMemoryFilesystem()
    files.write("a", "x" + "ü" * 6000)
    ProjectionUpdater(session, files)
    assert known(session) == truth(files)


PATHS = st.sampled_from(["a", "b.txt", "d/x", "d/y/z.bin", "d", "e/f"])
CONTENTS = st.sampled_from([b"", b"1", b"four", b"\0\1\2", "ünï".encode(), b"\xff"])
NAMES = st.sampled_from("kl")


class Machine(RuleBasedStateMachine):
    """Calls, and sessions and files that go back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.files = self.new_files()
        self.section = FilesystemSection(session=self.session, filesystem=self.files)
        self.states: dict[str, FilesystemSnapshot] = {}
        self.checkpoints: dict[str, Snapshot] = {}
        self.savepoints: dict[str, Any] = {}

    def new_files(self) -> Any:
        return InMemoryFilesystem()

    def attempt(self, act: Callable[[Any], object], *, fails: bool) -> None:
        def work(files: Any) -> None:
            act(files)
            self.session[Note].append(Note("done"))
            if fails:
                raise OSError("no")

        call(self.session, self.files, work)

    @rule(
        path=PATHS,
        data=CONTENTS,
        mode=st.sampled_from(["overwrite", "append"]),
        fails=st.booleans(),
    )
    def write(self, path: str, data: bytes, mode: Any, fails: bool) -> None:
        self.attempt(lambda files: files.write_bytes(path, data, mode=mode), fails=fails)

    @rule(path=PATHS, fails=st.booleans())
    def delete(self, path: str, fails: bool) -> None:
        self.attempt(lambda files: files.delete(path, recursive=True), fails=fails)

    @rule(path=PATHS, data=CONTENTS)
    def write_past_calls(self, path: str, data: bytes) -> None:
        if isinstance(self.files, BaseFilesystem):
            with suppress(OSError):
                self.files.write_bytes(path, data)

    @rule(source=PATHS, goal=PATHS, fails=st.booleans())
    def move(self, source: str, goal: str, fails: bool) -> None:
        if isinstance(self.files, BaseFilesystem):
            self.attempt(lambda files: files.move(source, goal), fails=fails)

    @rule(name=NAMES)
    def keep_session(self, name: str) -> None:
        self.session.snapshot(name)
        self.savepoints[name] = self.session.savepoint()

    @rule(name=NAMES)
    def roll_back_session(self, name: str) -> None:
        if name in self.session.snapshots:
            self.session.rollback(name)

    @rule(name=NAMES)
    def restore_through_json(self, name: str) -> None:
        if name in self.session.snapshots:
            text = self.session.snapshots[name].to_json()
            types = [Note, FilesystemSnapshot]
            self.session.restore(Snapshot.from_json(text, types), preserve_logs=False)

    @rule(name=NAMES)
    def restore_savepoint(self, name: str) -> None:
        if name in self.savepoints:
            self.session.restore_savepoint(self.savepoints[name])

    @rule()
    def reset(self) -> None:
        self.session.reset()

    @rule(name=NAMES, fails=st.booleans())
    def roll_back_inside_a_call(self, name: str, fails: bool) -> None:
        def work(files: Any) -> None:
            files.write("inside", "1")
            self.roll_back_session(name)
            files.write("d/after", "22")

        self.attempt(work, fails=fails)

    @rule(name=NAMES)
    def keep_files(self, name: str) -> None:
        if isinstance(self.files, HostFilesystem | InMemoryFilesystem):
            self.states[name] = self.files.snapshot()
            self.checkpoints[name] = checkpoint(self.session, self.files, name)

    @rule(name=NAMES)
    def restore_files(self, name: str) -> None:
        if name in self.states:
            self.files.restore(self.states[name])

    @rule(name=NAMES)
    def roll_back_both(self, name: str) -> None:
        if name in self.checkpoints:
            rollback_to(self.session, self.checkpoints[name], self.files)

    @rule()
    def go_on_with_a_clone(self) -> None:
        clone = self.session.clone()
        assert known(clone) == truth(self.files)
        for name in clone.snapshots:
            clone.rollback(name)
            assert known(clone) == truth(self.files)

    @invariant()
    def in_step(self) -> None:
        assert known(self.session) == truth(self.files)


class PlainMachine(Machine):
    def new_files(self) -> Any:
        return Plain()


class HostMachine(Machine):
    def new_files(self) -> Any:
        self.place = TemporaryDirectory()
        root = Path(self.place.name, "root")
        root.mkdir()
        return HostFilesystem(root, git_dir=Path(self.place.name, "store"))

    def teardown(self) -> None:
        self.section.close()
        self.files.close()
        self.place.cleanup()


def machine(kind: type[Machine], examples: int) -> Any:
    kind.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],  # a busy machine is no fault of the code
    )
    return kind.TestCase


TestInMemory = machine(Machine, 60)
TestPlain = machine(PlainMachine, 40)
TestOnHost = pytest.mark.slow(machine(HostMachine, 25))


@pytest.mark.slow
def test_files_and_session_agree_after_many_threads_have_gone_back():
    for seed in range(20):
        session, files = Session(), InMemoryFilesystem()
        ProjectionUpdater(session, files)
        session.snapshot("kept")
        kept = files.snapshot()
        threads = [
            threading.Thread(
                target=go_back_and_forth, args=[session, files, kept, seed * 10 + each]
            )
            for each in range(4)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(WAIT)
        assert known(session) == truth(files), seed


def go_back_and_forth(
    session: Session, files: InMemoryFilesystem, kept: FilesystemSnapshot, seed: int
) -> None:
    random = Random(seed)
    ways: list[Callable[[], object]] = [
        lambda: session.rollback("kept"),
        lambda: files.restore(kept),
        session.reset,
        lambda: call(session, files, lambda fs: fs.delete("d", recursive=True)),
        lambda: call(session, files, lambda fs: files.move("d", "e")),
        lambda: call(session, files, lambda fs: change(fs, random)),
    ]
    for _ in range(20):
        random.choice([*ways, ways[-1], ways[-1]])()


def change(files: Filesystem, random: Random) -> None:
    files.write(random.choice(["a", "d/x", "d/y"]), "x" * random.randrange(9))
    if random.random() < 0.4:
        raise OSError("no")
