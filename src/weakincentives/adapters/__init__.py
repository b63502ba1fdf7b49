"""Adapters: talking to a model, and running the tools that it calls."""

from weakincentives.adapters.calls import CheckedCall, ToolCall
from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.adapters.conversation import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    Message,
    OutputFormat,
    StopReason,
    SystemMessage,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from weakincentives.adapters.core import ProviderAdapter
from weakincentives.adapters.events import ModelResponded, RequestRetried
from weakincentives.adapters.executor import MAX_RESULT_CHARACTERS, ToolExecutor, ToolOutcome
from weakincentives.adapters.models import MissingExtraError, UnknownModelError, adapter_for
from weakincentives.adapters.options import RunOptions
from weakincentives.adapters.policies import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    FileSeen,
    Policy,
    ReadBeforeWrite,
)
from weakincentives.adapters.problems import (
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
from weakincentives.adapters.recorder import RecordingAdapter
from weakincentives.adapters.replays import ReplayDivergedError
from weakincentives.adapters.response import PromptResponse, partial_response
from weakincentives.adapters.retries import RetryPolicy
from weakincentives.adapters.scripted import ScriptedAdapter, ScriptStep

__all__ = [
    "MAX_RESULT_CHARACTERS",
    "AdapterError",
    "AllowedPaths",
    "Approval",
    "ApprovalRequest",
    "AssistantMessage",
    "AuthenticationError",
    "CancellationToken",
    "CheckedCall",
    "Completion",
    "CompletionRequest",
    "ContextTooLongError",
    "FileSeen",
    "InvalidRequestError",
    "Message",
    "MissingExtraError",
    "ModelRefusedError",
    "ModelResponded",
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
    "ToolCall",
    "ToolDefinition",
    "ToolExecutor",
    "ToolMessage",
    "ToolOutcome",
    "TransientError",
    "UnknownModelError",
    "UserMessage",
    "adapter_for",
    "partial_response",
]
