"""Claude Code as a process of its own, and what is heard of it: messages, and what it asks.

The SDK is asynchronous, and so it lives in a thread with an event loop. What it brings is
put into one queue, which the thread of the run takes it from: tools run there, and nowhere
else.
"""

import asyncio
from asyncio import AbstractEventLoop, Future, Task
from base64 import b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Literal, Self, TypeAlias
from uuid import uuid4

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookContext,
    HookInput,
    HookJSONOutput,
    HookMatcher,
    McpSdkServerConfig,
    Message,
)
from mcp.server import Server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, Tool

from weakincentives.adapters.cancellation import drain_until
from weakincentives.adapters.messages import ToolDefinition, ToolOutcome

SERVER = "wink"
"""What Claude Code calls the server that has our tools."""
PREFIX = f"mcp__{SERVER}__"
"""What the names of our tools begin with there."""
_CALL_ID = "claudecode/toolUseId"
_INTERRUPT = 2.0  # seconds; after them it is closed all the same
_LINES = 20
_PATIENCE = 86_400.0  # seconds that a hook may take: what it waits for is bounded elsewhere


@dataclass(frozen=True, slots=True)
class Asked:
    """Something that Claude Code waits for an answer to.

    Args:
        what: A call of one of our tools, or word of a call of one of its own: before it
            runs, or after.
        name: The tool.
        arguments: Of the call.
        call_id: Of the call.
        answer: Where the answer goes.
    """

    what: Literal["call", "before", "after"]
    name: str
    arguments: Mapping[str, Any]
    call_id: str
    answer: "Future[Any]" = field(repr=False)

    def reply(self, value: object) -> None:
        """Answer, from any thread; nobody may be waiting any more."""
        with suppress(RuntimeError):  # the loop is closed
            self.answer.get_loop().call_soon_threadsafe(self._settle, value)

    def _settle(self, value: object) -> None:
        if not self.answer.done():
            self.answer.set_result(value)


@dataclass(frozen=True, slots=True)
class Ended:
    """The process has come to its end, by itself or by a failure."""

    error: BaseException | None = None


Heard: TypeAlias = Message | Asked | Ended


class AgentProcess:
    """One run of Claude Code; as a context manager it is over at the end, whatever happens."""

    def __init__(
        self,
        prompt: str,
        options: ClaudeAgentOptions,
        *,
        tools: Sequence[ToolDefinition],
        watched: Sequence[str],
    ) -> None:
        """Work on a prompt.

        Args:
            prompt: What the model is asked.
            options: How Claude Code is started; tools and hooks are added.
            tools: Ours, which it may call.
            watched: Names of its own tools that we want to hear of before and after a call.
        """
        self._prompt = prompt
        self._tools = tools
        self._heard: SimpleQueue[Heard | None] = SimpleQueue()
        self._errors: deque[str] = deque(maxlen=_LINES)
        self._options = replace(
            options,
            mcp_servers={SERVER: self._server()} if tools else {},
            hooks=self._hooks(watched) if watched else None,
            stderr=self._errors.append,
        )
        self._loop: AbstractEventLoop | None = None
        self._task: Task[None] | None = None
        self._started = Event()
        self._thread = Thread(target=self._work, name="wink-claude", daemon=True)

    @property
    def complaints(self) -> str:
        """What it wrote to its standard error, as far as one wants to see that."""
        return "\n".join(line for line in self._errors if not line.startswith("[claude-code:"))

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and return when nothing of it runs any more."""
        self._started.wait()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it is over
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def heard(self, seconds: float) -> Heard | None:
        """Return what is heard next, or None after so many seconds or when woken."""
        return next(drain_until(seconds, self._heard), None)

    def wake(self) -> None:
        """Have who waits in `heard` return."""
        self._heard.put(None)

    def _work(self) -> None:
        try:
            asyncio.run(self._talk())
            self._heard.put(Ended())
        except BaseException as error:  # noqa: BLE001 # it is raised where it is waited for
            self._heard.put(Ended(error))
        finally:
            self._started.set()

    async def _talk(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        client = ClaudeSDKClient(self._options)
        try:
            await client.connect()
            await client.query(self._prompt)
            async for message in client.receive_response():
                self._heard.put(message)
        except asyncio.CancelledError:
            # a process that waits for its provider would not see that nobody listens
            with suppress(Exception):
                await asyncio.wait_for(client.interrupt(), _INTERRUPT)
            raise
        finally:
            await client.disconnect()

    async def _ask(
        self,
        what: Literal["call", "before", "after"],
        name: str,
        arguments: Mapping[str, Any],
        call_id: str,
    ) -> Any:
        answer: Future[Any] = asyncio.get_running_loop().create_future()
        self._heard.put(Asked(what, name, arguments, call_id, answer))
        return await answer

    def _server(self) -> McpSdkServerConfig:
        """Return a server of our tools; arguments are checked by the tools, and nowhere before."""
        listed = ListToolsResult(
            tools=[
                Tool(name=each.name, description=each.description, input_schema=dict(each.schema))
                for each in self._tools
            ]
        )

        async def on_list_tools(_: object, __: object) -> ListToolsResult:
            return listed

        async def on_call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
            told: Mapping[str, Any] = params.meta or {}  # pyright: ignore[reportAssignmentType] # keys that MCP does not know
            call_id = str(told.get(_CALL_ID) or uuid4())
            outcome = await self._ask("call", params.name, params.arguments or {}, call_id)
            return _result(outcome)

        server = Server(SERVER, on_list_tools=on_list_tools, on_call_tool=on_call_tool)
        return McpSdkServerConfig(type="sdk", name=SERVER, instance=server)

    def _hooks(self, watched: Sequence[str]) -> dict[Any, list[HookMatcher]]:
        names = "|".join(watched)

        async def before(told: HookInput, call_id: str | None, _: HookContext) -> HookJSONOutput:
            return await self._ask(
                "before", str(told.get("tool_name")), told.get("tool_input", {}), call_id or ""
            )

        async def after(told: HookInput, call_id: str | None, _: HookContext) -> HookJSONOutput:
            return await self._ask(
                "after", str(told.get("tool_name")), told.get("tool_input", {}), call_id or ""
            )

        return {
            "PreToolUse": [HookMatcher(matcher=names, hooks=[before], timeout=_PATIENCE)],
            "PostToolUse": [HookMatcher(matcher=names, hooks=[after], timeout=_PATIENCE)],
            "PostToolUseFailure": [HookMatcher(matcher=names, hooks=[after], timeout=_PATIENCE)],
        }


def _result(outcome: ToolOutcome) -> CallToolResult:
    content: list[dict[str, Any]] = [{"type": "text", "text": outcome.text}]
    content += [
        {"type": "image", "data": b64encode(each.data).decode(), "mimeType": each.media_type}
        for each in outcome.result.media
    ]
    return CallToolResult.model_validate(
        {"content": content, "isError": not outcome.result.success}
    )
