"""Claude Code, the real program, edits through `wink mcp`, and takes the edit back."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import claude_agent_sdk
import pytest

from tests.adapters.chat_server import Server, serving
from tests.adapters.claude_code.server import says
from tests.mcp.processes import COMMAND, Place
from weakincentives.adapters import ToolCall

pytestmark = pytest.mark.slow

_CLAUDE = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "DISABLE_AUTOUPDATER": "1",
}
# by default it asks the model without the servers that are slow to start, as on a busy machine
_WAIT_FOR_SERVERS = {
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_CONNECT_TIMEOUT_MS": "180000",
    "MCP_TIMEOUT": "180000",
}
_EDIT = {"path": "a.txt", "edits": [{"oldText": "hello", "newText": "goodbye"}]}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (made.root / "a.txt").write_text("hello\n")
    return made


def test_claude_code_edits_through_the_server_and_undoes_the_edit(place: Place) -> None:
    entry = {"command": COMMAND[0], "args": place.command()[1:], "env": place.environment}
    config = place.base / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"wink": entry}}))
    with serving(*_script("edit_file", "read_text_file", "undo")) as server:
        _run(place, server, "--strict-mcp-config", "--mcp-config", str(config))
        edited, read, undone = _results(server)
    assert "-hello" in edited
    assert "+goodbye" in edited
    assert "goodbye" in read
    assert "[call 1]" in edited
    assert not any("firstLine" in each or "\\\\n" in each for each in (edited, read, undone))
    assert "a.txt" in undone
    assert (place.root / "a.txt").read_text() == "hello\n"
    place.wait_until_gone()


def test_claude_code_uses_the_server_that_was_installed_for_it(place: Place) -> None:
    options = ("--in-place", "--sandbox", "none", "--install", "claude-code", "--yes")
    subprocess.run(
        [*COMMAND, str(place.root), *options],
        env={**os.environ, **place.environment},
        check=True,
        capture_output=True,
    )
    # a person is asked once whether the servers of a project may run
    settings = place.root / ".claude" / "settings.local.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"enableAllProjectMcpServers": True}))
    with serving(*_script("edit_file")) as server:
        _run(place, server)
        [edited] = _results(server)
    assert "+goodbye" in edited
    assert (place.root / "a.txt").read_text() == "goodbye\n"
    place.wait_until_gone()


def _script(*tools: str) -> Sequence[Any]:
    """Answer with a call of each tool, one after the other, and then with a text."""
    arguments: dict[str, dict[str, Any]] = {
        "edit_file": _EDIT,
        "read_text_file": {"path": "a.txt"},
        "undo": {},
    }
    calls = [ToolCall(f"mcp__wink__{name}", arguments[name], f"c-{name}") for name in tools]
    return [*(says("", each) for each in calls), says("Done.")]


def _run(place: Place, server: Server, *options: str) -> None:
    command = [str(_CLAUDE), "-p", "Say goodbye.", "--model", "claude-test", *options]
    variables = {"ANTHROPIC_BASE_URL": server.url.removesuffix("/v1"), "ANTHROPIC_API_KEY": "key"}
    done = subprocess.run(
        [*command, "--allowedTools", "mcp__wink"],
        cwd=place.root,
        env={
            "PATH": os.environ["PATH"],
            **_QUIET,
            **_WAIT_FOR_SERVERS,
            **place.environment,
            **variables,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Done." in done.stdout


def _results(server: Server) -> list[str]:
    """Return the results of the calls, as the model got them."""
    return [
        json.dumps(block["content"])
        for message in server.last["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
