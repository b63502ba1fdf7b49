"""`wink mcp` as a process: the official SDK's client works through it, and a person decides."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import Implementation

from tests.cli.workplace import CALC, Terminal, Wink
from tests.preloaded import PreloadedProcess
from weakincentives.debug import SnapshotStore
from weakincentives.debug.views import SessionView
from weakincentives.extras import describe_missing
from weakincentives.mcp import steps

WINK = (sys.executable, "-m", "weakincentives", "mcp")
QUICK = ("--sandbox", "none")
NAME = Implementation(name="tester", version="1")
NEW = {"path": "docs/new.md", "content": "new\n"}
EDIT = {"path": "calc.py", "edits": [{"oldText": "(len(numbers) + 1)", "newText": "len(numbers)"}]}

Work = Callable[[Client], Awaitable[None]]


def talk(project: Path, work: Work, *options: str, errors: Path | None = None) -> str:
    """Let a client start the server, work and leave; return what it wrote on standard error."""
    log = errors or project.parent / "errors.txt"

    async def main() -> None:
        command = StdioServerParameters(
            command=WINK[0], args=[*WINK[1:], str(project), *options], env=dict(os.environ)
        )
        with log.open("w") as stream:
            async with Client(stdio_client(command, errlog=stream), client_info=NAME) as client:
                await work(client)

    anyio.run(main)
    return log.read_text()


async def edit(client: Client) -> None:
    """Change a file and create another."""
    for name, arguments in (("edit_file", EDIT), ("write_file", NEW)):
        result = await client.call_tool(name, arguments)
        assert not result.is_error


async def look(client: Client) -> None:
    """Call nothing."""
    assert (await client.list_tools()).tools


def test_changes_in_a_copy_wait_for_a_review(
    wink: Wink, project: Path, copies: Callable[[], list[Path]]
) -> None:
    (project / "wink.toml").write_text('sandbox = "local"\n[[broken')  # not ours to obey

    async def work(client: Client) -> None:
        await edit(client)
        path = str(project / "docs" / "new.md")  # as the client knows it
        assert not (await client.call_tool("read_text_file", {"path": path})).is_error
        await client.call_tool("undo", {})
        assert not (await client.call_tool("undo", {"call": 3})).is_error
        review = await client.call_tool("review", {})
        assert f"wink review {copies()[0].name}" in str(review.content)

    errors = talk(project, work, *QUICK)
    assert (project / "calc.py").read_text() == CALC
    (place,) = copies()
    assert f"wink review {place.name}" in errors
    assert f"wink debug {place.name}" in errors
    (project / "wink.toml").unlink()
    (run,) = wink("review", "--json").events
    assert (run["task"], run["state"], run["changes"]) == ("MCP: tester", "pending", 2)
    log = wink("log", place.name).out
    assert f"MCP clients on {project}" in log
    assert "edit_file calc.py  [tester #1, " in log
    assert "undo call 2 (write_file by tester #1)  [tester #1, " in log
    assert "undo call 3 (undo by tester #1)  [tester #1, " in log
    with closing(SnapshotStore(place / "history")) as store:
        recording = store.session().open()
        assert recording.step(3).client == "tester #1"
        assert SessionView(store.session(), recording).rows()[2].client == "tester #1"
        assert recording.files(3).read("docs/new.md").content == "new\n"
    assert wink("review", place.name, "--apply").code == 0
    assert "/ len(numbers)" in (project / "calc.py").read_text()
    assert (project / "docs" / "new.md").read_text() == "new\n"


def test_a_client_that_calls_nothing_leaves_nothing(
    project: Path, copies: Callable[[], list[Path]], own_places: None, tmp_path: Path
) -> None:
    async def work(client: Client) -> None:
        tools = {each.name for each in (await client.list_tools()).tools}
        assert "read_text_file" in tools
        assert not tools & {"write_file", "edit_file", "shell_execute", "delete_file"}

    talk(project, work, "--read-only")
    assert copies() == []
    assert list((tmp_path / "places" / "state" / "wink" / "runs").iterdir()) == []


def test_changes_in_place_are_made_at_once_and_recorded(
    wink: Wink, project: Path, copies: Callable[[], list[Path]], tmp_path: Path
) -> None:
    errors = talk(project, edit, *QUICK, "--in-place")
    assert (project / "docs" / "new.md").read_text() == "new\n"
    assert copies() == []
    assert "wink review" not in errors
    assert "write_file docs/new.md" in wink("log", "last").out
    calls = wink("mcp", project, "--calls").out
    assert "call 2: write_file by tester #1, other session: docs/new.md" in calls
    assert "Changes since the state before the first call:" in calls
    assert "calc.py" in calls.partition("Changes since")[2]
    assert f"To undo one of the calls: wink mcp {project} --undo CALL" in calls
    other = wink("mcp", project, "--undo", "2", "--only", "calc.py")
    assert "Nothing is left to undo of call 2" in other.out
    assert (project / "docs" / "new.md").exists()
    undone = wink("mcp", project, "--undo", "2", "--only", "docs")
    assert not (project / "docs" / "new.md").exists()
    (redo,) = re.findall(f"wink mcp {project} --undo ([0-9]+)  to redo it", undone.err)
    assert wink("mcp", project, "--undo", redo).code == 0
    assert (project / "docs" / "new.md").exists()
    assert wink("mcp", project, "--undo", "2", "--only", "docs").code == 0
    (project / "calc.py").write_text("mine\n")
    refused = wink("mcp", project, "--undo", "1")
    assert refused.code == 1
    assert "calc.py" in refused.err
    assert (project / "calc.py").read_text() == "mine\n"
    before = tmp_path / "before"
    assert wink("restore", "last", "1", "--to", before).code == 0
    assert (before / "calc.py").read_text() == CALC
    assert not (before / "docs" / "new.md").exists()
    store = tmp_path / "places" / "state" / "wink" / "history"
    assert store.stat().st_mode & 0o077 == 0
    assert f"history of {project}" in wink("clean", "--histories", "--dry-run").out
    assert wink("clean", "--histories", "--yes").code == 0
    assert not list(store.iterdir())


def test_the_undo_of_a_call_that_was_pruned_says_so(
    wink: Wink, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(project, edit, *QUICK, "--in-place")
    with monkeypatch.context() as limits:
        limits.setattr(steps, "MAX_STEPS", 1)
        old = wink("mcp", project, "--undo", "1")
    assert old.code == 1
    assert "Call 1 is too old" in old.err
    (store,) = (tmp_path / "places" / "state" / "wink" / "history").iterdir()
    shutil.rmtree(store)
    pruned = wink("mcp", project, "--undo", "1")
    assert pruned.code == 1
    assert "Call 1 cannot be undone or shown: it was pruned" in pruned.err
    assert "call 1: edit_file by tester #1, other session: calc.py" in (
        wink("mcp", project, "--calls").out
    )
    assert (project / "docs" / "new.md").exists()


def test_a_session_of_a_client_is_not_continued_as_a_run(
    wink: Wink, project: Path, copies: Callable[[], list[Path]]
) -> None:
    talk(project, edit, *QUICK)
    done = wink("run", "--continue", "--workspace", project, "--model", "scripted:none")
    assert done.code == 1
    assert "No run to continue in" in done.err
    resumed = wink("resume", copies()[0].name, "go on")
    assert resumed.code == 2
    assert "MCP" in resumed.err


def test_after_a_kill_the_changes_are_still_there(
    wink: Wink, project: Path, copies: Callable[[], list[Path]]
) -> None:
    with PreloadedProcess(
        [*WINK, str(project), *QUICK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        messages = [
            {
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "tester", "version": "1"},
                },
            },
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": "edit_file", "arguments": EDIT}},
        ]
        for each in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n")
            server.stdin.flush()
        while json.loads(server.stdout.readline()).get("id") != 2:
            pass
        assert wink("review").out.count("running") == 1
        server.kill()
    (place,) = copies()
    assert wink("review", place.name, "--json").events[-1]["result"] == "kept"
    (run,) = wink("review", "--json").events
    assert (run["task"], run["state"]) == ("MCP: tester", "interrupted")
    assert wink("review", place.name, "--apply").code == 0
    assert "/ len(numbers)" in (project / "calc.py").read_text()
    assert "edit_file calc.py" in wink("log", place.name).out


def test_http_is_served_until_a_signal(
    project: Path, copies: Callable[[], list[Path]], own_places: None, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    command = [*WINK, str(project), *QUICK, "--http", "0", "--json", "--token-file"]
    with PreloadedProcess(
        [*command, str(token_file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())
        assert token_file.read_text() == f"{address['token']}\n"
        assert token_file.stat().st_mode & 0o777 == 0o600

        async def main() -> None:
            headers = {"Authorization": f"Bearer {address['token']}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as connection,
                Client(
                    streamable_http_client(address["url"], http_client=connection),
                    client_info=NAME,
                ) as client,
            ):
                await edit(client)

        anyio.run(main)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
        assert server.stderr is not None
        errors = server.stderr.read()
    (place,) = copies()
    assert f"wink review {place.name}".encode() in errors
    assert address["token"].encode() not in errors
    assert (project / "calc.py").read_text() == CALC


def test_a_person_who_starts_it_is_told_what_it_is(project: Path, own_places: None) -> None:
    terminal = Terminal("mcp", project, *QUICK)
    terminal.wait_for("Serving a copy")
    terminal.type("\x04")
    done = terminal.end()
    assert done.code == 0
    assert "wink mcp --install CLIENT" in done.out


def test_http_says_where_it_is_and_how_to_connect(project: Path, own_places: None) -> None:
    terminal = Terminal("mcp", project, *QUICK, "--http", "--in-place", size=(40, 300))
    terminal.wait_for("Ctrl-C")
    terminal.type("\x03")
    done = terminal.end()
    assert done.code == 0
    token = next(each for each in done.out.splitlines() if each.startswith("Token: "))[7:]
    assert f'--header "Authorization: Bearer {token}"' in done.out
    assert "http://127.0.0.1:" in done.out


def test_a_directory_around_the_state_is_not_served_in_place(
    wink: Wink, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(project / ".state"))
    done = wink("mcp", project, "--in-place", *QUICK)
    assert done.code == 2
    assert "XDG_STATE_HOME" in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--http", "0.0.0.0:0"), "--allow-remote"),
        (("--http", "0", "--token-file", "open.txt"), "chmod 600"),
        (("--http", "0", "--token-file", "short.txt"), "at least 16"),
        (("--command-timeout", "soon"), "--command-timeout"),
    ],
)
def test_what_cannot_be_served_is_an_error_and_leaves_nothing(
    wink: Wink,
    project: Path,
    copies: Callable[[], list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("open.txt").write_text("a" * 40)
    Path("open.txt").chmod(0o644)
    Path("short.txt").write_text("short")
    Path("short.txt").chmod(0o600)
    done = wink("mcp", project, *words, *(() if "--sandbox" in words else QUICK))
    assert done.code in (1, 2)
    assert message in done.err
    assert copies() == []


def test_without_the_extra_one_sentence_says_how_to_install_it(
    project: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "missing" / "mcp.py"
    missing.parent.mkdir()
    missing.write_text("raise ModuleNotFoundError('No module named mcp', name='mcp')\n")
    ended = subprocess.run(
        [*WINK, str(project)],
        env={**os.environ, "PYTHONPATH": str(missing.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    sentence = f"wink: {describe_missing('the MCP server', 'mcp')}\n"
    assert (ended.returncode, ended.stderr) == (1, sentence)
