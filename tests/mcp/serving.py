"""A workspace that is served in memory, and clients of the official SDK."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import CallToolResult, Implementation

from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.mcp import McpWorkspace


class Served:
    """A workspace and the clients that use it."""

    def __init__(self, workspace: McpWorkspace, stack: AsyncExitStack) -> None:
        self.workspace = workspace
        self._stack = stack

    async def connect(self, name: str = "tester", **options: Any) -> Client:
        options.setdefault("mode", "legacy")
        info = Implementation(name=name, version="1")
        client = Client(self.workspace.create_server(), client_info=info, **options)
        return await self._stack.enter_async_context(client)


@asynccontextmanager
async def serve(filesystem: Filesystem, **options: Any) -> AsyncIterator[Served]:
    workspace = McpWorkspace(filesystem, **options)
    try:
        async with AsyncExitStack() as stack:
            yield Served(workspace, stack)
    finally:
        await anyio.to_thread.run_sync(workspace.close)


def run(root: Path, work: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    """Serve a directory in memory while `work` runs."""

    async def main() -> None:
        root.mkdir(exist_ok=True)
        with HostFilesystem(root, git_dir=root.parent / f"{root.name}.git") as files:
            with anyio.fail_after(60):
                async with serve(files, **options) as served:
                    await work(served)

    anyio.run(main)


async def call(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that must succeed; return its text."""
    result = await client.call_tool(tool, arguments)
    text = text_of(result)
    assert not result.is_error, text
    return text


async def fail(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that must fail; return its text."""
    result = await client.call_tool(tool, arguments)
    text = text_of(result)
    assert result.is_error, text
    return text


def text_of(result: CallToolResult) -> str:
    return "\n".join(each.text for each in result.content if each.type == "text")
