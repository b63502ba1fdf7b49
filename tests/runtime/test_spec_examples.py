"""The usage examples of the specifications that touch sessions, as they are written there.

What differs: names that the design changed (`FilesystemSnapshot` the manager is
`SnapshotManager`, `InMemoryBackend` an alias), and stand-ins for slices of the tool suite.
"""

import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from weakincentives.filesystem import (
    FilesystemProtocol,
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
    SnapshotableFilesystem,
    SnapshotManager,
    VfsPath,
)
from weakincentives.runtime.events import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import (
    Session,
    Snapshot,
    append_all,
    replace_latest,
    select_all,
    select_where,
)
from weakincentives.runtime.session.session import select_latest


@dataclass(slots=True, frozen=True)
class VfsFile:
    path: VfsPath
    encoding: str | None
    size_bytes: int
    version: int
    created_at: datetime
    updated_at: datetime


@dataclass(slots=True, frozen=True)
class WriteFile:
    path: VfsPath
    content: bytes
    mode: Literal["create", "overwrite", "append"] = "create"


@dataclass(slots=True, frozen=True)
class DeleteEntry:
    path: VfsPath


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True, frozen=True)
class VirtualFileSystem:
    root_path: str = ""
    files: tuple[VfsFile, ...] = field(default_factory=tuple)

    def handle_write(self, event: WriteFile) -> "VirtualFileSystem":
        version = max((each.version for each in self.files if each.path == event.path), default=0)
        kept = tuple(each for each in self.files if each.path != event.path)
        made = VfsFile(event.path, "utf-8", len(event.content), version + 1, NOW, NOW)
        return replace(self, files=(*kept, made))

    def handle_delete(self, event: DeleteEntry) -> "VirtualFileSystem":
        kept = tuple(each for each in self.files if each.path != event.path)
        return replace(self, files=kept)


@dataclass(slots=True, frozen=True)
class SomeSlice:
    value: int


@dataclass(slots=True, frozen=True)
class SomeEvent:
    value: int = 1


@pytest.fixture(params=["memory", "host"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return InMemoryFilesystem()
    (tmp_path / "root").mkdir()
    return HostFilesystem(tmp_path / "root", git_dir=tmp_path / "git")


def test_000_snapshots_are_kept_in_a_slice(filesystem: SnapshotableFilesystem):
    session = Session()
    filesystem.write("a.py", "before")

    session[FilesystemSnapshot].register(FilesystemSnapshot, append_all)
    fs_snapshot = filesystem.snapshot(tag="before-refactor")
    session[FilesystemSnapshot].append(fs_snapshot)
    filesystem.write("a.py", "after")

    snapshots = session[FilesystemSnapshot].all()
    filesystem.restore(snapshots[-1])
    assert filesystem.read("a.py").content == "before"
    assert snapshots == (fs_snapshot,)


def rollback_to(
    session: Session,
    session_snapshot: Snapshot,
    filesystem: SnapshotableFilesystem,
) -> None:
    """Restore both session state and filesystem."""
    fs_snapshots = session_snapshot.slices.get(FilesystemSnapshot, ())
    if fs_snapshots:
        filesystem.restore(fs_snapshots[-1])
    session.restore(session_snapshot)


def test_000_session_and_files_are_restored_together(filesystem: SnapshotableFilesystem):
    session = Session()
    session[SomeSlice].append(SomeSlice(1))
    rollback_to(session, session.snapshot(), filesystem)  # without a filesystem snapshot
    filesystem.write("a.py", "before")
    session[FilesystemSnapshot].append(filesystem.snapshot())
    session_snapshot = session.snapshot()
    filesystem.write("a.py", "after")
    session[SomeSlice].append(SomeSlice(2))

    rollback_to(session, session_snapshot, filesystem)
    assert filesystem.read("a.py").content == "before"
    assert session[SomeSlice].all() == (SomeSlice(1),)


def test_000_restore_points_survive_a_restart(tmp_path: Path):
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "git") as filesystem:
        filesystem.write("a.py", "before")
        session = Session()
        session[FilesystemSnapshot].append(filesystem.snapshot())
        stored = session.snapshot().to_json()
        filesystem.write("a.py", "after")
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "git") as again:
        rollback_to(Session(), Snapshot.from_json(stored), again)
        assert again.read("a.py").content == "before"


