"""The Claude Code process: messages and requests from it, and errors from how it ends.

The SDK is asynchronous, so it runs in a thread with an event loop. Everything from it goes into
one queue that the thread of the run reads; tools run in that thread only.
"""

import asyncio
from asyncio import AbstractEventLoop, Future, Task
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Literal, Self, TypeAlias
from uuid import uuid4

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    CLINotFoundError,
    HookContext,
    HookInput,
    HookJSONOutput,
    HookMatcher,
    McpSdkServerConfig,
    ResultMessage,
)
from claude_agent_sdk import Message as SdkMessage
from mcp.server import Server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, Tool

from weakincentives.adapters.cancellation import drain_until
from weakincentives.adapters.errors import (
    AdapterError,
    AuthenticationError,
    InvalidRequestError,
    OutputError,
    StepLimitError,
)
from weakincentives.adapters.http.errors import (
    Endpoint,
    connection_error,
    error_from_response,
    excerpt,
    incomplete_response,
)
from weakincentives.adapters.loop.output import ExpectedOutput
from weakincentives.adapters.loop.run import step_limit_message
from weakincentives.adapters.messages import Message, ToolDefinition, ToolOutcome
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Media

SERVER = "wink"
"""Name of the MCP server with our tools."""
PREFIX = f"mcp__{SERVER}__"
"""Prefix of our tools' names in Claude Code."""
_CALL_ID = "claudecode/toolUseId"
_INTERRUPT_TIMEOUT = 2.0  # seconds; then the process is closed anyway
_MAX_STDERR_LINES = 20
_HOOK_TIMEOUT = 86_400.0  # seconds; what a hook waits for has its own limits
_NO_KEY = ("not logged in", "/login", "invalid api key")
_Kind: TypeAlias = Literal["call", "before", "after"]
_UNREACHABLE = ("econn", "connection refused", "connection dropped", "unable to connect")


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request of Claude Code that waits for a reply.

    Args:
        kind: A call of one of our tools, or a hook before or after a call of its own.
        name: The tool.
        arguments: Arguments of the call.
        call_id: Id of the call.
        answer: Receives the reply.
    """

    kind: _Kind
    name: str
    arguments: Mapping[str, Any]
    call_id: str
    answer: "Future[Any]" = field(repr=False)

    def reply(self, value: object) -> None:
        """Reply from any thread; does nothing if nobody waits any more."""
        with suppress(RuntimeError):  # the loop is closed
            self.answer.get_loop().call_soon_threadsafe(self._set_answer, value)

    def _set_answer(self, value: object) -> None:
        if not self.answer.done():
            self.answer.set_result(value)


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The process has ended, with an error or without."""

    error: BaseException | None = None


AgentEvent: TypeAlias = SdkMessage | AgentRequest | ProcessExit


@dataclass(frozen=True, slots=True)
class AgentTask:
    """What Claude Code gets for a run.

    Args:
        expected: The expected output, or None for free text.
        input: The text to send.
        media: The pictures to send with it.
        messages: The conversation so far, with the new request.
        workspace: Where Claude Code's own tools work.
        native_tools: The names of these tools.
        options: Options of Claude Code.
        undo_on_failure: Whether a failed run restores files and session.
    """

    expected: ExpectedOutput | None
    input: str
    media: tuple[Media, ...]
    messages: tuple[Message, ...]
    workspace: Filesystem | None
    native_tools: Sequence[str]
    options: ClaudeAgentOptions
    undo_on_failure: bool


