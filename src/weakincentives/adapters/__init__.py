"""Model adapters, the agent loop and the tool executor."""

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.errors import (
    AdapterError,
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ModelRefusedError,
    OutputError,
    ProviderError,
    RunCancelledError,
    ScriptError,
    StepLimitError,
    ThrottledError,
    TransientError,
)
from weakincentives.adapters.events import (
    CompactionReason,
    ContextCompacted,
    ModelResponded,
    RequestRetried,
)
from weakincentives.adapters.loop.compaction import find_context_window
from weakincentives.adapters.loop.executor import ToolCallRunner as ToolCallRunner
from weakincentives.adapters.loop.executor import ToolExecutor
from weakincentives.adapters.loop.executor import error_message as error_message
from weakincentives.adapters.messages import (
    AssistantMessage,
    CheckedCall,
    Completion,
    CompletionRequest,
    Message,
    OutputFormat,
    PromptResponse,
    StopReason,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    ToolOutcome,
    UserMessage,
    partial_response,
)
from weakincentives.adapters.messages import attach_partial as attach_partial
from weakincentives.adapters.messages import complete_results as complete_results
from weakincentives.adapters.messages import load_messages as load_messages
from weakincentives.adapters.optimize import OptimizationResult, OptimizationScope
from weakincentives.adapters.options import EFFORTS, MAX_RESULT_CHARACTERS, Effort, RunOptions
from weakincentives.adapters.options import RunLimits as RunLimits
from weakincentives.adapters.policies import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    FileSeen,
    Policy,
    ReadBeforeWrite,
)
from weakincentives.adapters.prices import TokenPrice
from weakincentives.adapters.recording.recorder import RecordingAdapter
from weakincentives.adapters.recording.scripted import (
    ReplayDivergedError,
    ScriptedAdapter,
    ScriptStep,
)
from weakincentives.adapters.registry import (
    PROVIDERS,
    MissingExtraError,
    UnknownModelError,
    create_adapter,
)
from weakincentives.adapters.retry import RetryPolicy

__all__ = [
    "EFFORTS",
    "MAX_RESULT_CHARACTERS",
    "PROVIDERS",
    "AdapterError",
    "AllowedPaths",
    "Approval",
    "ApprovalRequest",
    "AssistantMessage",
    "AuthenticationError",
    "CancellationToken",
    "CheckedCall",
    "CompactionReason",
    "Completion",
    "CompletionRequest",
    "ContextCompacted",
    "ContextTooLongError",
    "Effort",
    "FileSeen",
    "InvalidRequestError",
    "Message",
    "MissingExtraError",
    "ModelRefusedError",
    "ModelResponded",
    "OptimizationResult",
    "OptimizationScope",
    "OutputError",
    "OutputFormat",
    "Policy",
    "PromptResponse",
    "ProviderAdapter",
    "ProviderError",
    "ReadBeforeWrite",
    "RecordingAdapter",
    "ReplayDivergedError",
    "RequestRetried",
    "RetryPolicy",
    "RunCancelledError",
    "RunOptions",
    "ScriptError",
    "ScriptStep",
    "ScriptedAdapter",
    "StepLimitError",
    "StopReason",
    "SystemMessage",
    "ThrottledError",
    "TokenPrice",
    "ToolCall",
    "ToolDefinition",
    "ToolExecutor",
    "ToolMessage",
    "ToolOutcome",
    "TransientError",
    "UnknownModelError",
    "UserMessage",
    "create_adapter",
    "find_context_window",
    "partial_response",
]
