"""A toolbox: tools together with what runs them, for loops that are not ours."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import deepcopy
from threading import RLock
from typing import Any

from weakincentives.adapters import (
    MAX_RESULT_CHARACTERS,
    Policy,
    ToolCall,
    ToolExecutor,
    ToolOutcome,
)
from weakincentives.contrib.tools.suite import FILESYSTEM_TOOLS
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import Tool, ToolContext
from weakincentives.runtime import BudgetTracker, Deadline
from weakincentives.runtime.session import Session


class Toolbox:
    """Tools on a workspace; each call is a transaction with its event.

    Frameworks run the calls of one message side by side, but a model means them in order: here
    they take turns, first come, first served.
    """

    def __init__(
        self,
        tools: Iterable[Tool[Any, Any]] = FILESYSTEM_TOOLS,
        *,
        filesystem: Filesystem | None = None,
        session: Session | None = None,
        policies: Sequence[Policy] = (),
        deadline: Deadline | None = None,
        budget_tracker: BudgetTracker | None = None,
        max_result_characters: int = MAX_RESULT_CHARACTERS,
    ) -> None:
        """Offer `tools`.

        Args:
            tools: What a model may call; `filesystem_tools` has them in other dialects.
            filesystem: The workspace that they work on.
            session: What is told of every call; None makes one.
            policies: Who may forbid a call, asked in this order.
            deadline: When the work must be done.
            budget_tracker: What counts the calls, and says when there are too many.
            max_result_characters: Where the text for the model is cut off.

        Raises:
            PromptError: Two tools have one name.
        """
        self.tools: tuple[Tool[Any, Any], ...] = tuple(tools)
        self.session: Session = Session() if session is None else session
        self.filesystem = filesystem
        self._executor = ToolExecutor(
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
        self._turn = RLock()
        # one thread, so that calls are run in the order in which they come
        self._queue = ThreadPoolExecutor(1, thread_name_prefix="wink-toolbox")

    def execute(self, call: ToolCall) -> ToolOutcome:
        """Run a call to its end; a failed one leaves no trace but its event.

        Raises:
            DeadlineExceededError: There is no time left.
            BudgetExceededError: There is nothing left to spend.
            SnapshotError: Files could not be kept or restored.
        """
        with self._turn:
            return self._executor.execute(call)

    async def execute_async(self, call: ToolCall) -> ToolOutcome:
        """Do the same in another thread, while the event loop goes on.

        A call that is cancelled before its turn does not run. One that is running is waited for:
        nobody is told that it is over while it changes files.

        Raises:
            DeadlineExceededError: There is no time left.
            BudgetExceededError: There is nothing left to spend.
            SnapshotError: Files could not be kept or restored.
        """
        running = self._queue.submit(copy_context().run, self.execute, call)
        waiting = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not running.cancel():
                await asyncio.wait([waiting])
            raise


def schema_of(tool: Tool[Any, Any]) -> dict[str, Any]:
    """Return the JSON schema of a tool's parameters, for frameworks to do with as they like."""
    return deepcopy(dict(tool.schema))
