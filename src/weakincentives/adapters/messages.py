"""Provider-neutral messages, tool calls, completions and responses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from weakincentives.filesystem import normalize_path
from weakincentives.prompt import Media, Tool, ToolAccess, ToolContext, ToolResult
from weakincentives.runtime import TokenUsage
from weakincentives.serde import SerdeError, convert

_PATH_FIELDS = (
    "path",
    "file_path",
    "notebook_path",
    "dir_path",
    "new_path",
    "source",
    "destination",
)
NO_RESULT = "No result: the run stopped before this call finished; its changes may be incomplete"
"""The text of a tool message for a call that did not finish."""
_PATH_LIST_FIELDS = ("paths", "file_paths")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as a model sends it; the arguments are JSON or already parsed."""

    name: str
    arguments: Mapping[str, object] | str = ""
    call_id: str = ""


@dataclass(frozen=True)
class CheckedCall:
    """A call with valid arguments, about to run; what policies decide on.

    `paths` are normalized: two spellings of a path are one path.
    """

    call: ToolCall
    tool: Tool[Any, Any]
    params: Any
    context: ToolContext

    @cached_property
    def access(self) -> ToolAccess | None:
        """The files that the call reads and changes, if the tool declares them."""
        return None if self.tool.access is None else self.tool.access(self.params, self.context)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the tool declares, or else those in the arguments."""
        return find_paths(self.params) if self.access is None else self.access.paths


def find_paths(params: object) -> tuple[str, ...]:
    """Return the paths in a call's parameters, normalized; invalid ones are left out."""
    single, multiple = _path_fields(type(params))
    found = [getattr(params, name) for name in single]
    for name in multiple:
        values = getattr(params, name)
        found += (values,) if isinstance(values, str) else values or ()
    return tuple(dict.fromkeys(_normalize(found)))


@lru_cache(maxsize=1024)
def _path_fields(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a dataclass that hold one path, and those that hold several."""
    if not is_dataclass(kind):
        return (), ()
    names = {each.name for each in fields(kind)}
    return tuple(filter(names.__contains__, _PATH_FIELDS)), tuple(
        filter(names.__contains__, _PATH_LIST_FIELDS)
    )


def _normalize(found: Iterable[object]) -> Iterable[str]:
    for each in found:
        if each is None:
            continue
        try:
            yield normalize_path(str(each)) or "."
        except (ValueError, OSError):
            continue  # the tool itself reports it


StopReason: TypeAlias = Literal["end", "tool_calls", "length", "refused", "paused", "other"]
"""Why a model stopped; after `paused`, send the conversation again to continue."""


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """Instructions before everything else."""

    text: str
    role: Literal["system"] = field(default="system", init=False)


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message to the model."""

    text: str
    media: tuple[Media, ...] = ()
    """Pictures, for models with vision; unlike those of tools, they are always sent."""
    role: Literal["user"] = field(default="user", init=False)


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """An answer of the model: text, tool calls, or both."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    """JSON values that only the provider understands."""
    role: Literal["assistant"] = field(default="assistant", init=False)


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of a tool call; every call has one, in the order of the calls."""

    call_id: str
    name: str
    text: str
    success: bool = True
    media: tuple[Media, ...] = ()
    """Pictures, for models with vision."""
    role: Literal["tool"] = field(default="tool", init=False)


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage
"""One message of a conversation."""


_MESSAGES: Mapping[object, type[Any]] = {
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


def load_messages(data: Iterable[Any]) -> tuple[Message, ...]:
    """Return messages from JSON values, as a timeline stores them.

    The results of tool calls are put into the order of the calls.

    Raises:
        SerdeError: A value is not a message.
    """
    return _order([_load_message(each) for each in data])


def _order(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return messages with the results of tool calls in the order of the calls."""
    order: dict[str, int] = {}
    ordered: list[tuple[int, int, Message]] = []
    group = 0
    for message in messages:
        if isinstance(message, ToolMessage):
            place = order.get(message.call_id, len(order))
        else:
            group, place = group + 1, -1
            if isinstance(message, AssistantMessage):
                order = {call.call_id: at for at, call in enumerate(message.tool_calls)}
        ordered.append((group, place, message))
    ordered.sort(key=lambda each: each[:2])
    return tuple(message for _, _, message in ordered)


def complete_results(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return a conversation in which every tool call has a result.

    Providers reject one with unanswered calls. Missing results are only possible at its end,
    where a run was stopped; they say so.
    """
    found = list(messages)
    calls: tuple[ToolCall, ...] = ()
    answered: set[str] = set()
    for message in found:
        if isinstance(message, AssistantMessage):
            calls, answered = message.tool_calls, set()
        elif isinstance(message, ToolMessage):
            answered.add(message.call_id)
    found += [
        ToolMessage(call.call_id, call.name, NO_RESULT, success=False)
        for call in calls
        if call.call_id not in answered
    ]
    return _order(found)


def _load_message(data: Any) -> Message:
    fields_of: dict[str, Any] = convert(data, dict[str, Any])
    kind = _MESSAGES.get(fields_of.pop("role", None))
    if kind is None:
        raise SerdeError(f"Not a message: {repr(data)[:200]}")
    return convert(fields_of, kind)


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model sees it; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The JSON schema that an answer must match; its top level is always an object."""

    name: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request to a model: the conversation so far, the tools, and options.

    A `SystemMessage` can only be the first message. None leaves the choice to the provider.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    output: OutputFormat | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    effort: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer to one request.

    Args:
        text: The text, without reasoning.
        tool_calls: The tool calls, in order.
        usage: Tokens of the request and the answer.
        stop_reason: Why the model stopped.
        extras: JSON values to send back to the provider with this message.
        model: The model that answered, if the provider names it.
        response_id: The provider's id of the answer.
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage = field(default_factory=TokenUsage)
    stop_reason: StopReason = "end"
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    model: str | None = None
    response_id: str | None = None


OutputT = TypeVar("OutputT")
_PARTIAL = "wink_partial_response"


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A finished call: its result, and the text that the model sees."""

    call: ToolCall
    result: ToolResult[Any]
    text: str


@dataclass(frozen=True)  # no slots: with them a subscript, `PromptResponse[...](...)`, raises
class PromptResponse(Generic[OutputT]):
    """The result of a run.

    Args:
        prompt_name: The prompt's name, or `ns:key`.
        text: The model's last text.
        output: The answer as the prompt's output type, or None if the prompt has none.
        tool_results: The result of each tool call, in the order of the calls.
        usage: Tokens of all steps.
        steps: How often the model answered.
        stop_reason: Why the model stopped in the last step.
        messages: The whole conversation without the system message; to continue it, pass it to
            the next run with a `UserMessage` after it.
    """

    prompt_name: str
    text: str
    output: OutputT | None
    tool_results: tuple[ToolOutcome, ...]
    usage: TokenUsage
    steps: int
    stop_reason: StopReason
    messages: tuple[Message, ...]


def partial_response(error: BaseException) -> PromptResponse[Any] | None:
    """Return what a run had done when this error ended it, or None if it ended no run.

    Every error that leaves a run has it: deadline, budget and interrupt errors too.
    """
    return vars(error).get(_PARTIAL)


def attach_partial(error: BaseException, response: PromptResponse[Any]) -> None:
    """Attach what a run has done to the error that ends it."""
    vars(error)[_PARTIAL] = response
