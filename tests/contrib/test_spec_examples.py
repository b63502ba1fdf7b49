"""The examples of the specifications about workspaces, as they stand there.

Changed only where DESIGN names a thing otherwise: `SnapshotManager` for the manager of 003, and
a slice that is filled when a section is bound to a session (D8) and not at the first call. Sections
offer `move_file` beside the seven tools of the specifications.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import ScriptedAdapter, ToolCall, ToolExecutor
from weakincentives.contrib.tools import (
    FILESYSTEM_TOOLS,
    FilesystemSection,
    HostMount,
    HostWorkspaceSection,
    VfsSection,
    VfsToolsSection,
    WorkspaceSection,
)
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext
from weakincentives.runtime.events import InProcessEventBus
from weakincentives.runtime.session import Session, dump_session_tree, load_session, select_latest
from weakincentives.tools import vfs


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a project with sources and documents."""
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    (place / "docs").mkdir()
    (place / "src" / "main.py").write_text("print('hi')\n")
    (place / "src" / "data.json").write_text("{}\n")
    (place / "docs" / "guide.md").write_text("# Guide\n")
    (place / "docs" / "logo.svg").write_text("<svg/>\n")
    monkeypatch.chdir(place)
    return place


def test_000_usage_example(project: Path):
    vfs_section = VfsToolsSection(
        mounts=(
            HostMount(host_path="src/", include_glob=("*.py",)),
            HostMount(host_path="docs/", include_glob=("*.md",)),
        ),
        allowed_host_roots=(str(project),),
    )
    template = PromptTemplate(
        ns="agents/coder",
        key="edit-files",
        sections=[
            MarkdownSection(
                title="Instructions", key="instructions", template="Edit files as requested."
            ),
            vfs_section,
        ],
    )
    prompt = Prompt(template)

    fs = prompt.filesystem()
    assert fs is vfs_section.filesystem
    assert fs is not None
    fs.write("scratch/notes.txt", "Working notes...")
    assert fs.exists("src/main.py")
    assert not fs.exists("src/data.json")


def test_002_usage_sketch():
    bus = InProcessEventBus()
    session = Session(bus=bus)
    prompt = Prompt(
        ns="agents/background",
        key="workspace",
        name="workspace-tools",
        sections=[
            MarkdownSection(
                title="Behaviour",
                template="Use the virtual filesystem to stage edits before applying them to the "
                "host workspace.",
            ),
            vfs.VfsToolsSection(
                session=session,
                mounts=(
                    vfs.HostMount(
                        host_path="docs/",
                        mount_path=vfs.VfsPath(("docs",)),
                        include_glob=("*.md",),
                    ),
                ),
            ),
        ],
    )
    rendered = prompt.render(None)
    assert "stage edits" in rendered.text
    assert "docs/guide.md" in rendered.text
    assert len(rendered.tools) == 8
    known = select_latest(session, vfs.VirtualFileSystem)
    assert known is not None
    assert [file.path for file in known.files] == [vfs.VfsPath(("docs", "guide.md"))]


def test_002_end_to_end():
    session = Session(bus=InProcessEventBus())
    section = vfs.VfsToolsSection(session=session)
    executor = ToolExecutor(
        section.tools,
        context=ToolContext(None, None, None, session, filesystem=section.filesystem),
    )

    def versions() -> dict[str, int]:
        known = select_latest(session, vfs.VirtualFileSystem)
        return {} if known is None else {str(each.path): each.version for each in known.files}

    assert "empty" in executor.execute(ToolCall("ls", {})).text
    executor.execute(ToolCall("write_file", {"file_path": "a/b.txt", "content": "one\n"}))
    assert versions() == {"a/b.txt": 1}
    arguments = {"file_path": "a/b.txt", "content": "two\n", "mode": "append"}
    executor.execute(ToolCall("write_file", arguments))
    assert versions() == {"a/b.txt": 2}
    assert "two" in executor.execute(ToolCall("read_file", {"file_path": "a/b.txt"})).text
    executor.execute(ToolCall("rm", {"path": "a"}))
    assert versions() == {}
    with pytest.raises(ToolValidationError):
        section.tools[0].parse({"nonsense": 1})


@dataclass(frozen=True)
class SomeSlice:
    value: int


@pytest.mark.parametrize("kind", [VfsSection, WorkspaceSection])
def test_003_coordinated_snapshots(tmp_path: Path, kind: type[VfsSection]):
    session = Session(bus=InProcessEventBus())
    section = kind(snapshot_dir=tmp_path / "kept")

    section.filesystem.write("code.py", "v1")
    session.mutate(SomeSlice).append(SomeSlice(1))

    snapshot_id = "checkpoint"
    section.snapshots.snapshot(snapshot_id)
    session.snapshot(snapshot_id)

    section.filesystem.write("code.py", "v2")
    session.mutate(SomeSlice).append(SomeSlice(2))

    session.rollback(snapshot_id)
    section.snapshots.rollback(snapshot_id)

    assert section.filesystem.read("code.py").content == "v1"
    assert session[SomeSlice].all() == (SomeSlice(1),)
    section.close()


