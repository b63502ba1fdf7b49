"""The examples of the specifications that touch prompts, sections and tool contexts.

Each test has the code of one block, named by its specification and heading, as it is
written there. What differs: names that the design changed (`read_file`, `list_dir` of a
backend are `read`, `list`; the manager `FilesystemSnapshot` is `SnapshotManager`; the
filesystem is in the context and not in the session), and the parts that are left out
there (`...`). Sections and tools that come with the package are tried where they are;
here they are written as a user writes his own.

| specification | block | test |
|---|---|---|
| 000 | Updated ToolContext; 003 ToolContext Integration | `test_the_context_has_the_fields` |
| 000 | Handler Usage Pattern | `test_000_handler_usage` |
| 000 | Section Ownership, both blocks | `test_000_a_section_owns_its_files` |
| 000 | Prompt.filesystem() Method | `test_000_the_prompt_finds_the_files` |
| 000 | Adapter Propagation | `test_000_an_adapter_passes_the_files_on` |
| 000 | Tool Handler Pattern | `test_000_tool_handler` |
| 000 | Snapshots, Usage Example | `test_000_snapshots_on_the_host` |
| 000 | Usage Example | `test_000_usage` |
| 001 | Retrieval in Tool Handlers, After, Section Changes | `test_001_tools_are_written_once` |
| 001 | Unit Tests | `test_001_one_test_for_all_backends` |
| 001 | Claude Agent SDK Integration | `test_001_a_workspace_without_tools` |
| 002 | Usage Sketch | `test_002_usage` |
| 003 | Usage Pattern | `test_003_a_manager_of_snapshots` |
| 003 | Tool handlers | `test_003_tool_handler` |
| 003 | FilesystemSection, Coordinated Snapshot Workflow | `test_003_sections_with_snapshots` |
| 003 | Adapter Integration | `test_003_the_files_of_the_section_of_a_tool` |
| 003 | Testing | `test_003_...` |
| 004 | Usage Example, Cloning | `test_004_usage`, `test_004_cloning` |
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.filesystem import (
    FileEntry,
    Filesystem,
    FilesystemProtocol,
    FileWritten,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    SnapshotManager,
    VfsPath,
)
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptProtocol,
    PromptTemplate,
    ProviderAdapterProtocol,
    RenderedPrompt,
    RenderedPromptProtocol,
    Section,
    SessionProtocol,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.runtime.deadlines import Deadline
from weakincentives.runtime.events import EventBus, InProcessEventBus
from weakincentives.runtime.session import Session, append_all, select_latest


@dataclass(slots=True, frozen=True)
class ReadFileParams:
    path: str
    offset: int = 0
    limit: int | None = None


@dataclass(slots=True, frozen=True)
class ReadFileResult:
    content: str
    path: str
    truncated: bool


def context_of(filesystem: Filesystem | None) -> ToolContext:
    return ToolContext(
        prompt=None, rendered_prompt=None, adapter=None, session=Session(), filesystem=filesystem
    )


def test_the_context_has_the_fields():
    found = [(each.name, each.default) for each in fields(ToolContext)]
    assert found[:7] == [
        ("prompt", MISSING),
        ("rendered_prompt", MISSING),
        ("adapter", MISSING),
        ("session", MISSING),
        ("deadline", None),
        ("budget_tracker", None),
        ("filesystem", None),
    ]
    assert all(default in {None, False} for _, default in found[7:])

    @dataclass(slots=True, frozen=True)
    class MyContext:
        prompt: PromptProtocol[Any]
        rendered_prompt: RenderedPromptProtocol[Any] | None
        adapter: ProviderAdapterProtocol[Any]
        session: SessionProtocol

    assert [each.name for each in fields(MyContext)] == [name for name, _ in found[:4]]


# --- 000 ---


def read_file_handler(
    params: ReadFileParams,
    *,
    context: ToolContext,
) -> ToolResult[ReadFileResult]:
    if context.filesystem is None:
        return ToolResult(
            message="No filesystem available in this context.",
            value=None,
            success=False,
        )

    try:
        result = context.filesystem.read(
            params.path,
            offset=params.offset,
            limit=params.limit,
        )
    except FileNotFoundError:
        return ToolResult(
            message=f"File not found: {params.path}",
            value=None,
            success=False,
        )

    return ToolResult(
        message=f"Read {result.total_lines} lines from {result.path}",
        value=ReadFileResult(
            content=result.content,
            path=result.path,
            truncated=result.truncated,
        ),
    )


def test_000_handler_usage():
    fs = InMemoryFilesystem()
    fs.write("a.py", "1\n2\n3\n")
    page = ReadFileParams("a.py", offset=1, limit=1)
    result = read_file_handler(page, context=context_of(fs))
    assert result.message == "Read 3 lines from a.py"
    assert result.value == ReadFileResult("2\n", "a.py", truncated=True)
    missing = read_file_handler(ReadFileParams("b.py"), context=context_of(fs))
    assert (missing.success, missing.message) == (False, "File not found: b.py")
    assert not read_file_handler(page, context=context_of(None)).success


READ_FILE = Tool(name="read_file", description="Read a file.", handler=read_file_handler)


@dataclass(slots=True, frozen=True)
class _VfsSectionParams:
    note: str = "It starts empty."


class VfsToolsSection(MarkdownSection[_VfsSectionParams]):
    """Prompt section providing virtual filesystem tools."""

    def __init__(
        self,
        *,
        mounts: Sequence[HostMount] = (),
        allowed_host_roots: Sequence[os.PathLike[str] | str] = (),
        accepts_overrides: bool = False,
    ) -> None:
        self._filesystem = InMemoryFilesystem()

        # Hydrate from host mounts
        for mount in mounts:
            self._filesystem.hydrate_from_host(
                mount,
                allowed_roots=allowed_host_roots,
            )

        # Build tool suite bound to this filesystem
        tools = self._build_tools()
        super().__init__(
            title="Virtual Filesystem",
            template="Files are virtual. ${note}",
            tools=tools,
            accepts_overrides=accepts_overrides,
        )

    def _build_tools(self) -> Sequence[Tool[Any, Any]]:
        return (READ_FILE,)

    @property
    def filesystem(self) -> Filesystem:
        """Return the filesystem managed by this section."""
        return self._filesystem


def instructions(text: str = "Edit files as requested.") -> MarkdownSection[Any]:
    return MarkdownSection(title="Instructions", key="instructions", template=text)


def test_000_a_section_owns_its_files():
    section = VfsToolsSection()
    assert isinstance(section, WorkspaceSection)
    assert not isinstance(instructions(), WorkspaceSection)
    rendered = Prompt(ns="a", key="b", sections=[section]).render()
    assert rendered.text == "## 1. Virtual Filesystem\n\nFiles are virtual. It starts empty."
    again = Prompt(ns="a", key="b", sections=[section]).render(_VfsSectionParams("Or not."))
    assert again.text.endswith("Files are virtual. Or not.")
    assert again.tools == (READ_FILE,)


def test_000_the_prompt_finds_the_files():
    section = VfsToolsSection()
    parent = MarkdownSection(title="Parent", template="Text.", children=[instructions(), section])
    prompt = Prompt(PromptTemplate(ns="a", key="b", sections=[parent]))
    assert prompt.filesystem() is section.filesystem
    assert Prompt(PromptTemplate(ns="a", key="b", sections=[instructions()])).filesystem() is None


class SomeAdapter:
    """As much of an adapter as passes the files on."""

    name = "some"

    def build_tool_context(
        self,
        prompt: Prompt[Any],
        rendered: RenderedPrompt[Any],
        session: SessionProtocol,
    ) -> ToolContext:
        return ToolContext(
            prompt=prompt,
            rendered_prompt=rendered,
            adapter=self,
            session=session,
            deadline=rendered.deadline,
            filesystem=prompt.filesystem(),  # Propagate from workspace section
        )


def test_000_an_adapter_passes_the_files_on():
    prompt = Prompt(ns="a", key="b", sections=[instructions(), VfsToolsSection()])
    deadline = Deadline.after(60)
    rendered = prompt.render(deadline=deadline)
    context = SomeAdapter().build_tool_context(prompt, rendered, Session())
    assert context.filesystem is prompt.filesystem()
    assert context.deadline is deadline
    files = context.filesystem
    assert files is not None
    files.write("a.py", "text")
    outcome = ToolExecutor(rendered.tools, context=context).execute(
        ToolCall("read_file", '{"path": "a.py"}')
    )
    assert outcome.result.message == "Read 1 lines from a.py"


@dataclass(slots=True, frozen=True)
class Result:
    text: str


def my_handler(params: ReadFileParams, *, context: ToolContext) -> ToolResult[Result]:
    fs = context.filesystem
    if fs is None:
        return ToolResult(message="No filesystem available", value=None, success=False)

    try:
        # Filesystem operations
        result = fs.read(params.path)
    except FileNotFoundError:
        return ToolResult(message=f"File not found: {params.path}", value=None, success=False)
    except PermissionError as e:
        return ToolResult(message=str(e), value=None, success=False)

    return ToolResult(message="Success", value=Result(result.content))


def test_000_tool_handler():
    fs = InMemoryFilesystem()
    fs.write("a", "text")
    assert my_handler(ReadFileParams("a"), context=context_of(fs)).value == Result("text")
    assert my_handler(ReadFileParams("b"), context=context_of(fs)).message == "File not found: b"
    refused = my_handler(ReadFileParams("../b"), context=context_of(fs))
    assert not refused.success
    assert "escapes root" in refused.message


def test_000_snapshots_on_the_host(tmp_path: Path):
    # Create filesystem with snapshot support
    fs = HostFilesystem(_root=tmp_path)

    # Initial state
    fs.write("config.py", "DEBUG = True")
    snapshot_v1 = fs.snapshot(tag="initial")

    # Make changes
    fs.write("config.py", "DEBUG = False")
    fs.write("tests.py", "import pytest")
    snapshot_v2 = fs.snapshot(tag="with-tests")

    # Rollback to initial state
    fs.restore(snapshot_v1)
    assert fs.read("config.py").content == "DEBUG = True"
    assert not fs.exists("tests.py")

    # Restore to modified state
    fs.restore(snapshot_v2)
    assert fs.read("config.py").content == "DEBUG = False"
    assert fs.exists("tests.py")
    fs.cleanup()


def plant(project: Path) -> Path:
    for name in ("src/main.py", "src/data.bin", "docs/guide.md", "docs/logo.svg"):
        (project / name).parent.mkdir(exist_ok=True, parents=True)
        (project / name).write_text(f"# {name}\n")
    return project


def test_000_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(plant(tmp_path))
    # Build prompt with workspace section
    # The section owns and manages its filesystem
    vfs_section = VfsToolsSection(
        mounts=(
            HostMount(host_path="src/", include_glob=("*.py",)),
            HostMount(host_path="docs/", include_glob=("*.md",)),
        ),
        allowed_host_roots=(tmp_path,),
    )

    template = PromptTemplate(
        ns="agents/coder",
        key="edit-files",
        sections=[
            MarkdownSection(
                title="Instructions",
                key="instructions",
                template="Edit files as requested.",
            ),
            vfs_section,
        ],
    )

    prompt = Prompt(template)

    # Access filesystem via prompt (delegates to workspace section)
    fs = prompt.filesystem()
    assert fs is not None
    assert fs is vfs_section.filesystem  # Same instance

    # Pre-populate or inspect before evaluation
    fs.write("scratch/notes.txt", "Working notes...")
    assert fs.exists("src/main.py")  # Hydrated from host mount
    assert not fs.exists("src/data.bin")


# --- 001 ---


@dataclass(slots=True, frozen=True)
class LsParams:
    path: str = "."


def ls_handler(params: LsParams, *, context: ToolContext) -> ToolResult[tuple[FileEntry, ...]]:
    fs = context.filesystem
    if fs is None:
        return ToolResult(
            message="No filesystem backend configured.",
            value=None,
            success=False,
        )
    entries = tuple(fs.list(params.path))
    return ToolResult(message="\n".join(each.name for each in entries), value=entries)


ls_tool = Tool(
    name="ls",
    description="List directory contents.",
    handler=ls_handler,
)
FILESYSTEM_TOOLS: tuple[Tool[Any, Any], ...] = (ls_tool, READ_FILE)


class Workspace(MarkdownSection[Any]):
    """A section that brings a backend and takes the tools that there are."""

    def __init__(self, backend: Filesystem, tools: Sequence[Tool[Any, Any]]) -> None:
        self._backend = backend
        super().__init__(title="Workspace", template="Files.", tools=tools)

    @property
    def filesystem(self) -> FilesystemProtocol:
        """Expose filesystem for custom prompt tools."""
        return self._backend


@pytest.fixture
def in_memory_fs() -> InMemoryFilesystem:
    return InMemoryFilesystem()


@pytest.fixture
def host_fs(tmp_path: Path) -> HostFilesystem:
    (tmp_path / "host").mkdir()
    return HostFilesystem(tmp_path / "host")


@pytest.fixture(params=["in_memory", "host"])
def fs(
    request: pytest.FixtureRequest, in_memory_fs: InMemoryFilesystem, host_fs: HostFilesystem
) -> InMemoryFilesystem | HostFilesystem:
    return {"in_memory": in_memory_fs, "host": host_fs}[request.param]


def test_001_tools_are_written_once(fs: FilesystemProtocol):
    prompt = Prompt(ns="a", key="b", sections=[Workspace(fs, FILESYSTEM_TOOLS)])
    rendered = prompt.render(None)
    fs.write("a.py", "1\n")
    context = SomeAdapter().build_tool_context(prompt, rendered, Session())
    executor = ToolExecutor(rendered.tools, context=context)
    assert executor.execute(ToolCall("ls", "{}")).result.message == "a.py"
    nothing = ToolExecutor(FILESYSTEM_TOOLS, context=context_of(None))
    assert nothing.execute(ToolCall("ls", "{}")).text == "No filesystem backend configured."


def test_001_one_test_for_all_backends(fs: FilesystemProtocol):
    fs.write("test.txt", "hello")
    content = fs.read("test.txt")
    assert content.content == "hello"
    fs.write("a/b.txt", "")
    entries = fs.list("a")
    assert len(entries) == 1
    assert entries[0].path == "a/b.txt"


def test_001_a_workspace_without_tools(host_fs: HostFilesystem):
    prompt = Prompt(ns="a", key="b", sections=[Workspace(host_fs, ())])
    assert prompt.render().tools == ()
    assert prompt.filesystem() is host_fs


def test_001_writes_are_told_to_the_session(fs: InMemoryFilesystem | HostFilesystem):
    def write(params: ReadFileParams, *, context: ToolContext) -> ToolResult[str]:
        fs.write(params.path, "text")
        return ToolResult("written")

    session = Session()
    session[FileWritten].register(FileWritten, append_all)
    context = ToolContext(None, None, None, session, filesystem=fs)
    tool = Tool("write", "Write.", write)
    ToolExecutor([tool], context=context).execute(ToolCall("write", {"path": "a"}))
    assert [(each.path, each.bytes_written) for each in session[FileWritten].all()] == [("a", 4)]


# --- 002 ---


def test_002_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(plant(tmp_path))
    prompt: Prompt[Any] = Prompt(
        ns="agents/background",
        key="workspace",
        name="workspace-tools",
        sections=[
            MarkdownSection(
                title="Behaviour",
                template="Use the virtual filesystem to stage edits before applying them to the "
                "host workspace.",
            ),
            VfsToolsSection(
                mounts=(
                    HostMount(
                        host_path="docs/",
                        mount_path=VfsPath(("docs",)),
                        include_glob=("*.md",),
                    ),
                ),
                allowed_host_roots=(tmp_path,),
            ),
        ],
    )

    rendered = prompt.render(None)
    assert rendered.text.startswith("## 1. Behaviour\n\nUse the virtual filesystem")
    assert [tool.name for tool in rendered.tools] == ["read_file"]
    assert rendered.name == "workspace-tools"
    files = prompt.filesystem()
    assert files is not None
    assert [each.path for each in files.glob("**")] == ["docs/guide.md"]


# --- 003 ---


def read_handler(params: ReadFileParams, *, context: ToolContext) -> ToolResult[str]:
    if context.filesystem is None:
        return ToolResult(message="No filesystem available", value=None, success=False)
    content = context.filesystem.read(params.path, offset=params.offset, limit=params.limit)
    return ToolResult(message=f"{content.path}:", value=content.content)


def test_003_tool_handler(fs: Filesystem):
    fs.write("a", "1\n2\n")
    tools = (Tool(name="read_file", description="Read.", handler=read_handler),)
    executor = ToolExecutor(tools, context=context_of(fs))
    assert executor.execute(ToolCall("read_file", {"path": "a", "offset": 1})).text == "a:\n\n2\n"
    missing = executor.execute(ToolCall("read_file", {"path": "b"}))
    assert missing.text == "No such file or directory: b"


def test_003_a_manager_of_snapshots(tmp_path: Path):
    # Create filesystem and snapshot manager
    fs = InMemoryFilesystem()
    snapshots = SnapshotManager(fs, tmp_path / "snapshots")

    # Work with filesystem
    fs.write("src/main.py", "print('hello')")

    # Create snapshot before risky operation
    info = snapshots.snapshot("before-refactor")
    assert (info.snapshot_id, info.file_count) == ("before-refactor", 1)

    # Make changes
    fs.write("src/main.py", "print('goodbye')")
    fs.delete("src/main.py")

    # Rollback if needed
    snapshots.rollback("before-refactor")
    assert fs.read("src/main.py").content == "print('hello')"


class FilesystemSection(MarkdownSection[Any]):
    """Section that provides a Filesystem with snapshot support."""

    def __init__(
        self,
        *,
        snapshot_dir: Path | None = None,
        **section_kwargs: Any,
    ) -> None:
        self._snapshot_dir = snapshot_dir or Path(tempfile.gettempdir()) / "wink-fs-snapshots"
        self._backend: Filesystem | None = None
        self._snapshots: SnapshotManager | None = None
        super().__init__(**section_kwargs)

    @property
    def filesystem(self) -> Filesystem:
        """Lazily initialize and return the filesystem backend."""
        if self._backend is None:
            self._backend = self._create_backend()
        return self._backend

    @property
    def snapshots(self) -> SnapshotManager:
        """Lazily initialize and return the snapshot manager."""
        if self._snapshots is None:
            backend: Any = self.filesystem
            self._snapshots = SnapshotManager(backend, self._snapshot_dir)
        return self._snapshots

    def _create_backend(self) -> Filesystem:
        """Create a fresh backend instance. Override in subclasses."""
        raise NotImplementedError


class VfsSection(FilesystemSection):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            title="Virtual Filesystem",
            key="vfs",
            template="Files.",
            tools=FILESYSTEM_TOOLS,
            **kwargs,
        )

    def _create_backend(self) -> Filesystem:
        return InMemoryFilesystem()


class HostSection(FilesystemSection):
    def __init__(self, *, root: Path | None = None, **kwargs: Any) -> None:
        self._root = root
        super().__init__(
            title="Workspace",
            key="workspace",
            template="Files.",
            tools=FILESYSTEM_TOOLS,
            **kwargs,
        )

    def _create_backend(self) -> Filesystem:
        root = self._root or Path(tempfile.mkdtemp(prefix="wink-workspace-"))
        return HostFilesystem(root)


@dataclass(slots=True, frozen=True)
class Turn:
    number: int


def sections(directory: Path) -> Sequence[FilesystemSection]:
    (directory / "root").mkdir(exist_ok=True)
    kept = directory / "snapshots"
    return VfsSection(snapshot_dir=kept), HostSection(root=directory / "root", snapshot_dir=kept)


@pytest.mark.parametrize("which", [0, 1])
def test_003_sections_with_snapshots(tmp_path: Path, which: int):
    section, session, turn_number = sections(tmp_path)[which], Session(), 1
    section.filesystem.write("code.py", "v1")
    session[Turn].append(Turn(1))

    snapshot_id = f"turn-{turn_number}"

    # Snapshot filesystem first
    fs_info = section.snapshots.snapshot(snapshot_id)

    # Then snapshot session
    session.snapshot(snapshot_id)

    section.filesystem.write("code.py", "v2")
    session[Turn].append(Turn(2))

    # Rollback session first (restores conversation state)
    session.rollback(snapshot_id)

    # Then rollback filesystem
    section.snapshots.rollback(snapshot_id)

    assert section.filesystem.read("code.py").content == "v1"
    assert session[Turn].all() == (Turn(1),)

    # Restore from archive (works with any backend)
    other = sections(tmp_path)[1 - which]
    other.snapshots.restore(fs_info.archive_path)
    assert other.filesystem.read("code.py").content == "v1"


def test_a_section_is_asked_for_its_files_when_they_are_needed():
    class Counting(VfsSection):
        made = 0

        def _create_backend(self) -> Filesystem:
            self.made += 1
            return super()._create_backend()

    section = Counting()
    prompt = Prompt(ns="a", key="b", sections=[section])
    prompt.render(None)
    assert section.made == 0
    assert prompt.filesystem() is prompt.filesystem()
    assert section.made == 1


def find_section_for_tool(prompt: Prompt[Any], tool: Tool[Any, Any]) -> Section[Any]:
    return next(each for each in prompt.sections if tool in each.tools)


def test_003_the_files_of_the_section_of_a_tool():
    section = VfsSection()
    prompt = Prompt(ns="a", key="b", sections=[instructions(), section])
    rendered_prompt = prompt.render()
    found = find_section_for_tool(prompt, rendered_prompt.tools[0])

    filesystem = None
    if isinstance(found, FilesystemSection):
        filesystem = found.filesystem

    context = ToolContext(
        prompt=prompt,
        rendered_prompt=rendered_prompt,
        adapter=SomeAdapter(),
        session=Session(),
        filesystem=filesystem,
    )
    assert context.filesystem is prompt.filesystem()


def test_003_export_import(fs: InMemoryFilesystem | HostFilesystem, tmp_path: Path):
    fs.write("file.txt", "original")
    archive = tmp_path / "snapshot.zip"
    count = fs.export_archive(archive)
    assert count == 1
    fs.write("file.txt", "modified")
    fs.import_archive(archive)
    assert fs.read("file.txt").content == "original"


def test_003_cross_backend_restore(tmp_path: Path):
    memory = InMemoryFilesystem()
    memory.write("src/main.py", "print('hello')")
    memory.write("README.md", "# Project")

    archive = tmp_path / "snapshot.zip"
    memory.export_archive(archive)

    host_root = tmp_path / "workspace"
    host_root.mkdir()
    host = HostFilesystem(host_root)
    host.import_archive(archive)

    assert host.read("src/main.py").content == "print('hello')"
    assert host.read("README.md").content == "# Project"
    host.cleanup()


def test_003_filesystem_snapshot(tmp_path: Path):
    fs = InMemoryFilesystem()
    snapshots = SnapshotManager(fs, tmp_path)

    fs.write("file.txt", "v1")
    snapshots.snapshot("s1")

    fs.write("file.txt", "v2")
    snapshots.snapshot("s2")

    fs.write("file.txt", "v3")

    # Rollback to s1
    snapshots.rollback("s1")
    assert fs.read("file.txt").content == "v1"

    # Rollback to s2
    snapshots.rollback("s2")
    assert fs.read("file.txt").content == "v2"


# --- 004 ---


@dataclass(slots=True, frozen=True)
class Opened:
    """What a bound section keeps in the session."""

    files: int


class BoundSection(VfsSection):
    """A section that belongs to a session."""

    def __init__(self, *, session: Session, **kwargs: Any) -> None:
        self._session = session
        session[Opened].register(Opened, append_all)
        session[Opened].seed(Opened(0))
        super().__init__(**kwargs)

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Any:
        return BoundSection(session=session or self._session.clone(bus=bus))


def test_004_usage():
    bus = InProcessEventBus()
    session = Session(bus=bus)

    # VFS-based prompt
    vfs_prompt: Prompt[Any] = Prompt(
        ns="agents/workspace",
        key="vfs-tools",
        sections=[
            MarkdownSection(
                title="Instructions",
                key="instructions",
                template="Stage edits in the virtual filesystem.",
            ),
            BoundSection(session=session),
        ],
    )
    assert [tool.name for tool in vfs_prompt.render().tools] == ["ls", "read_file"]

    # After tool invocations
    bus.publish(Opened(1))
    assert select_latest(session, Opened) == Opened(1)


@pytest.mark.parametrize("nested", [False, True])
def test_004_cloning(nested: bool):
    session = Session()
    section: Section[Any] = BoundSection(session=session)
    if nested:
        section = MarkdownSection(title="Parent", template="Text.", children=[section])
    prompt = Prompt(ns="a", key="b", sections=[instructions(), section])
    files = prompt.filesystem()
    assert files is not None
    files.write("a", "original")

    bus = InProcessEventBus()
    other = Session(bus=bus)
    clone = prompt.clone(session=other, bus=bus)
    cloned = clone.filesystem()
    assert cloned is not None
    assert cloned is not files
    assert not cloned.exists("a")
    assert prompt.filesystem() is files
    bus.publish(Opened(1))
    assert select_latest(other, Opened) == Opened(1)
    assert select_latest(session, Opened) == Opened(0)
    assert clone.render().text == prompt.render().text
