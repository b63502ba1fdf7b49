"""Tools for background processes, in every dialect."""

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.process_trees import Mark
from weakincentives.adapters import AllowedPaths, Policy, ToolCall, ToolExecutor
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import shell_handlers
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import Tool, ToolContext
from weakincentives.runtime.session import Session
from weakincentives.sandbox import (
    BubblewrapSandbox,
    ExecResult,
    LandlockSandbox,
    LocalSandbox,
    PollResult,
)
from weakincentives.sandbox.host import HostSandbox

LIMIT = 60.0  # seconds; only a failing test reaches it


@dataclass
class Workspace:
    """A workspace with all tools of a dialect."""

    sandbox: HostSandbox
    dialect: DialectName = "wink"
    session: Session = field(default_factory=Session)
    policies: tuple[Policy, ...] = ()
    value: Any = None

    @property
    def fs(self) -> HostFilesystem:
        return self.sandbox.filesystem

    def tools(self) -> dict[str, Tool[Any, Any]]:
        handlers = shell_handlers(self.sandbox)
        return {each.name: each for each in filesystem_tools(self.dialect, extra_handlers=handlers)}

    def call(self, name: str, **arguments: Any) -> str:
        context = ToolContext(None, None, None, self.session, filesystem=self.fs)
        executor = ToolExecutor(self.tools().values(), context=context, policies=self.policies)
        outcome = executor.execute(ToolCall(name, json.dumps(arguments)))
        self.value = outcome.result.value
        return outcome.text

    def call_until(self, pattern: str, name: str, **arguments: Any) -> str:
        """Repeat a call until its text, or that of several calls together, matches."""
        until = time.monotonic() + LIMIT
        texts = ""
        while not re.search(pattern, texts):
            assert time.monotonic() < until, texts
            texts += self.call(name, **arguments)
        return texts


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    root = tmp_path / "workspace"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs, LocalSandbox(fs) as sandbox:
        yield Workspace(sandbox)


def test_a_process_is_started_polled_and_stopped(workspace: Workspace):
    mark = Mark()
    line = f"echo up; until [ -e go ]; do sleep 0.01; done; echo went; exec sleep {mark.seconds}"
    told = workspace.call("shell_start", command=["sh", "-c", line])
    assert told.startswith(
        "Process 1 is running in the background; to see its output: shell_poll with process_id=1;"
        " to stop it: shell_stop with process_id=1."
    )
    seen = told + workspace.call_until("No new output", "shell_poll", process_id=1)
    assert "up" in seen
    assert workspace.call("shell_execute", command=["touch", "go"]).startswith("exit code 0")
    seen = workspace.call_until("went", "shell_poll", process_id=1)
    assert re.search(r"^Process 1 has been running for \d+\.\d s\.\n", seen)
    told = workspace.call("shell_stop", process_id=1)
    assert re.search(r"^Process 1 was stopped after \d+\.\d s\.\nNo new output\.$", told)
    assert isinstance(workspace.value, PollResult)
    assert mark.processes() == []
    again = workspace.call("shell_stop", process_id=1)
    assert again.startswith("Process 1 has ended: exit code 143: ended by SIGTERM after ")


def test_what_ends_at_once_is_told_at_once(workspace: Workspace):
    told = workspace.call("shell_start", command=["no-such-program"])
    assert told.startswith("exit code 127 after ")
    assert "No such program on PATH: 'no-such-program'" in told


def test_polling_can_wait_for_the_end(workspace: Workspace):
    workspace.call("shell_start", command=["sh", "-c", "sleep 0.5; echo done; exit 3"])
    told = workspace.call("shell_poll", process_id=1, wait_seconds=60)
    assert told.startswith("Process 1 has ended: exit code 3 after ")
    assert told.endswith("stdout:\ndone")
    assert "from 0 to 120 seconds: 121" in workspace.call(
        "shell_poll", process_id=1, wait_seconds=121
    )


def test_an_unknown_process_is_answered_with_those_that_run(workspace: Workspace):
    assert workspace.call("shell_poll", process_id=7) == (
        "No background process 7; none is running"
    )
    workspace.call("shell_start", command=["sleep", "3600"])
    assert workspace.call("shell_stop", process_id=7) == (
        "No background process 7; running: 1: sleep 3600"
    )


