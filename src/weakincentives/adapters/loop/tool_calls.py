"""Running the tool calls of one message: in order, or side by side if they only read."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from weakincentives.adapters.loop.executor import ToolExecutor
from weakincentives.adapters.loop.limits import RunLimits
from weakincentives.adapters.messages import ToolCall, ToolOutcome
from weakincentives.adapters.options import RunOptions
from weakincentives.errors import WinkError
from weakincentives.prompt import Tool, ToolContext, ToolResult

_log = logging.getLogger(__name__)


class ToolCallRunner:
    """Runs what a model calls; every call is answered, in the order of the calls."""

    def __init__(
        self,
        tools: Iterable[Tool[Any, Any]],
        *,
        context: ToolContext,
        bounds: RunLimits,
        options: RunOptions,
    ) -> None:
        """Offer `tools`."""
        tools = tuple(tools)
        self._read_only = frozenset(tool.name for tool in tools if tool.read_only)
        self._bounds = bounds
        self._max_parallel = options.max_parallel
        self._executor = ToolExecutor(
            tools,
            context=context,
            policies=options.policies,
            max_result_characters=options.max_result_characters,
            clock=options.clock.monotonic,
        )

    def run(self, calls: Sequence[ToolCall]) -> Iterator[ToolOutcome]:
        """Yield what each call came to, in order.

        Raises:
            RunCancelledError: The run was cancelled; the calls that are left do not run.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: There is nothing left to spend.
            WinkError: What only the operator can do something about.
        """
        side_by_side = min(len(calls), self._max_parallel)
        if side_by_side > 1 and all(call.name in self._read_only for call in calls):
            return self._run_side_by_side(calls, side_by_side)
        return map(self._run_one, calls)

    def _run_one(self, call: ToolCall) -> ToolOutcome:
        self._bounds.check(f"Tool call {call.name!r}")
        try:
            return self._executor.execute(call)
        except WinkError:
            raise
        except Exception as error:  # noqa: BLE001 # the fault of one tool does not end the run
            _log.exception("Tool %r has a fault", call.name)
            text = (
                f"Tool {call.name!r} has a fault ({type(error).__name__}: {error}) and changed"
                " nothing: try another way"
            )
            return ToolOutcome(call, ToolResult.error(text), text)

    def _run_side_by_side(self, calls: Sequence[ToolCall], threads: int) -> Iterator[ToolOutcome]:
        with ThreadPoolExecutor(threads, thread_name_prefix="wink-tool") as pool:
            try:
                # each in a copy of this context: its tracing, its time limit
                running = [pool.submit(copy_context().run, self._run_one, call) for call in calls]
                for each in running:
                    yield each.result()
            finally:
                pool.shutdown(cancel_futures=True)
