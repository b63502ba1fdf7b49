"""The tools of a toolbox for Pydantic AI: the extra `pydantic-ai`."""

import json
from typing import Any, cast

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations.toolbox import Toolbox, schema_of
from weakincentives.prompt import Tool

try:
    from pydantic_ai import AbstractToolset, BinaryContent, RunContext, ToolFailed
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_ai.toolsets import ToolsetTool
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "Tools for Pydantic AI need an extra: pip install 'weakincentives[pydantic-ai]'",
        name=_error.name,
    ) from _error

__all__ = ["WorkspaceToolset"]


class WorkspaceToolset(AbstractToolset[AgentDepsT]):
    """The tools of a toolbox, as `Agent(toolsets=...)` takes them."""

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        pictures: bool = False,
        id: str | None = None,  # noqa: A002  # what Pydantic AI calls it
    ) -> None:
        """Offer the tools of `toolbox`.

        Args:
            toolbox: What runs them.
            pictures: Show the model the pictures that tools return; one that cannot see may
                refuse the whole conversation.
            id: What tells this toolset from others of an agent.
        """
        self._toolbox = toolbox
        self._pictures = pictures
        self._id = id

    @property
    def id(self) -> str | None:
        """What tells this toolset from others of an agent."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """Return the tools by their names."""
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=_definition(tool),
                max_retries=1,
                args_validator=_Arguments(),
            )
            for tool in self._toolbox.tools
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[AgentDepsT],
        tool: ToolsetTool[AgentDepsT],
    ) -> Any:
        """Run a call.

        Raises:
            ToolFailed: It failed, and changed nothing; the model is told why.
        """
        arguments = tool_args.text if isinstance(tool_args, _Unreadable) else tool_args
        call = ToolCall(name, arguments, ctx.tool_call_id or "")
        return _returned(await self._toolbox.execute_async(call), pictures=self._pictures)


class _Unreadable(dict[str, Any]):
    """Arguments that are no JSON object, as the model sent them."""

    def __init__(self, text: str) -> None:
        super().__init__(invalid_arguments=text)
        self.text = text


class _Arguments:
    """Lets all arguments through: the toolbox says what is wrong with them."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:  # noqa: A002  # by keyword
        text = input if isinstance(input, str) else input.decode("utf-8", "replace")
        try:
            read = json.loads(text)
        except (ValueError, RecursionError):
            read = None
        return cast("dict[str, Any]", read) if isinstance(read, dict) else _Unreadable(text)

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:  # noqa: A002  # by keyword
        return input


def _definition(tool: Tool[Any, Any]) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=schema_of(tool),
        strict=False,  # a strict schema is another one: all that is optional would be asked for
        sequential=not tool.read_only,
    )


def _returned(outcome: ToolOutcome, *, pictures: bool) -> str | list[str | BinaryContent]:
    if not outcome.result.success:
        raise ToolFailed(outcome.text)
    if not pictures or not outcome.result.media:
        return outcome.text
    shown = [BinaryContent(each.data, media_type=each.media_type) for each in outcome.result.media]
    return [outcome.text, *shown]