def test_too_many_are_an_error_that_says_which_to_stop(workspace: Workspace):
    for _ in range(8):
        workspace.sandbox.start(["sleep", "3600"])
    told = workspace.call("shell_start", command=["true"])
    assert told.startswith("8 background processes are already running, the maximum; stop one of")


def test_long_output_between_two_polls_is_shortened(workspace: Workspace):
    workspace.call("shell_start", command=["sh", "-c", "sleep 0.5; seq 1 100000"])
    told = workspace.call("shell_poll", process_id=1, wait_seconds=60)
    assert "\nstdout:\n1\n2\n3\n" in told
    assert "100000\n[truncated: only the beginning and end of stdout are shown" in told


def test_the_tools_are_absent_without_the_capability(tmp_path: Path):
    class ForegroundSandbox:
        """A sandbox that has only what the protocol asks for."""

        def __init__(self, inner: LocalSandbox) -> None:
            self.exec = inner.exec
            self.filesystem = inner.filesystem
            self.close = inner.close

    with LocalSandbox(tmp_path) as inner:
        handlers = shell_handlers(ForegroundSandbox(inner))  # pyright: ignore[reportArgumentType] # no context manager, which is not used
        for dialect, names in SHELLS.items():
            tools = filesystem_tools(dialect, extra_handlers=handlers)
            found = [each for each in tools if each.name in names]
            assert [each.name for each in found] == [names[0]]
            assert "ackground" not in found[0].description


SHELLS: dict[DialectName, tuple[str, ...]] = {
    "wink": ("shell_execute", "shell_start", "shell_poll", "shell_stop"),
    "classic": ("shell_execute", "shell_start", "shell_poll", "shell_stop"),
    "mcp": ("shell_execute", "shell_start", "shell_poll", "shell_stop"),
    "claude": ("Bash", "BashOutput", "KillShell"),
    "anthropic-editor": ("bash", "bash_start", "bash_poll", "bash_stop"),
    "openai": ("exec_command", "write_stdin"),
    "gemini": ("run_shell_command", "read_background_output", "stop_background_process"),
}
CALLS: dict[DialectName, tuple[tuple[str, dict[str, Any]], ...]] = {
    "claude": (
        ("Bash", {"command": "LINE", "run_in_background": True}),
        ("BashOutput", {"bash_id": "bash_1"}),
        ("KillBash", {"shell_id": "1"}),
    ),
    "anthropic-editor": (
        ("bash_start", {"command": "LINE"}),
        ("bash_poll", {"process_id": 1}),
        ("bash_stop", {"process_id": 1}),
    ),
    "openai": (
        ("exec_command", {"cmd": "LINE", "yield_time_ms": 10}),
        ("write_stdin", {"session_id": 1, "chars": "", "yield_time_ms": 100}),
        ("write_stdin", {"session_id": 1, "chars": "\x03"}),
    ),
    "gemini": (
        ("run_shell_command", {"command": "LINE", "is_background": True}),
        ("read_background_output", {"pid": 1}),
        ("stop_background_process", {"pid": 1}),
    ),
}


@pytest.mark.parametrize("dialect", SHELLS)
def test_every_dialect_has_its_tools(workspace: Workspace, dialect: DialectName):
    workspace.dialect = dialect
    names = [each for each in workspace.tools() if each in SHELLS[dialect]]
    assert names == list(SHELLS[dialect])
    assert "$" not in "".join(each.description for each in workspace.tools().values())


@pytest.mark.parametrize("dialect", CALLS)
def test_every_dialect_starts_polls_and_stops(workspace: Workspace, dialect: DialectName):
    workspace.dialect = dialect
    (start, begun), (poll, asked), (stop, ended) = CALLS[dialect]
    line = "echo hello | cat; exec sleep 3600"
    arguments = {key: line if value == "LINE" else value for key, value in begun.items()}
    told = workspace.call(start, **arguments)
    assert told.startswith("Process 1 is running in the background; to see its output: ")
    if "hello" not in told:
        workspace.call_until("hello", poll, **asked)
    assert "Process 1 has been running" in workspace.call(poll, **asked)
    assert workspace.call(stop, **ended).startswith("Process 1 was stopped after")
    assert workspace.call(poll, **asked).startswith("Process 1 has ended: exit code 143")