class AgentProcess:
    """One run of Claude Code; as a context manager it stops the process at the end."""

    def __init__(self, task: AgentTask, tools: Sequence[ToolDefinition]) -> None:
        """Prepare to run a task, with `tools` of ours, and hooks around calls of its own."""
        self._input = task
        self._tools = tools
        self._events: SimpleQueue[AgentEvent | None] = SimpleQueue()
        self._stderr: deque[str] = deque(maxlen=_MAX_STDERR_LINES)
        self._options = replace(
            task.options,
            mcp_servers={SERVER: self._server()} if tools else {},
            hooks=self._hooks(task.native_tools) if task.native_tools else None,
            stderr=self._stderr.append,
        )
        self._loop: AbstractEventLoop | None = None
        self._task: Task[None] | None = None
        self._started = Event()
        self._thread = Thread(target=self._work, name="wink-claude", daemon=True)

    @property
    def stderr(self) -> str:
        """The last lines of its standard error, without its debug output."""
        return "\n".join(line for line in self._stderr if not line.startswith("[claude-code:"))

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the process, and wait until it has ended."""
        self._started.wait()
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def next_event(self, seconds: float) -> AgentEvent | None:
        """Return the next event, or None after `seconds` or on `wake`."""
        return next(drain_until(seconds, self._events), None)

    def wake(self) -> None:
        """Make a waiting `next_event` return None."""
        self._events.put(None)

    def _work(self) -> None:
        try:
            asyncio.run(self._communicate())
            self._events.put(ProcessExit())
        except BaseException as error:  # noqa: BLE001 # raised again in the thread of the run
            self._events.put(ProcessExit(error))
        finally:
            self._started.set()

    async def _communicate(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        client = ClaudeSDKClient(self._options)
        try:
            await client.connect()
            task = self._input
            await client.query(self._request_messages() if task.media else task.input)
            async for message in client.receive_response():
                self._events.put(message)
        except asyncio.CancelledError:
            # a process that waits for its provider would not notice that it is cancelled
            with suppress(Exception):
                await asyncio.wait_for(client.interrupt(), _INTERRUPT_TIMEOUT)
            raise
        finally:
            await client.disconnect()

    async def _request_messages(self) -> AsyncGenerator[dict[str, Any], None]:
        pictures = [
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": each.media_type,
                    "data": b64encode(each.data).decode(),
                },
            }
            for each in self._input.media
        ]
        content = [*pictures, {"type": "text", "text": self._input.input}]
        message = {"role": "user", "content": content}
        yield {"type": "user", "message": message, "parent_tool_use_id": None}

    async def _request(
        self, kind: _Kind, name: str, arguments: Mapping[str, Any], call_id: str
    ) -> Any:
        answer: Future[Any] = asyncio.get_running_loop().create_future()
        self._events.put(AgentRequest(kind, name, arguments, call_id, answer))
        return await answer

    def _server(self) -> McpSdkServerConfig:
        """Return an MCP server with our tools; the tools themselves validate their arguments."""
        result = ListToolsResult(
            tools=[
                Tool(name=each.name, description=each.description, input_schema=dict(each.schema))
                for each in self._tools
            ]
        )

        async def on_list_tools(_: object, __: object) -> ListToolsResult:
            return result

        async def on_call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
            meta: Mapping[str, Any] = params.meta or {}  # pyright: ignore[reportAssignmentType] # keys that MCP does not know
            call_id = str(meta.get(_CALL_ID) or uuid4())
            outcome = await self._request("call", params.name, params.arguments or {}, call_id)
            return _to_mcp_result(outcome)

        server = Server(SERVER, on_list_tools=on_list_tools, on_call_tool=on_call_tool)
        return McpSdkServerConfig(type="sdk", name=SERVER, instance=server)

    def _hooks(self, tools: Sequence[str]) -> dict[Any, list[HookMatcher]]:
        names = "|".join(tools)

        def matchers(kind: _Kind) -> list[HookMatcher]:
            async def hook(data: HookInput, call_id: str | None, _: HookContext) -> HookJSONOutput:
                name, arguments = str(data.get("tool_name")), data.get("tool_input", {})
                return await self._request(kind, name, arguments, call_id or "")

            return [HookMatcher(matcher=names, hooks=[hook], timeout=_HOOK_TIMEOUT)]

        return {
            "PreToolUse": matchers("before"),
            "PostToolUse": matchers("after"),
            "PostToolUseFailure": matchers("after"),
        }


def _to_mcp_result(outcome: ToolOutcome) -> CallToolResult:
    content: list[dict[str, Any]] = [{"type": "text", "text": outcome.text}]
    content += [
        {"type": "image", "data": b64encode(each.data).decode(), "mimeType": each.media_type}
        for each in outcome.result.media
    ]
    return CallToolResult.model_validate(
        {"content": content, "isError": not outcome.result.success}
    )


def error_from_exit(error: BaseException | None, endpoint: Endpoint, stderr: str) -> BaseException:
    """Return the error for a process that ended without a result.

    Args:
        error: The SDK's exception, if there was one.
        endpoint: The provider.
        stderr: What the process wrote to its standard error.
    """
    if isinstance(error, CLINotFoundError | PermissionError | FileNotFoundError):
        return InvalidRequestError(
            f"Claude Code did not start, reinstall the extra: {excerpt(endpoint, str(error))}",
            provider=endpoint.provider,
        )
    if error is None or isinstance(error, ClaudeSDKError | OSError | TimeoutError):
        # without its cause, which contains the output of the process and possibly the key
        reason = stderr or ("no error message" if error is None else str(error))
        return incomplete_response(endpoint, f"Claude Code ended: {reason}")
    return error


def error_from_result(
    result: ResultMessage, endpoint: Endpoint, *, steps: int, calls: int
) -> AdapterError:
    """Return the error for an unsuccessful result."""
    message = result.result or "; ".join(result.errors or ()) or result.subtype
    if result.subtype == "error_max_turns":
        return StepLimitError(step_limit_message(steps, calls))
    if result.subtype == "error_max_structured_output_retries":
        return OutputError(
            f"The answer does not match the prompt's output type: {excerpt(endpoint, message)}"
        )
    lower = message.lower()
    if result.api_error_status is None and any(each in lower for each in _NO_KEY):
        return AuthenticationError(
            f"{endpoint.provider} rejects the key, check {endpoint.key}:"
            f" {excerpt(endpoint, message)!r}",
            provider=endpoint.provider,
        )
    if result.api_error_status is None and any(each in lower for each in _UNREACHABLE):
        return connection_error(endpoint, message)
    return error_from_response(endpoint, message, status=result.api_error_status)
