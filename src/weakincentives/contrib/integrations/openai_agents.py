"""OpenAI Agents SDK tools for a toolbox; needs the extra `openai-agents`."""

from base64 import b64encode
from typing import Any, TypeAlias

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations.toolbox import Toolbox, copy_schema
from weakincentives.extras import needs_extra
from weakincentives.prompt import Tool

with needs_extra("the tools for OpenAI Agents", "openai-agents"):
    from agents import FunctionTool, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext

__all__ = ["openai_agents_tools"]

_Output: TypeAlias = str | list[ToolOutputText | ToolOutputImage]


def openai_agents_tools(toolbox: Toolbox, *, pictures: bool = False) -> list[FunctionTool]:
    """Return the tools of a toolbox, for `Agent(tools=...)`.

    Args:
        toolbox: The toolbox, which runs the calls.
        pictures: Whether to pass pictures from tools to the model; a model without vision may
            reject the whole conversation.
    """
    return [_create_tool(toolbox, tool, pictures=pictures) for tool in toolbox.tools]


def _create_tool(toolbox: Toolbox, tool: Tool[Any, Any], *, pictures: bool) -> FunctionTool:
    async def run(context: ToolContext[Any], arguments: str) -> _Output:
        call = ToolCall(tool.name, arguments, context.tool_call_id)
        return _render_outcome(await toolbox.execute_async(call), pictures=pictures)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=copy_schema(tool),
        on_invoke_tool=run,
        # strict mode would make every optional parameter required
        strict_json_schema=False,
    )


def _render_outcome(outcome: ToolOutcome, *, pictures: bool) -> _Output:
    if not pictures or not outcome.result.media:
        return outcome.text
    images = [
        ToolOutputImage(image_url=f"data:{each.media_type};base64,{b64encode(each.data).decode()}")
        for each in outcome.result.media
    ]
    return [ToolOutputText(text=outcome.text), *images]
