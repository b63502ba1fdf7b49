"""Pydantic AI toolset for a toolbox; needs the extra `pydantic-ai`."""

import json
from typing import Any, cast

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations.toolbox import Toolbox, copy_schema
from weakincentives.extras import needs_extra
from weakincentives.prompt import Tool

with needs_extra("the tools for Pydantic AI", "pydantic-ai"):
    from pydantic_ai import AbstractToolset, BinaryContent, RunContext, ToolFailed
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
    from pydantic_ai.toolsets import ToolsetTool

__all__ = ["WorkspaceToolset"]


class WorkspaceToolset(AbstractToolset[AgentDepsT]):
    """The tools of a toolbox, for `Agent(toolsets=...)`."""

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        pictures: bool = False,
        id: str | None = None,  # noqa: A002  # Pydantic AI's name
    ) -> None:
        """Offer the tools of `toolbox`.

        Args:
            toolbox: The toolbox, which runs the calls.
            pictures: Whether to pass pictures from tools to the model; a model without vision
                may reject the whole conversation.
            id: Distinguishes this toolset from other toolsets of an agent.
        """
        self._toolbox = toolbox
        self._pictures = pictures
        self._id = id

    @property
    def id(self) -> str | None:
        """Distinguishes this toolset from other toolsets of an agent."""
        return self._id

    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        """Return the tools by name."""
        del ctx  # every run gets the same tools
        return {
            tool.name: ToolsetTool(
                toolset=self,
                tool_def=_define_tool(tool),
                max_retries=1,
                args_validator=_LenientValidator(),
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
            ToolFailed: The call failed and changed nothing; the model reads the reason.
        """
        del tool  # the toolbox finds it by name
        arguments = tool_args.text if isinstance(tool_args, _InvalidArguments) else tool_args
        call = ToolCall(name, arguments, ctx.tool_call_id or "")
        return _render_outcome(await self._toolbox.execute_async(call), pictures=self._pictures)


class _InvalidArguments(dict[str, Any]):
    """Arguments that are not a JSON object, as the model sent them."""

    def __init__(self, text: str) -> None:
        super().__init__(invalid_arguments=text)
        self.text = text


class _LenientValidator:
    """Accepts all arguments; the toolbox validates them and words the errors."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:  # noqa: A002  # by keyword
        text = input if isinstance(input, str) else input.decode("utf-8", "replace")
        try:
            decoded = json.loads(text)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict):
            return cast("dict[str, Any]", decoded)
        return _InvalidArguments(text)

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:  # noqa: A002  # by keyword
        return input


def _define_tool(tool: Tool[Any, Any]) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters_json_schema=copy_schema(tool),
        strict=False,  # strict mode would make every optional parameter required
        sequential=not tool.read_only,
    )


def _render_outcome(outcome: ToolOutcome, *, pictures: bool) -> str | list[str | BinaryContent]:
    if not outcome.result.success:
        raise ToolFailed(outcome.text)
    if not pictures or not outcome.result.media:
        return outcome.text
    images = [BinaryContent(each.data, media_type=each.media_type) for each in outcome.result.media]
    return [outcome.text, *images]
