"""A tool call: what a model asks for, and what is known about it before it runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from weakincentives.filesystem import normalize_path
from weakincentives.prompt import Media, Tool, ToolAccess, ToolContext, ToolResult
from weakincentives.runtime import TokenUsage

_ONE_PATH = (
    "path",
    "file_path",
    "notebook_path",
    "dir_path",
    "new_path",
    "source",
    "destination",
)
_MANY_PATHS = ("paths", "file_paths")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as a model sends it; arguments are JSON or already parsed."""

    name: str
    arguments: Mapping[str, object] | str = ""
    call_id: str = ""


@dataclass(frozen=True)
class CheckedCall:
    """A call whose arguments are valid, about to run; policies look at it.

    `paths` are those that the arguments name, in normal form: two spellings of a path
    are one path.
    """

    call: ToolCall
    tool: Tool[Any, Any]
    params: Any
    context: ToolContext

    @cached_property
    def access(self) -> ToolAccess | None:
        """Which files it is about, if the tool says so."""
        return None if self.tool.access is None else self.tool.access(self.params, self.context)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that it is about, or that the arguments name."""
        return paths_of(self.params) if self.access is None else self.access.paths


def paths_of(params: object) -> tuple[str, ...]:
    """Return the paths that parameters name, in normal form; what is no path is left out."""
    one, many = _path_fields(type(params))
    found = [getattr(params, name) for name in one]
    for name in many:
        several = getattr(params, name)
        found += (several,) if isinstance(several, str) else several or ()
    return tuple(dict.fromkeys(_normalized(found)))


@lru_cache(maxsize=1024)
def _path_fields(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a dataclass that hold a path, and those that hold several."""
    if not is_dataclass(kind):
        return (), ()
    names = {each.name for each in fields(kind)}
    return tuple(filter(names.__contains__, _ONE_PATH)), tuple(
        filter(names.__contains__, _MANY_PATHS)
    )


def _normalized(found: Iterable[object]) -> Iterable[str]:
    for each in found:
        if each is None:
            continue
        try:
            yield normalize_path(str(each)) or "."
        except (ValueError, OSError):
            continue  # the tool itself says what is wrong with it


StopReason: TypeAlias = Literal["end", "tool_calls", "length", "refused", "paused", "other"]
"""Why a model stopped; `paused` asks to be sent the conversation again, to go on."""


@dataclass(frozen=True, slots=True)
class SystemMessage:
    """What a model is told before everything else."""

    text: str
    role: Literal["system"] = field(default="system", init=False)


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a model is asked."""

    text: str
    role: Literal["user"] = field(default="user", init=False)


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What a model has said: text, tool calls, or both."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    extras: Mapping[str, object] = field(default_factory=dict[str, object])
    """JSON values that only the provider understands."""
    role: Literal["assistant"] = field(default="assistant", init=False)


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """What a tool call came to; there is one for each call, in the order of the calls."""

    call_id: str
    name: str
    text: str
    success: bool = True
    media: tuple[Media, ...] = ()
    """Pictures, for models that can see."""
    role: Literal["tool"] = field(default="tool", init=False)


Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage
"""One part of a conversation."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as a model is told of it; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What the answer must be: JSON of a schema, whose top is always an object."""

    name: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a model is asked in one step: the whole conversation so far, and what it may do.

    A `SystemMessage`, if there is one, is the first. None is for the provider to decide.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    output: OutputFormat | None = None
    max_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model answered in one step.

    Args:
        text: What it said; of reasoning nothing.
        tool_calls: What it wants done, in order.
        usage: What the step cost.
        stop_reason: Why it stopped.
        extras: JSON values that the provider wants back with this message.
        model: The model that answered, if the provider says.
        response_id: What the provider calls the answer.
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
    """A call that is over: its result, and the text that the model is given."""

    call: ToolCall
    result: ToolResult[Any]
    text: str


@dataclass(frozen=True)  # no slots: with them a subscript, `PromptResponse[...](...)`, raises
class PromptResponse(Generic[OutputT]):
    """What came of a prompt.

    Args:
        prompt_name: The prompt: its name, or `ns:key`.
        text: What the model said last.
        output: The answer as the dataclass that the prompt declares, or None if it declares none.
        tool_results: What each tool call came to, in the order of the calls.
        usage: The tokens of all steps together.
        steps: How often the model has answered.
        stop_reason: Why it stopped in the end.
        messages: The whole conversation, without a system message: hand it to the next run,
            with a `UserMessage` after it, to go on.
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
    """Return what had been done when this error ended a run, or None if it ended none.

    Any error that leaves a run has it, those of deadlines and budgets and interrupts too.
    """
    return vars(error).get(_PARTIAL)


def keep_partial(error: BaseException, response: PromptResponse[Any]) -> None:
    """Attach what had been done to the error that ends a run."""
    vars(error)[_PARTIAL] = response
