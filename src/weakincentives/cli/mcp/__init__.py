"""`wink mcp`: the workspace as an MCP server, and its set-up in the known clients."""
