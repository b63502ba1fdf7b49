"""The tools of a toolbox for LangChain and LangGraph: the extra `langchain`."""

from base64 import b64encode
from typing import Any

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations.toolbox import Toolbox, schema_of
from weakincentives.prompt import Tool

try:
    from langchain_core.tools import StructuredTool, ToolException
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Tools for LangChain need an extra: pip install 'weakincentives[langchain]'",
        name=_error.name,
    ) from _error

__all__ = ["langchain_tools"]


def langchain_tools(toolbox: Toolbox, *, pictures: bool = False) -> list[StructuredTool]:
    """Return the tools of a toolbox, to hand to an agent or to bind to a model.

    A failed call is a `ToolMessage` with the status `error`.

    Args:
        toolbox: What runs them.
        pictures: Show the model the pictures that tools return; one that cannot see may refuse
            the whole conversation.
    """
    return [_tool(toolbox, tool, pictures=pictures) for tool in toolbox.tools]


class _CallableTool(StructuredTool):
    """A tool whose function is given the call as a whole."""

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # as keywords the id of the call would be lost, and a field named `config` be LangChain's
        return (ToolCall(self.name, tool_input, tool_call_id or ""),), {}


def _tool(toolbox: Toolbox, tool: Tool[Any, Any], *, pictures: bool) -> StructuredTool:
    def run(call: ToolCall) -> str | list[dict[str, str]]:
        return _content(toolbox.execute(call), pictures=pictures)

    async def run_async(call: ToolCall) -> str | list[dict[str, str]]:
        return _content(await toolbox.execute_async(call), pictures=pictures)

    return _CallableTool(
        name=tool.name,
        description=tool.description,
        args_schema=schema_of(tool),
        func=run,
        coroutine=run_async,
        handle_tool_error=True,
    )


def _content(outcome: ToolOutcome, *, pictures: bool) -> str | list[dict[str, str]]:
    if not outcome.result.success:
        raise ToolException(outcome.text)
    if not pictures or not outcome.result.media:
        return outcome.text
    shown = [
        {"type": "image", "base64": b64encode(each.data).decode(), "mime_type": each.media_type}
        for each in outcome.result.media
    ]
    return [{"type": "text", "text": outcome.text}, *shown]
