"""Walks: the modules and functions of the package that one operation crosses.

Each operation runs twice, in a process of its own, and the second time is counted: imports and
caches that are filled once belong to no operation.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType

import anyio
from mcp import Client

from scripts.steps import ROOT
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.cli.main import main as wink
from weakincentives.contrib.tools import HostWorkspaceSection
from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session

PACKAGE = "weakincentives"
BEFORE, AFTER = "x = 1\n", "x = 2\n"


@dataclass(slots=True)
class Walk:
    """What ran while `count` was open, in every thread that was started since `start`."""

    functions: set[tuple[str, str, int]] = field(default_factory=set[tuple[str, str, int]])
    _is_open: bool = False

    @property
    def modules(self) -> set[str]:
        """The modules whose functions ran."""
        return {module for module, _, _ in self.functions}

    def start(self) -> None:
        """Follow this thread, and those that it starts from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def count(self) -> Generator[None]:
        """Count what runs in this block."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        if self._is_open and event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith(PACKAGE):
                code = frame.f_code
                self.functions.add((module, code.co_qualname, code.co_firstlineno))


def edit_file(walk: Walk, place: Path) -> None:
    """Change a line through the executor, as the loop of an agent does."""
    root = _project(place)
    session = Session()
    section = HostWorkspaceSection(root=root, session=session)
    context = ToolContext(None, None, None, session, filesystem=section.filesystem)
    executor = ToolExecutor(section.tools, context=context)
    for old, new in ((BEFORE, AFTER), (AFTER, BEFORE)):
        arguments = {"file_path": "a.py", "old_string": old, "new_string": new}
        with walk.count():
            executor.execute(ToolCall("edit_file", arguments))
        _expect(root, new)
        _forget_first(walk, is_first=new == AFTER)


def mcp_undo(walk: Walk, place: Path) -> None:
    """Undo a call of an MCP client, in the directory itself."""
    root = _project(place)

    async def work(workspace: McpWorkspace) -> None:
        async with Client(workspace.create_server()) as client:
            for number in range(2):
                await client.call_tool("write_file", {"path": "a.py", "content": AFTER})
                _expect(root, AFTER)
                with walk.count():
                    await client.call_tool("undo", {})
                _expect(root, BEFORE)
                _forget_first(walk, is_first=number == 0)

    with HostFilesystem(root, git_dir=place / "git") as files:
        workspace = McpWorkspace(files, history_directory=place / "calls")
        try:
            anyio.run(work, workspace)
        finally:
            workspace.close()


def wink_run(walk: Walk, place: Path) -> None:
    """Run a script with one edit, and apply it."""
    root = _project(place)
    for old, new in ((BEFORE, AFTER), (AFTER, BEFORE)):
        arguments = {"file_path": "a.py", "old_string": old, "new_string": new}
        script = place / "script.json"
        script.write_text(json.dumps([{"name": "edit_file", "arguments": arguments}, "Changed."]))
        command = ["run", "change a line", "--workspace", str(root), "--model"]
        command += [f"scripted:{script}", "--sandbox", "none", "--apply", "--json"]
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(redirect_stderr(StringIO()))
            stack.enter_context(suppress(SystemExit))
            stack.enter_context(walk.count())
            wink(command)
        _expect(root, new)
        _forget_first(walk, is_first=new == AFTER)


WALKS: Mapping[str, Callable[[Walk, Path], None]] = {
    "edit_file": edit_file,
    "MCP undo": mcp_undo,
    "wink run": wink_run,
}


def measure(name: str) -> tuple[int, int]:
    """Return how many modules and functions an operation crosses, in a process of its own."""
    command = [sys.executable, "-m", "scripts.walks", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    modules, functions = map(int, done.stdout.split())
    return modules, functions


def main(name: str) -> int:
    """Walk once, and print the figures."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for variable in ("TMPDIR", "HOME", *(f"XDG_{each}_HOME" for each in _XDG)):
            (place / variable).mkdir()
            os.environ[variable] = str(place / variable)
        tempfile.tempdir = None  # it was taken from the environment before
        walk = Walk()
        walk.start()
        WALKS[name](walk, place)
        sys.setprofile(None)
        print(len(walk.modules), len(walk.functions))
    return 0


_XDG = ("STATE", "CACHE", "CONFIG", "DATA")


def _project(place: Path) -> Path:
    root = place / "root"
    root.mkdir()
    (root / "a.py").write_text(BEFORE)
    return root


def _forget_first(walk: Walk, *, is_first: bool) -> None:
    if is_first:
        walk.functions.clear()


def _expect(root: Path, content: str) -> None:
    found = (root / "a.py").read_text()
    if found != content:
        raise AssertionError(f"a.py is {found!r}, not {content!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
