"""A workspace served to the official SDK's client, in memory and over stdio."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace

SERVER = """\
import sys
from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace, serve_stdio
with HostFilesystem(sys.argv[1], git_dir=sys.argv[2]) as files:
    serve_stdio(McpWorkspace(files))
"""


def run_client(root: Path, work: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        with HostFilesystem(root, git_dir=root.parent / "git") as files:
            workspace = McpWorkspace(files)
            try:
                async with Client(workspace.create_server()) as client:
                    await work(client)
            finally:
                workspace.close()

    anyio.run(main)


def test_a_client_lists_and_calls_tools(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()

    async def work(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["write_file"].title == "Write file"
        written = await client.call_tool("write_file", {"path": "a.txt", "content": "hello\n"})
        assert not written.is_error
        read = await client.call_tool("read_text_file", {"path": "a.txt"})
        assert "hello" in read.structured_content["content"]

    run_client(root, work)
    assert (root / "a.txt").read_text() == "hello\n"


def test_a_client_starts_the_server_and_calls_it_over_stdio(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()

    async def main() -> None:
        command = StdioServerParameters(
            command=sys.executable, args=["-c", SERVER, str(root), str(tmp_path / "git")]
        )
        async with Client(stdio_client(command)) as client:
            await client.call_tool("write_file", {"path": "a.txt", "content": "hello\n"})

    anyio.run(main)
    assert (root / "a.txt").read_text() == "hello\n"
