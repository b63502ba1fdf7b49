"""The workspace for MCP clients: tools on files, undo, and the session's log.

`McpWorkspace` is the workspace; `weakincentives.mcp.stdio` serves it to the client that starts the
process. It needs the extra `mcp`.
"""

from weakincentives.extras import describe_missing as _describe_missing

try:
    import mcp.server as _sdk
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        _describe_missing("the MCP server", "mcp"), name=_error.name
    ) from _error

from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.stdio import serve_stdio
from weakincentives.mcp.workspace import McpWorkspace

del _sdk

__all__ = ["McpClient", "McpWorkspace", "serve_stdio"]