class Mounted(FilesystemSection):
    """A section of 003, which keeps its arguments under these names."""

    def __init__(self, *, mounts: Sequence[HostMount] = (), **kwargs: Any) -> None:
        self._mounts = mounts
        super().__init__(
            title="Virtual Filesystem",
            key="vfs",
            template="Files.",
            tools=FILESYSTEM_TOOLS,
            **kwargs,
        )

    def _create_backend(self) -> Filesystem:
        return InMemoryFilesystem(self._mounts)


def test_003_subclass_creates_its_backend_from_its_own_arguments(tmp_path: Path):
    section = Mounted(mounts=(HostMount("src"),), snapshot_dir=tmp_path / "kept")
    assert section.filesystem.exists("src/main.py")
    section.snapshots.snapshot("mounted")
    script = [ToolCall("rm", {"path": "src"}), "Done."]
    ScriptedAdapter(script).evaluate(Prompt(ns="a", key="b", sections=[section]), session=Session())
    assert not section.filesystem.exists("src")
    section.snapshots.rollback("mounted")
    assert section.filesystem.exists("src/main.py")


def test_shared_tools_of_a_section_with_a_session_reject_calls_from_another():
    session = Session()
    with Mounted(session=session, mounts=(HostMount("src"),)) as section:
        ls = section.tools[0]
        handler: Any = ls.handler
        ours = ToolContext(None, None, None, session)
        assert "main.py" in handler(ls.parse({"path": "src"}), context=ours).message
        for files in (None, section.filesystem):
            other = ToolContext(None, None, None, Session(), filesystem=files)
            with pytest.raises(ToolValidationError, match="another session"):
                handler(ls.parse({}), context=other)
    with Mounted() as section:
        assert section.tools == FILESYSTEM_TOOLS


def test_003_resuming_with_a_different_backend(tmp_path: Path):
    session = Session()
    with HostWorkspaceSection(session=session) as section:
        section.filesystem.write("code.py", "v1")
        session[SomeSlice].append(SomeSlice(1))
        jsonl_path = dump_session_tree(session, tmp_path / "dumps", filesystem_section=section)
    assert jsonl_path is not None

    again = load_session(jsonl_path, types=[SomeSlice])
    archive_path = jsonl_path.with_suffix(".fs.zip")
    other = VfsSection()
    other.snapshots.restore(archive_path)
    assert other.filesystem.read("code.py").content == "v1"
    assert again[SomeSlice].all() == (SomeSlice(1),)


def test_004_usage_example():
    bus = InProcessEventBus()
    session = Session(bus=bus)
    vfs_prompt = Prompt(
        ns="agents/workspace",
        key="vfs-tools",
        sections=[
            MarkdownSection(
                title="Instructions",
                key="instructions",
                template="Stage edits in the virtual filesystem.",
            ),
            vfs.VfsToolsSection(session=session, mounts=(vfs.HostMount(host_path="src/"),)),
        ],
    )
    assert [tool.name for tool in vfs_prompt.render().tools] == [
        "ls",
        "read_file",
        "write_file",
        "edit_file",
        "glob",
        "grep",
        "rm",
        "move_file",
    ]
    filesystem = select_latest(session, vfs.VirtualFileSystem)
    assert filesystem is not None
    assert [str(file.path) for file in filesystem.files] == ["src/data.json", "src/main.py"]


@pytest.mark.parametrize("kind", [VfsSection, WorkspaceSection])
def test_a_base_path_that_does_not_exist_is_an_error_and_not_an_empty_result(
    kind: type[VfsSection],
):
    with kind() as section:
        section.filesystem.write("a.txt", "text")
        for search in (section.filesystem.glob, section.filesystem.grep):
            with pytest.raises(FileNotFoundError):
                search("x", path="missing")
        with pytest.raises(NotADirectoryError):
            section.filesystem.glob("*", path="a.txt")
        assert section.filesystem.grep("t", path="a.txt")


@pytest.mark.parametrize("tool", FILESYSTEM_TOOLS, ids=lambda tool: tool.name)
def test_000_a_handler_without_a_filesystem_returns_a_failed_result(tool: Tool[Any, Any]):
    assert tool.handler is not None
    result = tool.handler(None, context=ToolContext(None, None, None, Session()))
    assert not result.success
    assert result.value is None
    assert result.message.startswith("No filesystem available in this context.")


def test_001_shared_tools_work_on_any_filesystem_of_the_context():
    assert [tool.name for tool in FILESYSTEM_TOOLS] == [
        "ls",
        "read_file",
        "write_file",
        "edit_file",
        "glob",
        "grep",
        "rm",
    ]
    files = InMemoryFilesystem()
    context = ToolContext(None, None, None, Session(), filesystem=files)
    executor = ToolExecutor(FILESYSTEM_TOOLS, context=context)
    assert executor.execute(
        ToolCall("write_file", {"file_path": "a", "content": "x"})
    ).result.success
    assert files.read("a").content == "x"
    alone = ToolExecutor(FILESYSTEM_TOOLS, context=ToolContext(None, None, None, Session()))
    assert "No filesystem available in this context." in alone.execute(ToolCall("ls", {})).text