@pytest.mark.parametrize(
    ("dialect", "name", "field", "advice"),
    [
        ("wink", "shell_execute", "command", "to keep one running, use shell_start]"),
        ("claude", "Bash", "command", "to keep one running, use Bash with run_in_background=true]"),
        ("anthropic-editor", "bash", "command", "to keep one running, use bash_start with wait="),
        ("openai", "exec_command", "cmd", "use exec_command with yield_time_ms=1000]"),
        (
            "gemini",
            "run_shell_command",
            "command",
            "use run_shell_command with is_background=true]",
        ),
    ],
)
def test_a_stopped_process_comes_with_the_way_to_keep_it(
    workspace: Workspace, dialect: DialectName, name: str, field: str, advice: str
):
    workspace.dialect = dialect
    line = "sleep 3600 & echo"
    command: object = ["sh", "-c", line] if name == "shell_execute" else line
    told = workspace.call(name, **{field: command})
    assert "1 background process was stopped: processes do not outlive the call" in told
    assert advice in told


def test_input_for_a_running_command_is_rejected(workspace: Workspace):
    workspace.dialect = "openai"
    workspace.call("exec_command", cmd="sleep 3600", yield_time_ms=1)
    told = workspace.call("write_stdin", session_id=1, chars="yes\n")
    assert told.startswith("Input cannot be sent to a running command")


def test_a_command_that_ends_in_time_is_like_any_other(workspace: Workspace):
    workspace.dialect = "openai"
    told = workspace.call("exec_command", cmd="seq 1 20000; exit 3", yield_time_ms=60_000)
    assert told.startswith("exit code 3 after ")
    assert "all 108,894 bytes are in '.wink-output/1-stdout.txt'" in told
    assert workspace.fs.stat(".wink-output/1-stdout.txt").size_bytes == 108_894


def test_no_process_outlives_a_call_whose_changes_are_reviewed(workspace: Workspace):
    workspace.policies = (AllowedPaths(["src/**"]),)
    told = workspace.call("shell_start", command=["sh", "-c", "sleep 1; touch outside"])
    assert told == (
        "Commands cannot run in the background here: changes of files are reviewed with each"
        " call. Run it in the foreground"
    )
    assert workspace.sandbox.processes() == ()
    workspace.dialect = "openai"
    workspace.call("exec_command", cmd="echo hello", yield_time_ms=1)
    assert isinstance(workspace.value, ExecResult)


def test_a_server_answers_a_later_command_in_bubblewrap(tmp_path: Path):
    with BubblewrapSandbox(tmp_path) as sandbox:
        workspace = Workspace(sandbox, "claude")
        serve = f"{sys.executable} -u -m http.server --bind 127.0.0.1 8000 2>&1"
        told = workspace.call("Bash", command=serve, run_in_background=True)
        assert "cannot connect" not in told
        if "Serving" not in told:
            workspace.call_until("Serving", "BashOutput", bash_id="1")
        get = "import urllib.request as r; print(r.urlopen('http://localhost:8000/').status)"
        assert "\n200" in workspace.call("Bash", command=f'{sys.executable} -c "{get}"')


def test_where_no_server_can_be_reached_the_model_is_told(tmp_path: Path):
    with LandlockSandbox(tmp_path) as sandbox:
        told = Workspace(sandbox).call("shell_start", command=["sleep", "3600"])
        assert told.splitlines()[1] == (
            "Other commands cannot connect to it: to test a server, start it and its client in one"
            " command."
        )


def test_undo_and_changes_of_both_sides(workspace: Workspace):
    """A call's changes and the process's are both kept; a failed call undoes its own."""
    line = "until [ -e go ]; do sleep 0.01; done; echo theirs > theirs; echo did; exec sleep 3600"
    workspace.call("shell_start", command=["sh", "-c", line])
    workspace.call("write_file", file_path="go", content="")
    workspace.call_until("did", "shell_poll", process_id=1)
    workspace.call("write_file", file_path="ours", content="ours\n")
    snapshot = workspace.fs.snapshot()
    failed = workspace.call("edit_file", file_path="ours", old_string="no", new_string="yes")
    assert "no" in failed
    workspace.call("shell_execute", command=["sh", "-c", "rm ours theirs"])
    workspace.call("shell_stop", process_id=1)
    assert not workspace.fs.exists("theirs")
    workspace.fs.restore(snapshot)
    assert workspace.fs.read("theirs").content == "theirs\n"
    assert workspace.fs.read("ours").content == "ours\n"
