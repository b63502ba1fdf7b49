"""Operations of an MCP server that works in the directory itself."""

import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.to_thread
from mcp import Client
from mcp.types import CallToolResult, Implementation

from tests.safety.person.moments import Moments
from tests.safety.person.operations import Operation, agent_command, host
from tests.safety.person.project import end_line, text, visible
from tests.safety.person.saves import Save
from weakincentives.mcp import McpWorkspace
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.sandbox import LocalSandbox


@dataclass(frozen=True, slots=True)
class NoArguments:
    """No arguments."""


Work = Callable[[Client], Awaitable[list[CallToolResult]]]
Call = tuple[str, dict[str, Any]]

_PATCH = f"""*** Begin Patch
*** Update File: a.txt
@@
-{end_line("base")}
+{end_line("agent")}
*** Update File: d/e.txt
@@
-{end_line("base")}
+{end_line("agent")}
*** Delete File: b.txt
*** End Patch
"""
_EDIT = {"oldText": end_line("base"), "newText": end_line("agent")}
_WRITTEN = text("d/e.txt", "agent", "agent")
CHANGES: tuple[Call, ...] = (
    ("write_file", {"path": "a.txt", "content": text("a.txt", "agent", "agent")}),
    ("edit_file", {"path": "d/e.txt", "edits": [_EDIT]}),
    ("delete_file", {"path": "b.txt"}),
    ("move_file", {"source": "g/j.txt", "destination": "g/k.txt"}),
    ("write_file", {"path": "n/o.txt", "content": text("n/o.txt", "agent", "agent")}),
)


def serve(place: Path, work: Work, *, commands: bool = False, **options: Any) -> str:
    """Serve the project in this process while a client works; return what it was answered."""

    async def main(stack: ExitStack) -> str:
        files = stack.enter_context(host(place))
        if commands:
            options["sandbox"] = stack.enter_context(LocalSandbox(files))
        workspace = McpWorkspace(files, history_directory=place / "calls", **options)
        info = Implementation(name="tester", version="1")
        try:
            async with Client(workspace.create_server(), client_info=info) as client:
                results = await work(client)
        finally:
            await anyio.to_thread.run_sync(workspace.close)
        return "\n".join(_text(each) for each in results)

    with ExitStack() as stack:
        return anyio.run(main, stack)


@cache
def warm_up() -> None:
    """Import what the first call imports, once and not in every child."""
    with TemporaryDirectory() as directory:
        (Path(directory) / "root").mkdir()

        async def work(client: Client) -> list[CallToolResult]:
            return [await client.call_tool(*each) for each in (*CHANGES, ("undo", {}))]

        serve(Path(directory), work)


def call(name: str, arguments: dict[str, Any], *, dialect: str = "mcp") -> Callable[..., str]:
    """Return the operation that is one call."""

    def run(place: Path, moments: Moments) -> str:
        async def work(client: Client) -> list[CallToolResult]:
            await client.call_tool("review", {})  # the state at the start is known
            with moments.count():
                return [await client.call_tool(name, arguments)]

        return serve(place, work, dialect=dialect)

    return run


def undo_move(place: Path, moments: Moments) -> str:
    """Undo the move of a directory."""

    async def work(client: Client) -> list[CallToolResult]:
        await client.call_tool("move_file", {"source": "d", "destination": "moved"})
        with moments.count():
            return [await client.call_tool("undo", {})]

    return serve(place, work)


def undo(place: Path, moments: Moments, *, redo: bool = False, paths: tuple[str, ...] = ()) -> str:
    """Undo all calls, or what they did at some paths, or undo that again."""

    async def work(client: Client) -> list[CallToolResult]:
        for each in CHANGES:
            await client.call_tool(*each)
        arguments: dict[str, Any] = {"checkpoint": "start", "paths": list(paths)}
        if redo:
            await client.call_tool("undo", arguments)
            arguments = {"call": len(CHANGES) + 1}
        with moments.count():
            return [await client.call_tool("undo", arguments)]

    return serve(place, work)


def fail(place: Path, moments: Moments) -> str:
    """Run a command that fails."""

    def command(params: NoArguments, *, context: ToolContext) -> ToolResult[str]:
        del params, context
        agent_command(place / "root", moments)
        return ToolResult("It failed", "It failed", success=False)

    tool = Tool[NoArguments, str](
        name="fail",
        description="Fails.",
        handler=command,
        params_type=NoArguments,
        bypasses_filesystem=True,
    )

    async def work(client: Client) -> list[CallToolResult]:
        await client.call_tool("review", {})
        with moments.count():
            await client.call_tool("fail", {})
            return [await client.call_tool("review", {})]

    return serve(place, work, tools=[tool])


