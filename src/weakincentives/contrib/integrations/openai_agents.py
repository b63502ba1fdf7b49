"""The tools of a toolbox for the OpenAI Agents SDK: the extra `openai-agents`."""

from base64 import b64encode
from typing import Any, TypeAlias

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations.toolbox import Toolbox, schema_of
from weakincentives.prompt import Tool

try:
    from agents import FunctionTool, ToolOutputImage, ToolOutputText
    from agents.tool_context import ToolContext
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Tools for OpenAI Agents need an extra: pip install 'weakincentives[openai-agents]'",
        name=_error.name,
    ) from _error

__all__ = ["openai_agents_tools"]

_Output: TypeAlias = str | list[ToolOutputText | ToolOutputImage]


def openai_agents_tools(toolbox: Toolbox, *, pictures: bool = False) -> list[FunctionTool]:
    """Return the tools of a toolbox, as `Agent(tools=...)` takes them.

    Args:
        toolbox: What runs them.
        pictures: Show the model the pictures that tools return; one that cannot see may refuse
            the whole conversation.
    """
    return [_tool(toolbox, tool, pictures=pictures) for tool in toolbox.tools]


def _tool(toolbox: Toolbox, tool: Tool[Any, Any], *, pictures: bool) -> FunctionTool:
    async def run(context: ToolContext[Any], arguments: str) -> _Output:
        call = ToolCall(tool.name, arguments, context.tool_call_id)
        return _output(await toolbox.execute_async(call), pictures=pictures)

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=schema_of(tool),
        on_invoke_tool=run,
        # a strict schema is another one: all that is optional would be asked for
        strict_json_schema=False,
    )


def _output(outcome: ToolOutcome, *, pictures: bool) -> _Output:
    if not pictures or not outcome.result.media:
        return outcome.text
    shown = [
        ToolOutputImage(image_url=f"data:{each.media_type};base64,{b64encode(each.data).decode()}")
        for each in outcome.result.media
    ]
    return [ToolOutputText(text=outcome.text), *shown]
