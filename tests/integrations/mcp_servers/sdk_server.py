"""An MCP server with the official SDK; as a script, over its standard streams."""

from typing import TypedDict

from mcp.server.mcpserver import MCPServer


class Sum(TypedDict):
    total: int


def add(numbers: list[int], note: str = "") -> Sum:
    """Add numbers, ignore the note."""
    return {"total": sum(numbers)}


def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


def fail() -> str:
    """Fail."""
    raise ValueError("on purpose")


def create() -> MCPServer:
    server = MCPServer("sdk", log_level="ERROR")
    for each in (add, greet, fail):
        server.tool()(each)
    return server


if __name__ == "__main__":
    create().run("stdio")
