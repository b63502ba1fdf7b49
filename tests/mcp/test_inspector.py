"""The MCP inspector's CLI lists and calls everything of `wink mcp`, over both transports."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.mcp_process import TIMEOUT, ServerProcess
from scripts.node_packages import INSPECTOR
from tests.mcp.processes import Place, node_program

pytestmark = pytest.mark.slow

CALLS: dict[str, dict[str, Any]] = {
    "read_text_file": {"path": "a.txt"},
    "read_media_file": {"path": "a.txt"},
    "read_multiple_files": {"paths": ["a.txt", "sub/b.txt"]},
    "write_file": {"path": "new.txt", "content": "new\n"},
    "edit_file": {"path": "a.txt", "edits": [{"oldText": "hello", "newText": "bye"}]},
    "create_directory": {"path": "made"},
    "move_file": {"source": "sub/b.txt", "destination": "sub/c.txt"},
    "delete_file": {"path": "sub/c.txt"},
    "list_directory": {"path": "."},
    "list_directory_with_sizes": {"path": ".", "sortBy": "size"},
    "directory_tree": {"path": "."},
    "search_files": {"path": ".", "pattern": "**/*.txt"},
    "get_file_info": {"path": "a.txt"},
    "list_allowed_directories": {},
    "grep": {"pattern": "bye"},
    "repo_map": {},
    "checkpoint": {"name": "done"},
    "list_checkpoints": {},
    "diff": {},
    "undo": {"checkpoint": "start"},
    "review": {},
}
"""A call of each tool, in an order in which all succeed on one server."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (made.root / "a.txt").write_text("hello\n")
    (made.root / "sub").mkdir()
    (made.root / "sub" / "b.txt").write_text("below\n")
    return made


def _inspect(place: Place, target: list[str], method: str, *options: str) -> dict[str, Any]:
    """Run the inspector, and return the result that it prints."""
    command = [*node_program(INSPECTOR), "--cli", *target, "--method", method, *options]
    done = subprocess.run(
        [*command, "--format", "json", "--quiet", "--connect-timeout", "120000"],
        env=place.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["result"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_finds_no_fault_in_the_tools(place: Place, era: str) -> None:
    listed = _inspect(place, place.command(), "tools/list", "--strict", "--protocol-era", era)
    tools = {each["name"]: each for each in listed["tools"]}
    assert set(tools) >= set(CALLS)
    for each in tools.values():
        assert each["title"]
        assert each["description"]
        assert {"readOnlyHint", "destructiveHint", "idempotentHint"} <= set(each["annotations"])
        assert each["outputSchema"]["type"] == "object"


def test_the_inspector_calls_tools_over_pipes(place: Place) -> None:
    """Each call starts a server, so a few stand for all; the next test calls all of them."""
    read = _call(place, place.command(), "read_text_file")
    assert read["structuredContent"]["content"] == "hello\n"
    _call(place, place.command(), "edit_file")
    assert (place.root / "a.txt").read_text() == "bye\n"
    place.check_nothing_left()


def test_the_inspector_calls_every_tool_and_reads_every_resource_over_http(place: Place) -> None:
    command = place.command("--http", "0", "--json")
    with ServerProcess(command, environment=place.environment) as server:
        assert server.process.stdout is not None
        told = json.loads(server.process.stdout.readline())
        target = [told["url"], "--header", f"Authorization: Bearer {told['token']}"]
        listed = _inspect(place, target, "tools/list")["tools"]
        more = sorted({each["name"] for each in listed} - set(CALLS))
        for name in (*CALLS, *more):
            assert not _call(place, target, name).get("isError") or name in more, name
        _read_resources(place, target)
        server.process.terminate()
        assert server.process.wait(TIMEOUT) == 0
    place.check_nothing_left()


def _call(place: Place, target: list[str], name: str) -> dict[str, Any]:
    options = ("--tool-name", name, "--tool-args-json", json.dumps(CALLS.get(name, {})))
    result = _inspect(place, target, "tools/call", *options)
    assert result["content"]
    return result


def _read_resources(place: Place, target: list[str]) -> None:
    listed = _inspect(place, target, "resources/list")
    uris = [each["uri"] for each in listed["resources"]]
    assert any(each.endswith("a.txt") for each in uris)
    assert any(each.startswith("wink://") for each in uris)
    for uri in uris:
        assert _inspect(place, target, "resources/read", "--uri", uri)["contents"], uri
    templates = _inspect(place, target, "resources/templates/list")
    assert templates["resourceTemplates"]
