"""A toolbox: tools with their executor, for the agent loops of other frameworks."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import deepcopy
from threading import RLock
from typing import Any

from weakincentives import adapters
from weakincentives.contrib.tools.suite import FILESYSTEM_TOOLS, move_file_tool
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Tool, ToolContext
from weakincentives.runtime import BudgetTracker, Deadline
from weakincentives.runtime.session import Session


class Toolbox:
    """Tools on a workspace; each call runs in a transaction and emits an event.

    Frameworks run the calls of one message concurrently, but a model expects them in order. The
    toolbox serializes them, first come, first served.

    Args:
        tools: Tools that the model may call; `filesystem_tools` returns other dialects.
        filesystem: The workspace.
        session: The session that records every call; None creates one.
        policies: Policies that may deny a call, checked in this order.
        deadline: The time limit of all calls.
        budget_tracker: Counts the calls and enforces the budget.
        max_result_characters: The maximum length of a result; longer text is truncated.
    """

    def __init__(
        self,
        tools: Iterable[Tool[Any, Any]] = (*FILESYSTEM_TOOLS, move_file_tool),
        *,
        filesystem: Filesystem | None = None,
        session: Session | None = None,
        policies: Sequence[adapters.Policy] = (),
        deadline: Deadline | None = None,
        budget_tracker: BudgetTracker | None = None,
        max_result_characters: int = adapters.MAX_RESULT_CHARACTERS,
    ) -> None:
        """Offer `tools`.

        Raises:
            PromptError: Two tools have the same name.
        """
        self.tools: tuple[Tool[Any, Any], ...] = tuple(tools)
        self.session: Session = Session() if session is None else session
        self.filesystem = filesystem
        self._executor = adapters.ToolExecutor(
            self.tools,
            context=ToolContext(
                None,
                None,
                None,
                self.session,
                deadline=deadline,
                budget_tracker=budget_tracker,
                filesystem=filesystem,
            ),
            policies=policies,
            max_result_characters=max_result_characters,
        )
        self._lock = RLock()
        # a single thread runs calls in the order of their arrival
        self._queue = ThreadPoolExecutor(1, thread_name_prefix="wink-toolbox")

    def execute(self, call: adapters.ToolCall) -> adapters.ToolOutcome:
        """Run a call to completion; a failed call changes nothing and only emits its event.

        Raises:
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is exhausted.
            SnapshotError: Files could not be saved or restored.
        """
        with self._lock:
            return self._executor.execute(call)

    async def execute_async(self, call: adapters.ToolCall) -> adapters.ToolOutcome:
        """Run a call in another thread, without blocking the event loop.

        A call that is cancelled before its turn does not run. A cancelled call that is running
        is awaited first, because it may still change files.

        Raises:
            DeadlineExceededError: The deadline has passed.
            BudgetExceededError: The budget is exhausted.
            SnapshotError: Files could not be saved or restored.
        """
        running = self._queue.submit(copy_context().run, self.execute, call)
        waiting = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not running.cancel():
                await asyncio.wait([waiting])
            raise


def copy_schema(tool: Tool[Any, Any]) -> dict[str, Any]:
    """Return a copy of a tool's JSON schema, which frameworks may modify."""
    return deepcopy(dict(tool.schema))
