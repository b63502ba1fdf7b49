"""What turns a filesystem into a workspace: events, deadlines, budgets, clocks."""

from weakincentives.runtime.budget import (
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Excess,
    TokenUsage,
)
from weakincentives.runtime.clock import SYSTEM_CLOCK, Clock, ManualClock, SystemClock
from weakincentives.runtime.deadlines import Deadline, DeadlineExceededError
from weakincentives.runtime.events import (
    EventBus,
    Handler,
    HandlerFailure,
    InProcessDispatcher,
    InProcessEventBus,
    PromptExecuted,
    PromptRendered,
    PublishResult,
    ToolInvoked,
)

__all__ = [
    "SYSTEM_CLOCK",
    "Budget",
    "BudgetExceededError",
    "BudgetTracker",
    "Clock",
    "Deadline",
    "DeadlineExceededError",
    "EventBus",
    "Excess",
    "Handler",
    "HandlerFailure",
    "InProcessDispatcher",
    "InProcessEventBus",
    "ManualClock",
    "PromptExecuted",
    "PromptRendered",
    "PublishResult",
    "SystemClock",
    "TokenUsage",
    "ToolInvoked",
]
