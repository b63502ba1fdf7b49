"""LangChain and LangGraph tools for a toolbox; needs the extra `langchain`."""

from base64 import b64encode
from typing import Any

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations.toolbox import Toolbox, copy_schema
from weakincentives.extras import needs_extra
from weakincentives.prompt import Tool

with needs_extra("the tools for LangChain", "langchain"):
    from langchain_core.tools import StructuredTool, ToolException

__all__ = ["langchain_tools"]


def langchain_tools(toolbox: Toolbox, *, pictures: bool = False) -> list[StructuredTool]:
    """Return the tools of a toolbox, to pass to an agent or bind to a model.

    A failed call becomes a `ToolMessage` with the status `error`.

    Args:
        toolbox: The toolbox, which runs the calls.
        pictures: Whether to pass pictures from tools to the model; a model without vision may
            reject the whole conversation.
    """
    return [_create_tool(toolbox, tool, pictures=pictures) for tool in toolbox.tools]


class _CallTool(StructuredTool):
    """A tool whose function receives the whole call as one `ToolCall`."""

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # keywords would lose the call's id, and LangChain claims the keyword `config` for itself
        return (ToolCall(self.name, tool_input, tool_call_id or ""),), {}


def _create_tool(toolbox: Toolbox, tool: Tool[Any, Any], *, pictures: bool) -> StructuredTool:
    def run(call: ToolCall) -> str | list[dict[str, str]]:
        return _render_outcome(toolbox.execute(call), pictures=pictures)

    async def run_async(call: ToolCall) -> str | list[dict[str, str]]:
        return _render_outcome(await toolbox.execute_async(call), pictures=pictures)

    return _CallTool(
        name=tool.name,
        description=tool.description,
        args_schema=copy_schema(tool),
        func=run,
        coroutine=run_async,
        handle_tool_error=True,
    )


def _render_outcome(outcome: ToolOutcome, *, pictures: bool) -> str | list[dict[str, str]]:
    if not outcome.result.success:
        raise ToolException(outcome.text)
    if not pictures or not outcome.result.media:
        return outcome.text
    images = [
        {"type": "image", "base64": b64encode(each.data).decode(), "mime_type": each.media_type}
        for each in outcome.result.media
    ]
    return [{"type": "text", "text": outcome.text}, *images]
