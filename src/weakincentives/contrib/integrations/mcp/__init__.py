"""Tools of any MCP server as tools of a prompt; needs the extra `mcp`.

`McpToolsSection` starts a server (`McpStdioServer`) or connects to one (`McpHttpServer`), and
offers its tools. Everything that a server says is data from a foreign program: bounded, framed
and with invisible characters removed or escaped.
"""

from weakincentives.extras import needs_extra as _needs_extra

with _needs_extra("tools of MCP servers", "mcp"):
    import mcp.client as _sdk

from weakincentives.contrib.integrations.mcp.connection import McpServerError
from weakincentives.contrib.integrations.mcp.definitions import RefusedTool
from weakincentives.contrib.integrations.mcp.results import McpResult
from weakincentives.contrib.integrations.mcp.section import McpToolsSection
from weakincentives.contrib.integrations.mcp.transport import (
    McpHttpServer,
    McpServer,
    McpStdioServer,
)

del _sdk

__all__ = [
    "McpHttpServer",
    "McpResult",
    "McpServer",
    "McpServerError",
    "McpStdioServer",
    "McpToolsSection",
    "RefusedTool",
]
