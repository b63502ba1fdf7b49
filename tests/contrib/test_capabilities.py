"""Capabilities: a backend without our base classes gets what its methods allow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.handlers.calls import make_context, tree_of
from tests.contrib.plain import Plain
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.contrib.tools.handlers.move import move
from weakincentives.contrib.tools.requests import MoveParams
from weakincentives.filesystem import (
    Archivable,
    Closable,
    DirectoryCreated,
    Filesystem,
    FilesystemEvent,
    FileWritten,
    HostBacked,
    HostFilesystem,
    IgnoreAware,
    InMemoryFilesystem,
    Limits,
    LineIndexed,
    Listener,
    Lockable,
    Mountable,
    Movable,
    Observable,
    Pinnable,
    ReadBytesResult,
    Rewritable,
    Savepoint,
    Snapshotable,
    Transactional,
    Viewable,
    WriteResult,
)
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import transaction

EVERYWHERE = [
    Archivable,
    Closable,
    IgnoreAware,
    LineIndexed,
    Lockable,
    Mountable,
    Movable,
    Observable,
    Pinnable,
    Rewritable,
    Snapshotable,
    Transactional,
    Viewable,
]


class Capable(Plain):
    """Somebody's own backend that has savepoints, events, limits and a move of its own."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    @property
    def limits(self) -> Limits:
        return Limits(max_write_length=10)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        self.calls.append("read_bytes")
        return super().read_bytes(path, offset=offset, limit=limit)

    def savepoint(self) -> Savepoint:
        self.calls.append("savepoint")
        return self.backend.savepoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self.backend.subscribe(listener)

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        self.calls.append("move")
        self.backend.move(source, destination, overwrite=overwrite)

    def replace_content(
        self, path: str, content: bytes, *, expected: bytes | None = None
    ) -> WriteResult:
        self.calls.append("replace_content")
        return self.backend.replace_content(path, content, expected=expected)


def executor(fs: Filesystem, session: Session, *more: Tool[Any, Any]) -> ToolExecutor:
    tools = (*FilesystemSection(filesystem=fs, title="Files", key="files").tools, *more)
    return ToolExecutor(tools, context=ToolContext(None, None, None, session, filesystem=fs))


def test_our_backends_have_every_capability(tmp_path: Path):
    with HostFilesystem(tmp_path) as host, InMemoryFilesystem() as memory:
        for capability in EVERYWHERE:
            assert isinstance(host, capability)
            assert isinstance(memory, capability)
        assert isinstance(host, HostBacked)
        assert not isinstance(memory, HostBacked)


def test_the_bare_protocol_has_no_capability():
    for capability in (*EVERYWHERE, HostBacked):
        assert not isinstance(Plain(), capability)


def test_a_foreign_savepoint_makes_rollback_cheap():
    fs = Capable()
    fs.backend.write("a", "old")
    before = tree_of(fs.backend)
    with pytest.raises(KeyError), transaction(Session(), fs):
        fs.write("a", "new")
        fs.mkdir("b")
        raise KeyError
    assert fs.calls == ["savepoint"]  # nothing was read to be kept
    assert tree_of(fs.backend) == before


def test_a_foreign_filesystem_emits_its_own_events_in_a_transaction():
    fs, session, seen = Capable(), Session(), list[FilesystemEvent]()
    session.bus.subscribe(DirectoryCreated, seen.append)
    session.bus.subscribe(FileWritten, seen.append)
    with transaction(session, fs):
        fs.write("dir/a", "text")
        assert seen == []
    assert [str(event) for event in seen] == ["dir/ created", "dir/a created"]


def test_a_failed_call_on_a_foreign_filesystem_is_undone_by_its_savepoint():
    def break_off(params: None, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is fs
        fs.write("a", "new")
        return ToolResult.error("failed")

    fs = Capable()
    fs.backend.write("a", "old")
    tool = Tool[None, None]("break_off", "Write, then fail.", break_off)
    outcome = executor(fs, Session(), tool).execute(ToolCall("break_off", {}))
    assert not outcome.result.success
    assert fs.calls == ["savepoint"]
    assert fs.backend.read("a").content == "old"


def test_tools_use_what_a_foreign_filesystem_offers():
    fs = Capable()
    fs.backend.write("a", "one two three four")
    run = executor(fs, Session())
    edit = {"file_path": "a", "old_string": "two", "new_string": "2"}
    assert run.execute(ToolCall("edit_file", edit)).result.success
    assert "replace_content" in fs.calls
    assert fs.backend.read("a").content == "one 2 three four"
    write = run.execute(ToolCall("write_file", {"file_path": "b", "content": "x" * 11}))
    assert "at most 10" in write.result.message


def test_a_foreign_move_is_not_a_copy():
    fs = Capable()
    fs.backend.write("dir/a", "text")
    move(MoveParams("dir", "other"), make_context(fs))
    assert "move" in fs.calls
    assert fs.backend.read("other/a").content == "text"