def cancel(place: Path, moments: Moments) -> str:
    """Cancel a command while it runs."""
    begun = place / "begun"
    os.mkfifo(begun)
    script = f"printf '%s' \"$1\" > a.txt; rm keep.txt; echo > '{begun}'; sleep 600"
    command = ["sh", "-c", script, "sh", text("a.txt", "agent", "agent")]

    async def run(client: Client) -> None:
        try:
            await client.call_tool("shell_execute", {"command": command})
        finally:  # it may not begin on a full disk
            os.close(os.open(begun, os.O_RDWR))

    async def work(client: Client) -> list[CallToolResult]:
        found = [await client.call_tool("review", {})]
        async with anyio.create_task_group() as group:
            group.start_soon(run, client)
            await anyio.to_thread.run_sync(begun.read_bytes)
            with moments.count():  # now that the command has changed what it changes
                moments.mark("command")
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):  # waits for the rollback
                    found = [await client.call_tool("review", {})]
        return found

    return serve(place, work, commands=True)


def review(place: Path, moments: Moments) -> str:
    """Start the next server on the project, and look at what it tells."""

    async def work(client: Client) -> list[CallToolResult]:
        return [await client.call_tool("review", {})]

    with moments.count():
        return serve(place, work)


def regain(place: Path, save: Save) -> str:
    """Undo the calls that changed a path, from the last to the first, until a save is back.

    Then whole calls: the save may have been at another path when it was displaced. If something
    is in the way, the answer names what can be undone or created again, and it is chosen.
    """

    def is_back() -> bool:
        root = place / "root"
        return any(save.is_at(root / path) for path in visible(root))

    async def work(client: Client) -> list[CallToolResult]:
        found = await client.call_tool("review", {})
        numbers = {int(each) for each in re.findall(r"\bcall (\d+)", _text(found))}
        results = [found]
        ways = deque(product([(save.path,), ()], sorted(numbers, reverse=True)))
        tried = set(ways)
        while ways and not is_back():
            paths, number = ways.popleft()
            arguments = {"call": number, "paths": paths}
            results.append(await client.call_tool("undo", arguments))
            for advice in re.findall(r"choose it with `paths`: (.*)", _text(results[-1])):
                way = (tuple(advice.split(", ")), number)
                if way not in tried:
                    tried.add(way)
                    ways.appendleft(way)
        return results

    return serve(place, work)


def _text(result: CallToolResult) -> str:
    texts = [each.text for each in result.content if each.type == "text"]
    return "\n".join(["failed" if result.is_error else "done", *texts])


def _operation(run: Callable[..., str]) -> Operation:
    return Operation(run, review, regain=regain, has_interrupts=False, warm_up=warm_up)


def _on_file(run: Callable[..., str]) -> Operation:
    return replace(_operation(run), targets=("d/e.txt",), folders=("d",))


MCP: Mapping[str, Operation] = {
    "MCP write_file": _on_file(call("write_file", {"path": "d/e.txt", "content": _WRITTEN})),
    "MCP edit_file": _on_file(call("edit_file", {"path": "d/e.txt", "edits": [_EDIT]})),
    "MCP delete_file": replace(
        _on_file(call("delete_file", {"path": "d/e.txt"})), deletes=("d/e.txt",)
    ),
    "MCP delete_file of a directory": replace(
        _operation(call("delete_file", {"path": "g"})),
        targets=("g/j.txt", "g/h/i.txt"),
        folders=("g", "g/h"),
        deletes=("g/j.txt", "g/h/i.txt"),
    ),
    "MCP move_file": _on_file(
        call("move_file", {"source": "d/e.txt", "destination": "n/moved.txt"})
    ),
    "MCP move_file of a directory": replace(
        _operation(call("move_file", {"source": "d", "destination": "moved"})),
        targets=("d/e.txt", "d/f.txt"),
        folders=("d",),
    ),
    "MCP apply_patch": replace(
        _operation(call("apply_patch", {"input": _PATCH}, dialect="openai")),
        targets=("a.txt", "b.txt", "d/e.txt"),
        folders=("d",),
        deletes=("b.txt",),
    ),
    "MCP command that fails": _operation(fail),
    "MCP command that is cancelled": replace(
        _operation(cancel), targets=("a.txt", "b.txt", "d/f.txt"), cost=2
    ),
    "MCP undo": _operation(undo),
    "MCP undo of a moved directory": replace(
        _operation(undo_move), targets=("moved/e.txt", "moved/f.txt"), folders=("moved",)
    ),
    "MCP undo of paths": _operation(partial(undo, paths=("a.txt", "d"))),
    "MCP redo": _operation(partial(undo, redo=True)),
}
