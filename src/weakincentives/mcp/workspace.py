"""An MCP workspace: tools on files for several clients, each call a transaction."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mcp.server import MCPServer, Server

from weakincentives import __version__
from weakincentives.adapters import MAX_RESULT_CHARACTERS, Policy
from weakincentives.contrib.evaluation import Engine
from weakincentives.contrib.tools import (
    ToolSettings,
    WorkspaceParams,
    WriteFileParams,
    filesystem_tools,
    repo_map_handlers,
)
from weakincentives.contrib.tools.context import Handler, HandlerContext
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.evaluation import evaluation_handlers
from weakincentives.contrib.tools.shell import DEFAULT_SHELL_LIMITS, ShellLimits, shell_handlers
from weakincentives.filesystem import Filesystem, HostBacked
from weakincentives.mcp.calls import CallExecution, CallQueue
from weakincentives.mcp.clients import ClientRegistry, ClientRoots, KnownFiles, McpClient, file_uri
from weakincentives.mcp.handlers import RequestHandlers, Subscriptions, mount
from weakincentives.mcp.history import open_history
from weakincentives.mcp.history_tools import HistoryTools
from weakincentives.mcp.resources import WorkspaceResources
from weakincentives.mcp.tools import describe_tool
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.sandbox import Sandbox

NAME = "weakincentives"
"""The name of the server."""
_UNDO_ADVICE = "These changes are in the directory itself. Undo some or all of them with `undo`."
_INSTRUCTIONS = """\
Files of {root} with undo. Each call is a transaction: a call that fails changes nothing. `diff` \
shows what was changed, `undo` undoes calls, `checkpoint` keeps a state to go back to."""


class McpWorkspace:
    """Tools on the files of a workspace, offered to MCP clients.

    Several clients may use it at the same time, over any transport. Each call runs in a
    transaction, the session records it, and the state before and after it is kept, so that it
    can be undone. Thread-safe.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        *,
        session: Session | None = None,
        dialect: DialectName = "mcp",
        tools: Iterable[Tool[Any, Any]] | None = None,
        sandbox: Sandbox | None = None,
        engine: Engine | None = None,
        extra_handlers: Mapping[type[Any], Handler] | None = None,
        read_only: bool = False,
        original: str | os.PathLike[str] | None = None,
        review_hint: str = _UNDO_ADVICE,
        history_directory: str | os.PathLike[str] | None = None,
        on_client: Callable[[McpClient], object] | None = None,
        policies: Sequence[Policy] = (),
        settings: ToolSettings = ToolSettings(ascii_paths=False),  # noqa: B008 # it is frozen
        shell_limits: ShellLimits = DEFAULT_SHELL_LIMITS,
        max_result_characters: int = MAX_RESULT_CHARACTERS,
        text_only: bool | None = None,
    ) -> None:
        """Offer the tools of a dialect on `filesystem`.

        Args:
            filesystem: The workspace.
            session: The session that records every call; None creates one.
            dialect: The names and parameters of the tools.
            tools: Tools to offer instead of those of the dialect.
            sandbox: Where commands run; without one there are no tools that run commands.
            engine: What evaluates Python code; without one there is no tool for it.
            extra_handlers: Handlers for further requests that the dialect knows.
            read_only: Leave out the tools that can change something.
            original: The directory that the workspace is a copy of. Clients know it by this name
                and may send absolute paths below it.
            review_hint: What a person can do with all changes, for the tool `review`.
            history_directory: Where calls are kept, outside the workspace, so that a later session
                on the same directory and snapshots can undo them; by default none are.
            on_client: Called once for each client, with its first request.
            policies: Policies that may deny a call, checked in this order.
            settings: Limits and rules of the tools.
            shell_limits: Limits of the commands.
            max_result_characters: The maximum length of a result; longer text is truncated.
            text_only: Send results as text, without structured content; by default for clients
                that show their model nothing else of a result that has it.

        Raises:
            PromptError: The dialect is unknown, or two tools have the same name.
        """
        self.filesystem: Filesystem = filesystem
        self.session: Session = Session() if session is None else session
        roots = _host_roots(filesystem, original)
        self._settings = replace(settings, host_roots=settings.host_roots or roots)
        self._root = next(iter(self._settings.host_roots), filesystem.root)
        self._roots = ClientRoots(self._settings.host_roots)
        self._queue = CallQueue()
        read_only = read_only or filesystem.read_only
        kept = None if history_directory is None else Path(history_directory)
        history = open_history(filesystem, kept)
        known = KnownFiles(history)
        if tools is None:
            handlers = self._handlers(sandbox, engine, shell_limits)
            handlers |= {WriteFileParams: known.write_file, **(extra_handlers or {})}
            tools = filesystem_tools(
                dialect, settings=self._settings, extra_handlers=handlers, read_only=read_only
            )
        history_tools: HistoryTools | None = None
        if history is not None:
            history_tools = HistoryTools(
                history=history,
                read_only=read_only,
                resolve=self._resolve,
                is_visible=self._roots.allows,
                advice=review_hint,
                max_characters=self._settings.budget,
            )
            tools = (*tools, *history_tools.create())
        self.tools: tuple[Tool[Any, Any], ...] = tuple(tools)
        uri = partial(file_uri, self._root)
        resources = WorkspaceResources(
            filesystem=filesystem,
            uri=uri,
            session=self.session,
            resolve=self._resolve,
            is_visible=self._roots.allows,
            diff=None if history_tools is None else history_tools.diff_since,
        )
        self._history = history
        self._execution = CallExecution(
            self.tools,
            ToolContext(None, None, None, self.session, filesystem=filesystem),
            self._queue,
            history=history,
            policies=(self._roots, known, *policies),
            uri=uri,
            max_result_characters=max_result_characters,
        )
        self._request_handlers = RequestHandlers(
            tools=[*map(describe_tool, self.tools)],
            execution=self._execution,
            resources=resources,
            subscriptions=Subscriptions(uri),
            roots=self._roots,
            clients=ClientRegistry(on_client),
            text_only=text_only,
        )

    def create_server(self) -> Server[Any]:
        """Return a server that offers this workspace and nothing else."""
        server: Server[Any] = Server(
            NAME,
            version=__version__,
            title="Workspace with undo",
            instructions=_INSTRUCTIONS.format(root=self._root),
        )
        self.mount(server)
        return server

    def mount(self, server: Server[Any] | MCPServer) -> None:
        """Add tools and resources of the workspace to a server.

        What the server offers already stays; a tool of the workspace takes the place of one with
        the same name.
        """
        mount(server, self._request_handlers)

    def start(self) -> None:
        """Keep the present state as the start, and list what an earlier server left unfinished.

        The first call does it otherwise. Start before anything else listens to the changes of
        the filesystem: what was not reported to the earlier server is reported once.

        Raises:
            SnapshotError: The state could not be kept.
            OSError: The calls of earlier sessions cannot be read.
            LogError: The same.
        """
        if self._history is not None:
            self._history.start()

    def close(self) -> None:
        """Cancel all calls, and return when none runs any more."""
        self._execution.close()

    def _handlers(
        self, sandbox: Sandbox | None, engine: Engine | None, limits: ShellLimits
    ) -> dict[type[Any], Handler]:
        handlers: dict[type[Any], Handler] = {
            **repo_map_handlers(),
            WorkspaceParams: self._allowed_directories,
        }
        if sandbox is not None:
            handlers |= shell_handlers(sandbox, limits=limits, on_output=self._queue.on_output)
        if engine is not None:
            handlers |= evaluation_handlers(engine)
        return handlers

    def _allowed_directories(
        self, request: WorkspaceParams, context: HandlerContext
    ) -> ToolResult[str]:
        """Return the directories that the client of a call may access, one per line."""
        del request
        root = Path(self._root)
        client = context.tool_context.prompt
        allowed = self._roots.allowed(client) if isinstance(client, McpClient) else ("",)
        lines = ["Allowed directories:", *(str(root / path) for path in allowed)]
        if self.filesystem.read_only:
            lines.append("The workspace is read-only.")
        text = "\n".join(lines)
        return ToolResult(text, text, exclude_value_from_context=True)

    def _resolve(self, path: str) -> str:
        context = ToolContext(None, None, None, self.session, filesystem=self.filesystem)
        return HandlerContext(context, self.filesystem, self._settings).resolve_path(path)


def _host_roots(filesystem: Filesystem, original: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Return the directories of the host that stand for the workspace, the best name first."""
    names = [] if original is None else [os.fspath(original)]
    names += [filesystem.root] if isinstance(filesystem, HostBacked) else []
    absolute = [os.path.abspath(name) for name in names]  # noqa: PTH100 # the spelling, links kept
    return tuple(dict.fromkeys([*absolute, *map(os.path.realpath, absolute)]))