def test_001_a_slice_whose_reducers_are_its_methods():
    session = Session()
    session.install(VirtualFileSystem, initial=VirtualFileSystem)
    session.mutate(VirtualFileSystem).register(WriteFile, VirtualFileSystem.handle_write)
    session.mutate(VirtualFileSystem).register(DeleteEntry, VirtualFileSystem.handle_delete)

    vfs_path = VfsPath(("src", "main.py"))
    event = WriteFile(path=vfs_path, content=b"hello", mode="create")
    session.mutate(VirtualFileSystem).dispatch(event)
    session.mutate(VirtualFileSystem).dispatch(event)
    vfs = session.query(VirtualFileSystem).latest() or VirtualFileSystem()
    assert [(each.path, each.version) for each in vfs.files] == [(vfs_path, 2)]

    session.mutate(VirtualFileSystem).dispatch(DeleteEntry(vfs_path))
    assert session.query(VirtualFileSystem).latest() == VirtualFileSystem()


def test_001_the_filesystem_itself_is_not_kept_in_a_session():
    with pytest.raises(TypeError, match=r"not a frozen dataclass: .*Filesystem"):
        Session().install(FilesystemProtocol, initial=InMemoryFilesystem)


def test_002_a_section_installs_its_slice():
    bus = InProcessEventBus()
    session = Session(bus=bus)
    assert select_latest(session, VirtualFileSystem) is None

    def write(items: tuple[VirtualFileSystem, ...], event: WriteFile) -> Any:
        return (items[-1].handle_write(event),)

    session[VirtualFileSystem].register(VirtualFileSystem, replace_latest)
    session[VirtualFileSystem].register(WriteFile, write)
    session[VirtualFileSystem].seed(VirtualFileSystem(root_path="/tmp/x"))
    bus.publish(WriteFile(VfsPath(("a",)), b"x"))
    vfs = select_latest(session, VirtualFileSystem)
    assert vfs is not None
    assert vfs.root_path == "/tmp/x"
    assert len(vfs.files) == 1

    session.dispatch(VirtualFileSystem(root_path="/tmp/y"))
    assert select_all(session, VirtualFileSystem) == (VirtualFileSystem(root_path="/tmp/y"),)
    session.reset()
    assert select_latest(session, VirtualFileSystem) is None


def test_002_tool_calls_on_the_shared_bus_are_in_the_session():
    bus = InProcessEventBus()
    session = Session(bus=bus)
    bus.publish(ToolInvoked(tool="write_file", paths=("a.txt",), mode="create", result_size=5))
    bus.publish(ToolInvoked(tool="ls", success=False, error="no such directory"))
    written = select_where(session, ToolInvoked, lambda event: event.mode == "create")
    assert [(each.path, each.result_size) for each in written] == [("a.txt", 5)]
    assert [each.success for each in session[ToolInvoked].all()] == [True, False]


def some(items: tuple[SomeSlice, ...], event: SomeEvent) -> tuple[SomeSlice, ...]:
    return (*items, SomeSlice(event.value))


def test_003_coordinated_snapshots(tmp_path: Path):
    session = Session(bus=InProcessEventBus())
    session[SomeSlice].register(SomeEvent, some)
    filesystem = InMemoryFilesystem()
    snapshots = SnapshotManager(filesystem, tmp_path)

    filesystem.write("code.py", "v1")
    session.mutate(SomeSlice).dispatch(SomeEvent())

    snapshot_id = "checkpoint"
    snapshots.snapshot(snapshot_id)
    session.snapshot(snapshot_id)

    filesystem.write("code.py", "v2")
    session.mutate(SomeSlice).dispatch(SomeEvent(2))

    session.rollback(snapshot_id)
    snapshots.rollback(snapshot_id)

    assert filesystem.read("code.py").content == "v1"
    assert session[SomeSlice].all() == (SomeSlice(1),)


def test_003_a_session_may_carry_its_id_as_a_label():
    assert (
        Session(tags={"session_id": "abc123"}).tags.get("session_id", str(uuid.uuid4())) == "abc123"
    )
    assert uuid.UUID(Session().tags.get("session_id", str(uuid.uuid4())))


def test_004_a_clone_has_the_reducers_on_its_own_bus():
    session = Session(bus=InProcessEventBus())
    session[SomeSlice].register(SomeEvent, some)
    session.dispatch(SomeEvent(1))
    bus = InProcessEventBus()
    clone = session.clone(bus=bus)
    bus.publish(SomeEvent(2))
    session.bus.publish(SomeEvent(3))
    assert select_all(clone, SomeSlice) == (SomeSlice(1), SomeSlice(2))
    assert select_all(session, SomeSlice) == (SomeSlice(1), SomeSlice(3))
