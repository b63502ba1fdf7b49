"""Sections that bring a workspace."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import (
    ScriptedAdapter,
    ToolCall,
    ToolExecutor,
    ToolMessage,
    ToolOutcome,
)
from weakincentives.contrib.tools import (
    ClaudeAgentWorkspaceSection,
    FilesystemSection,
    HostMount,
    HostWorkspaceSection,
    VfsToolsSection,
    VirtualFileSystem,
)
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    LimitExceededError,
    PathEscapeError,
)
from weakincentives.prompt import (
    MarkdownSection,
    Media,
    Prompt,
    PromptError,
    PromptTemplate,
    ToolContext,
)
from weakincentives.runtime import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Session, select_latest

Make = Callable[..., FilesystemSection]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "docs").mkdir(parents=True)
    (place / "docs" / "guide.md").write_text("# Guide\n")
    (place / "docs" / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (place / "main.py").write_text("print('hi')\n")
    return place


@pytest.fixture(params=[VfsToolsSection, HostWorkspaceSection])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[FilesystemSection] = []

    def section(**options: Any) -> FilesystemSection:
        made.append(request.param(**options))
        return made[-1]

    yield section
    for each in made:
        each.close()


def call(
    section: FilesystemSection,
    session: Session,
    name: str,
    arguments: dict[str, object],
    filesystem: Filesystem | None = None,
) -> ToolOutcome:
    context = ToolContext(None, None, None, session, filesystem=filesystem or section.filesystem)
    return ToolExecutor(section.tools, context=context).execute(ToolCall(name, arguments))


def known(session: Session) -> dict[str, int]:
    found = select_latest(session, VirtualFileSystem)
    assert found is not None
    return {str(file.path): file.version for file in found.files}


def test_the_prompt_finds_the_workspace_and_offers_its_tools(make: Make):
    section = make()
    prompt = Prompt(
        PromptTemplate(
            ns="agents",
            key="coder",
            sections=[MarkdownSection(title="Task", template="Work."), section],
        )
    )
    rendered = prompt.render()
    assert prompt.filesystem() is section.filesystem
    assert [tool.name for tool in rendered.tools] == [
        "ls",
        "read_file",
        "write_file",
        "edit_file",
        "glob",
        "grep",
        "rm",
        "move_file",
    ]
    assert all(f"`{name}`" in rendered.text for name in ("ls", "read_file", "write_file", "rm"))


def test_two_workspaces_in_one_prompt_are_refused():
    with pytest.raises(PromptError, match="one workspace"):
        Prompt(ns="a", key="b", sections=[VfsToolsSection(), VfsToolsSection(key="other")])


def test_each_call_updates_what_the_session_knows(make: Make):
    session = Session()
    section = make(session=session)
    assert known(session) == {}
    call(section, session, "write_file", {"file_path": "a.txt", "content": "one"})
    assert known(session) == {"a.txt": 1}
    call(
        section,
        session,
        "edit_file",
        {"file_path": "a.txt", "old_string": "one", "new_string": "two"},
    )
    assert known(session) == {"a.txt": 2}
    call(section, session, "rm", {"path": "a.txt"})
    assert known(session) == {}


def test_a_failed_call_changes_neither_files_nor_what_is_known(make: Make):
    session = Session()
    section = make(session=session)
    call(section, session, "write_file", {"file_path": "a.txt", "content": "one"})
    outcome = call(section, session, "write_file", {"file_path": "a.txt", "content": "two"})
    assert not outcome.result.success
    assert known(session) == {"a.txt": 1}
    assert section.filesystem.read("a.txt").content == "one"
    latest = session[ToolInvoked].latest()
    assert latest is not None
    assert not latest.success


def test_mounts_are_copied_counted_and_shown(make: Make, project: Path):
    session = Session()
    section = make(
        session=session,
        mounts=(HostMount(str(project / "docs"), include_glob=("*.md",)),),
        allowed_host_roots=(project,),
    )
    [path] = known(session)
    assert path.endswith("guide.md")
    assert section.filesystem.read(path).content == "# Guide\n"
    text = Prompt(ns="a", key="b", sections=[section]).render().text
    assert path in text
    assert "logo.png" not in text
    assert str(project) not in text
    assert [report.file_count for report in section.mount_reports] == [1]


def test_a_name_with_a_dollar_is_shown_as_it_is(make: Make, project: Path):
    (project / "docs" / "$HOME.md").write_text("x")
    section = make(mounts=(HostMount(str(project / "docs")),), allowed_host_roots=(project,))
    assert "$HOME.md" in Prompt(ns="a", key="b", sections=[section]).render().text


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"allowed_host_roots": ()}, PathEscapeError),
        ({"allowed_host_roots": ("/nonexistent",)}, (PathEscapeError, FileNotFoundError)),
        ({"max_bytes": 3}, LimitExceededError),
    ],
)
def test_a_mount_that_is_refused_leaves_nothing(
    make: Make, project: Path, tmp_path: Path, monkeypatch: Any, options: Any, error: Any
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    options = {"allowed_host_roots": (project,), **options}
    mount = HostMount(str(project), max_bytes=options.pop("max_bytes", None))
    with pytest.raises(error):
        make(mounts=(mount,), **options)
    assert list(scratch.iterdir()) == []


def test_a_reset_empties_the_workspace_and_mounts_again(make: Make, project: Path):
    session = Session()
    section = make(
        session=session,
        mounts=(HostMount(str(project / "main.py")),),
        allowed_host_roots=(project,),
    )
    filesystem = section.filesystem
    [mounted] = known(session)
    call(section, session, "write_file", {"file_path": "mine/a.txt", "content": "one"})
    call(
        section,
        session,
        "edit_file",
        {"file_path": mounted, "old_string": "hi", "new_string": "ho"},
    )
    session.reset()
    assert known(session) == {mounted: 1}
    outcome = call(section, session, "ls", {}, filesystem)
    assert "mine" not in outcome.text
    assert section.filesystem.read(mounted).content == "print('hi')\n"


def test_a_reset_leaves_a_directory_of_the_users_alone(project: Path):
    session = Session()
    with HostWorkspaceSection(root=project, session=session) as section:
        call(section, session, "write_file", {"file_path": "new.txt", "content": "x"})
        call(
            section,
            session,
            "edit_file",
            {"file_path": "main.py", "old_string": "hi", "new_string": "ho"},
        )
        session.reset()
        assert (project / "new.txt").read_text() == "x"
        assert known(session) == dict.fromkeys(
            ("docs/guide.md", "docs/logo.png", "main.py", "new.txt"), 1
        )


def test_a_workspace_that_could_not_be_filled_again_refuses_calls(make: Make, project: Path):
    session = Session()
    section = make(
        session=session,
        mounts=(HostMount(str(project / "main.py"), mount_path="main.py"),),
        allowed_host_roots=(project,),
    )
    (project / "main.py").rename(project / "away.py")
    session.reset()
    outcome = call(section, session, "ls", {})
    assert not outcome.result.success
    assert "cannot be used until a session reset succeeds" in outcome.text
    assert "does not exist: 'main.py'" in outcome.text
    assert section.mount_reports == ()
    (project / "away.py").rename(project / "main.py")
    session.reset()
    assert call(section, session, "read_file", {"file_path": "main.py"}).result.success


def test_a_temporary_directory_that_was_taken_away_is_made_again_at_a_reset():
    session = Session()
    with HostWorkspaceSection(session=session) as section:
        shutil.rmtree(section.filesystem.root)
        session.reset()
        arguments: dict[str, object] = {"file_path": "a.txt", "content": "one"}
        assert call(section, session, "write_file", arguments).result.success
        assert Path(section.filesystem.root, "a.txt").read_text() == "one"
        assert known(session) == {"a.txt": 1}


def test_a_temporary_directory_that_is_read_only_has_what_is_mounted(project: Path):
    session = Session()
    with HostWorkspaceSection(
        session=session,
        read_only=True,
        mounts=(HostMount(str(project / "main.py"), mount_path="main.py"),),
        allowed_host_roots=(project,),
    ) as section:
        session.reset()
        assert known(session) == {"main.py": 1}
        assert not call(section, session, "rm", {"path": "main.py"}).result.success


def test_another_session_is_refused_and_an_unbound_section_serves_any(make: Make):
    section = make(session=Session())
    outcome = call(section, Session(), "ls", {})
    assert not outcome.result.success
    assert "another session" in outcome.text
    with pytest.raises(ToolValidationError, match="another session"):
        handler = section.tools[0].handler
        assert handler is not None
        handler(None, context=ToolContext(None, None, None, Session()))
    unbound = make()
    assert call(unbound, Session(), "ls", {}).result.success
    assert call(unbound, Session(), "ls", {}).result.success


def test_a_call_without_a_filesystem_gets_the_sections_own_and_is_undone_there(make: Make):
    session = Session()
    section = make(session=session)
    executor = ToolExecutor(section.tools, context=ToolContext(None, None, None, session))
    good = executor.execute(ToolCall("write_file", {"file_path": "a", "content": "x"}))
    assert good.result.success
    assert known(session) == {"a": 1}


def test_a_clone_has_files_of_its_own(make: Make, project: Path):
    bus = InProcessEventBus()
    first, second = Session(bus=bus), Session(bus=bus)
    section = make(
        session=first,
        mounts=(HostMount(str(project / "main.py")),),
        allowed_host_roots=(project,),
        ascii_paths=False,
    )
    call(section, first, "write_file", {"file_path": "mine", "content": "x"})
    with section.clone(session=second, bus=bus) as clone:
        call(clone, second, "write_file", {"file_path": "théirs", "content": "x"})
        assert set(known(first)) - set(known(second)) == {"mine"}
        assert set(known(second)) - set(known(first)) == {"théirs"}
        section.close()
        assert call(clone, second, "read_file", {"file_path": "théirs"}).result.success
    with pytest.raises(ValueError, match="bus"):
        section.clone(session=second, bus=InProcessEventBus())


def test_a_clone_has_clones_of_the_sections_below_it(make: Make):
    first, second = Session(), Session()
    below = VfsToolsSection(session=first)
    with make(session=first, children=[below]) as section, section.clone(session=second) as clone:
        (child,) = clone.children
        assert isinstance(child, VfsToolsSection)
        assert (child.title, child.session) == (below.title, second)
        child.close()
        below.close()


def test_a_temporary_directory_is_gone_after_close_with_its_snapshots():
    section = HostWorkspaceSection()
    filesystem = section.filesystem
    assert isinstance(filesystem, HostFilesystem)
    root = Path(filesystem.root)
    filesystem.write("a", "x")
    filesystem.snapshot()
    store = filesystem.git_dir
    assert store is not None
    section.close()
    section.close()
    assert not root.exists()
    assert not Path(store).exists()


def test_a_given_directory_stays_after_close(project: Path):
    section = HostWorkspaceSection(root=project)
    section.filesystem.write("a", "x")
    section.close()
    assert (project / "a").read_text() == "x"


def test_a_workspace_for_an_agent_with_tools_of_its_own_brings_none(project: Path):
    session = Session()
    with ClaudeAgentWorkspaceSection(
        session=session, mounts=(HostMount(str(project)),), allowed_host_roots=(project,)
    ) as section:
        prompt = Prompt(ns="a", key="b", sections=[section])
        assert prompt.render().tools == ()
        assert "write_file" not in prompt.render().text
        assert isinstance(prompt.filesystem(), HostFilesystem)
        assert len(known(session)) == 3


def test_any_filesystem_can_be_brought():
    files = InMemoryFilesystem()
    section = FilesystemSection(filesystem=files, dialect="claude", title="Files")
    assert section.filesystem is files
    assert "Read" in {tool.name for tool in section.tools}
    text = Prompt(ns="a", key="b", sections=[section]).render().text
    assert "`Read`" in text
    assert "read_file" not in text
    assert section.clone().filesystem is files
    with pytest.raises(NotImplementedError, match="FilesystemSection has no filesystem; pass one"):
        _ = FilesystemSection().filesystem


def test_named_archives_go_back_and_forth(make: Make, tmp_path: Path):
    section = make(snapshot_dir=tmp_path / "kept")
    section.filesystem.write("code.py", "v1")
    section.snapshots.snapshot("checkpoint")
    section.filesystem.write("code.py", "v2", mode="overwrite")
    section.snapshots.rollback("checkpoint")
    assert section.filesystem.read("code.py").content == "v1"


def test_an_unknown_dialect_is_refused(make: Make):
    with pytest.raises(PromptError, match="Dialect must be one of"):
        make(dialect="klingon")


def test_a_picture_that_is_read_reaches_the_model():
    # one pixel
    png = (
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde\0\0\0\0IEND\xaeB`\x82"
    )
    section = VfsToolsSection()
    section.filesystem.write_bytes("dot.png", png)
    adapter = ScriptedAdapter([ToolCall("read_file", {"file_path": "dot.png"}), "a dot"])
    adapter.evaluate(Prompt(ns="a", key="b", sections=[section]), session=Session())
    result = adapter.requests[-1].messages[-1]
    assert isinstance(result, ToolMessage)
    assert "1 x 1" in result.text
    assert result.media == (Media("image/png", png),)
