"""A workspace in a server that has tools and resources of its own."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server import MCPServer, Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

from tests.mcp.serving import call
from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace


def high_level() -> MCPServer:
    server = MCPServer("theirs")

    @server.tool()
    def greet(name: str) -> str:
        return f"hello {name}"

    @server.resource("theirs://config")
    def config() -> str:
        return "theirs"

    return server


def low_level() -> Server[Any]:
    async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="greet", input_schema={"type": "object"})])

    async def call_tool(_context: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=f"hello {params.arguments['name']}")])

    return Server("theirs", on_list_tools=list_tools, on_call_tool=call_tool)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("create", [high_level, low_level])
def test_tools_and_resources_of_both_are_there(tmp_path: Path, create: Any, mode: str) -> None:
    root = tmp_path / "w"
    root.mkdir()

    async def main() -> None:
        server = create()
        with HostFilesystem(root, git_dir=tmp_path / "git") as files:
            workspace = McpWorkspace(files)
            workspace.mount(server)
            try:
                async with Client(server, mode=mode) as client:
                    names = [tool.name for tool in (await client.list_tools()).tools]
                    assert {"greet", "write_file", "undo"} <= set(names)
                    assert len(names) == len(set(names))
                    assert "hello you" in await call(client, "greet", name="you")
                    await call(client, "write_file", path="a.txt", content="a")
                    uris = [str(each.uri) for each in (await client.list_resources()).resources]
                    assert len(uris) == len(set(uris))
                    templates = (await client.list_resource_templates()).resource_templates
                    assert [each.name for each in templates] == ["file", "diff"]
                    assert {(root / "a.txt").as_uri(), "wink://log"} <= set(uris)
                    assert ("theirs://config" in uris) == (create is high_level)
                    read = await client.read_resource((root / "a.txt").as_uri())
                    assert read.contents[0].text == "a"  # type: ignore[union-attr]
                    await call(client, "undo")
            finally:
                await anyio.to_thread.run_sync(workspace.close)

    anyio.run(main)
    assert list(root.iterdir()) == []
