"""The section with a container: its tools, its slice, clones, and what is left after it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import ToolCall, ToolExecutor, ToolOutcome
from weakincentives.contrib.tools import HostMount
from weakincentives.contrib.tools.sections import (
    IsolationLevel,
    PodmanSandboxSection,
    PodmanSection,
    PodmanShellParams,
    PodmanWorkspace,
)
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import Prompt, PromptTemplate, ToolContext
from weakincentives.runtime.session import Session, select_latest
from weakincentives.sandbox import PodmanSandbox, PodmanSandboxConfig, SandboxUnavailableError

Make = Callable[..., PodmanSandboxSection]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def make(podman: PodmanSandboxConfig, cache: Path) -> Iterator[Make]:
    made: list[PodmanSandboxSection] = []

    def new(**options: object) -> PodmanSandboxSection:
        config = replace(podman, cache=str(cache))
        made.append(PodmanSandboxSection(**{"config": config, **options}))
        return made[-1]

    yield new
    for each in made:
        each.close()


def call(section: PodmanSandboxSection, name: str, **arguments: object) -> ToolOutcome:
    session = section.session or Session()
    context = ToolContext(None, None, None, session, filesystem=section.filesystem)
    return ToolExecutor(section.tools, context=context).execute(ToolCall(name, dict(arguments)))


def test_files_work_before_the_container_and_commands_start_it(make: Make, cache: Path) -> None:
    session = Session()
    section = make(session=session)
    call(section, "write_file", file_path="a.txt", content="hello")
    before = select_latest(session, PodmanWorkspace)
    assert before is not None
    assert not before.is_running
    assert Path(before.overlay_path).parents[1] == cache / "podman"
    outcome = call(section, "shell_execute", command=["sh", "-c", "cat a.txt; echo 2 > b.txt"])
    assert outcome.text.endswith("stdout:\nhello")
    running = select_latest(session, PodmanWorkspace)
    assert running is not None
    assert running.container_name == section.sandbox.container_name
    assert section.filesystem.read("b.txt").content == "2\n"


def test_the_prompt_has_the_workspace_and_names_the_shell(make: Make) -> None:
    section = make()
    prompt = Prompt(PromptTemplate(ns="test", key="podman", sections=(section,)))
    assert prompt.filesystem() is section.filesystem
    text = section.render_text(None)
    assert "`shell_execute`" in text
    assert "The workspace is its directory `/workspace`" in text
    assert "There is no network" in text
    assert PodmanSection is PodmanSandboxSection


def test_code_is_evaluated_in_the_container_all_or_none(make: Make) -> None:
    section = make(session=Session())
    section.filesystem.write("data.txt", "1 2 3")
    code = "open('direct', 'w').write('x')\nwrite_text('sum', str(sum(map(int, text.split()))))\n"
    reads = [{"path": "data.txt", "name": "text"}]
    failed = call(section, "evaluate_python", code=f"{code}1 / 0", reads=reads)
    assert "The code failed at line 3: ZeroDivisionError" in failed.text
    assert [each.path for each in section.filesystem.list(".")] == ["data.txt"]
    done = call(section, "evaluate_python", code=f"{code}import sys; sys.platform", reads=reads)
    assert done.text.startswith("Value: 'linux'\nCreated sum")
    assert section.filesystem.read("sum").content == "6"
    assert section.filesystem.read("direct").content == "x"


def test_a_program_may_pass_the_parameters_of_the_specification_to_the_tool(make: Make) -> None:
    section = make()
    (tool,) = (each for each in section.tools if each.name == "shell_execute")
    context = ToolContext(None, None, None, Session(), filesystem=section.filesystem)
    handler: Any = tool.handler
    script = ("sh", "-c", "pwd; echo $A; cat")
    section.filesystem.mkdir("src")
    params = PodmanShellParams(script, cwd="src", env={"A": "1"}, stdin="in", timeout=5)
    assert handler(params, context=context).value.stdout == "/workspace/src\n1\nin"
    silent = handler(PodmanShellParams(("echo", "x"), capture_output=False), context=context)
    assert (silent.value.stdout, silent.value.stderr) == ("", "")
    with pytest.raises(ToolValidationError, match="timeout_seconds must be from 1 to 120"):
        handler(PodmanShellParams(("true",), timeout=121), context=context)


def test_hosts_that_a_shared_sandbox_allows_are_in_the_prompt(
    podman: PodmanSandboxConfig, tmp_path: Path
) -> None:
    with PodmanSandbox(tmp_path, config=podman, allow_hosts=["pypi.org"]) as sandbox:
        text = PodmanSandboxSection(sandbox=sandbox).render_text(None)
    assert "Only these hosts can be reached: pypi.org." in text


def test_mounts_are_in_the_container(make: Make, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text("print('mounted')\n")
    section = make(mounts=[HostMount(str(tmp_path / "project"))], allowed_host_roots=[tmp_path])
    (found,) = section.filesystem.glob("**/main.py")
    done = section.run(PodmanShellParams(("python3", found.path)))
    assert done.stdout == "mounted\n"
    assert section.run(PodmanShellParams(("echo", "x"), capture_output=False)).stdout == ""


def test_a_clone_is_isolated_or_shares_everything(make: Make) -> None:
    section = make(session=Session())
    section.filesystem.write("a", "1")
    section.run(PodmanShellParams(("true",)))
    apart, beside = (
        section.clone(session=Session(), isolation=each)
        for each in (IsolationLevel.FULL_ISOLATION, IsolationLevel.NO_ISOLATION)
    )
    try:
        assert not apart.filesystem.exists("a")
        apart.run(PodmanShellParams(("true",)))
        assert apart.sandbox.container_name != section.sandbox.container_name
        assert beside.run(PodmanShellParams(("cat", "a"))).stdout == "1"
        assert beside.sandbox is section.sandbox
    finally:
        apart.close()
        beside.close()
    assert section.run(PodmanShellParams(("cat", "a"))).stdout == "1"


def test_a_reset_empties_the_workspace(make: Make) -> None:
    session = Session()
    section = make(session=session)
    section.run(PodmanShellParams(("sh", "-c", "echo 1 > a")))
    session.reset()
    assert section.run(PodmanShellParams(("ls",))).stdout == ""


def test_nothing_is_left_after_close(make: Make, cache: Path) -> None:
    session = Session()
    section = make(session=session)
    section.run(PodmanShellParams(("sh", "-c", "echo 1 > a")))
    sandbox = section.sandbox
    section.close()
    section.close()
    assert list((cache / "podman").iterdir()) == []
    left = select_latest(session, PodmanWorkspace)
    assert left is not None
    assert not left.is_running
    with pytest.raises(SandboxUnavailableError, match="closed"):
        sandbox.exec(["true"])
