"""The tools of a workspace in other frameworks: one module for each, over one toolbox.

`langchain`, `openai_agents` and `pydantic_ai` need the extra of the same name, and are imported
by those who use them.
"""

from weakincentives.contrib.integrations.toolbox import Toolbox

__all__ = ["Toolbox"]
