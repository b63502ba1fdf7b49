"""Serve a workspace over standard input and output, for the client that started the process."""

import anyio
from mcp.server.stdio import stdio_server

from weakincentives.mcp.workspace import McpWorkspace


def serve_stdio(workspace: McpWorkspace) -> None:
    """Serve one client until it closes standard input."""
    anyio.run(_serve, workspace)


async def _serve(workspace: McpWorkspace) -> None:
    server = workspace.create_server()
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
