"""Workspace tools for other agent frameworks: one adapter module for each, over one toolbox.

`langchain`, `openai_agents` and `pydantic_ai` each need the extra of the same name. Import the
one you use. `mcp` is the other direction: tools of MCP servers in a prompt.
"""

from weakincentives.contrib.integrations.toolbox import Toolbox

__all__ = ["Toolbox"]
