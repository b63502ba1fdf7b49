from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.stdio import serve_stdio
from weakincentives.mcp.workspace import McpWorkspace

__all__ = ["McpClient", "McpWorkspace", "serve_stdio"]
