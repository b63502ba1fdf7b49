"""Tools: a name, a description, a handler, and the parameters as a dataclass.

`Tool.schema` is the JSON schema for the model, `Tool.parse` validates what the model sends.
A handler gets a `ToolContext` (session, filesystem, deadline, budget) and returns a
`ToolResult`: a message for the model and a value for programs. `ToolAccess` lists the paths
of one call, for policies.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from inspect import Parameter, signature
from types import MappingProxyType
from typing import (
    Any,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
    runtime_checkable,
)

from weakincentives.errors import PromptError, ToolValidationError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt.arguments import FieldAliases, coerce, concise_schema, field_aliases
from weakincentives.prompt.validation import (
    check_argument,
    check_items,
    check_names,
    check_or_none,
    is_dataclass_type,
)
from weakincentives.runtime import BudgetTracker, CommandOutcome, Deadline
from weakincentives.runtime.session import Session
from weakincentives.serde import SerdeError, convert, decode, encode, json_schema

OutputT_co = TypeVar("OutputT_co", covariant=True)


class PromptProtocol(Protocol[OutputT_co]):
    """The parts of a prompt that a tool handler can rely on."""

    @property
    def ns(self) -> str:
        """The namespace of the prompt."""
        ...

    @property
    def key(self) -> str:
        """Its name in the namespace."""
        ...

    def filesystem(self) -> Filesystem | None:
        """Return the prompt's workspace, if it has one."""
        ...


class RenderedPromptProtocol(Protocol[OutputT_co]):
    """The parts of a rendered prompt that a tool handler can rely on."""

    @property
    def text(self) -> str:
        """The text sent to the model."""
        ...


class ProviderAdapterProtocol(Protocol[OutputT_co]):
    """The parts of a model adapter that a tool handler can rely on."""

    @property
    def name(self) -> str:
        """The adapter's name."""
        ...


# names of earlier drafts
SessionProtocol: TypeAlias = Session


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The state of the run to which a tool call belongs.

    Use files only through `filesystem`: changes made through it are rolled back if the
    call fails.
    """

    prompt: PromptProtocol[Any] | None
    rendered_prompt: RenderedPromptProtocol[Any] | None
    adapter: ProviderAdapterProtocol[Any] | None
    session: Session
    deadline: Deadline | None = None
    budget_tracker: BudgetTracker | None = None
    filesystem: Filesystem | None = None
    call_id: str | None = None
    reviews_changes: bool = False
    """Whether policies decide on the changes of each call, which must be complete at its end."""
    access_check: "Callable[[ToolContext, ToolAccess], str | None] | None" = None
    """Returns why policies deny access to these paths to the call, or None; see `check_access`."""

    def check_access(self, access: "ToolAccess") -> None:
        """Ask the policies about paths that a tool knows only while it runs.

        Raises:
            PermissionError: A policy denies it; the message is the reason for the model.
        """
        reason = None if self.access_check is None else self.access_check(self, access)
        if reason is not None:
            raise PermissionError(reason)

    def for_call(
        self,
        call_id: str,
        filesystem: Filesystem | None,
        access_check: "Callable[[ToolContext, ToolAccess], str | None] | None" = None,
    ) -> "ToolContext":
        """Return a copy for one call, with the filesystem that the call may use."""
        # a hot path: `dataclasses.replace` takes three times as long
        return ToolContext(
            self.prompt,
            self.rendered_prompt,
            self.adapter,
            self.session,
            self.deadline,
            self.budget_tracker,
            filesystem,
            call_id,
            self.reviews_changes,
            access_check or self.access_check,
        )


R = TypeVar("R")


@runtime_checkable
class Renderable(Protocol):
    """A value that renders itself for a model."""

    def render(self) -> str:
        """Return the text for the model."""
        ...


@dataclass(frozen=True, slots=True)
class Media:
    """An image or other media for models that accept it."""

    media_type: str
    data: bytes


@dataclass(frozen=True)  # no slots: with them a subscript, `ToolResult[...](...)`, raises
class ToolResult(Generic[R]):
    """The result of a tool call.

    Args:
        message: Text for the model.
        value: The result for programs; None if the call failed.
        success: Whether the call succeeded. If not, its changes are rolled back.
        exclude_value_from_context: Send only the message to the model, not the value.
        media: Images for the model in addition to the text, if it accepts them.
        command: How the command that the tool ran has ended, for those who watch.
    """

    message: str
    value: R | None = None
    success: bool = True
    exclude_value_from_context: bool = False
    media: tuple[Media, ...] = ()
    command: CommandOutcome | None = None

    @classmethod
    def ok(cls, value: R, message: str = "") -> "ToolResult[R]":
        """Return a success."""
        return cls(message, value)

    @classmethod
    def error(cls, message: str) -> "ToolResult[Any]":
        """Return a failure; the message should say what happened and what to do next."""
        return cls(message, None, success=False)

    def render(self) -> str:
        """Return the text for the model: the message, then the value."""
        if self.value is None or self.exclude_value_from_context:
            return self.message
        text = _render_value(self.value)
        return f"{self.message}\n\n{text}" if self.message and text else self.message or text


def _render_value(value: object) -> str:
    if isinstance(value, Renderable):
        return value.render()
    if isinstance(value, str):
        return value
    try:
        return encode(value).decode("utf-8", "replace")
    except SerdeError:
        return str(value)


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """The paths that a tool call accesses, normalized and relative to the workspace.

    Args:
        reads: Files that it reads.
        writes: Files whose content it changes, so they should have been read before.
        searches: Directories and files that it searches, including everything below them.
        others: Paths that it creates, removes or moves regardless of content.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[str, ...]:
        """The paths that the call changes."""
        return self.writes + self.others

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths, each once."""
        return tuple(dict.fromkeys(self.reads + self.writes + self.searches + self.others))


P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DESCRIPTION = 4_000
_NO_PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class ToolHandler(Protocol[P_contra, R]):
    """Runs a tool; it implements the happy path and raises errors."""

    def __call__(self, params: P_contra, *, context: ToolContext) -> ToolResult[R]:
        """Run one call."""
        ...


@dataclass(frozen=True)  # no slots: with them a subscript, `ToolExample[P, R](...)`, raises
class ToolExample(Generic[P, R]):
    """An example call for the model."""

    description: str
    input: P
    output: R | str

    def __post_init__(self) -> None:
        """Check that the description is text."""
        check_argument("Tool example", "description", self.description, str)


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A tool that a model can call.

    Args:
        name: The name for the model: at most 64 letters, digits, `_` and `-`.
        description: What it does and when to use it, in plain words for the model.
        handler: The function that runs it. The type of its first parameter, a dataclass,
            defines the arguments. None: the tool runs elsewhere, for example at the provider.
        examples: Example calls.
        params_type: The dataclass of the parameters, if the handler's annotation is not it.
        read_only: It changes no files. While it runs, the workspace rejects writes, so calls
            may run in parallel.
        bypasses_filesystem: It changes files behind the filesystem's back (a shell does), so
            rollback needs a snapshot.
        atomic: It makes all its changes, of files and session, at once or not at all (an undo
            does). So it runs without a transaction, and a call that has changed something is not
            cancelled any more.
        accepts_overrides: Whether a stored description may replace this one.
        aliases: Field names by the alias that models may send instead, also in objects nested
            in lists. The schema does not contain them. A field whose display name is not a
            valid Python name has it in its metadata: `field(metadata={"name": "-i"})`. A field
            with `metadata={"hidden": True}` is accepted, but not in the schema.
        access: Returns the paths of a call, for policies; without it, fields with the usual
            names of paths are used.
        other_names: Names that are also accepted, but not offered to the model.
        other_params: A dataclass accepted in place of the parameters, for calls as models know
            them from elsewhere; not in the schema.
        input_schema: A JSON schema for the model in place of a dataclass, for a tool that is
            defined elsewhere. The handler gets the arguments as a mapping, and has to validate
            them.
    """

    name: str
    description: str
    handler: ToolHandler[P, R] | None
    _: KW_ONLY
    examples: Sequence[ToolExample[P, R]] = ()
    params_type: type[P] | None = None
    read_only: bool = False
    bypasses_filesystem: bool = False
    atomic: bool = False
    accepts_overrides: bool = True
    # a mapping is not hashable
    aliases: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    access: "Callable[[P, ToolContext], ToolAccess] | None" = None
    other_names: Sequence[str] = ()
    other_params: type[Any] | None = None
    input_schema: Mapping[str, object] | None = field(default=None, hash=False)
    _params: type[Any] | None = field(init=False, repr=False, compare=False)
    _field_aliases: FieldAliases = field(init=False, repr=False, compare=False)
    _shapes: Sequence[tuple[type[Any], FieldAliases]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate the arguments and determine the parameter type."""
        check_argument("Tool", "name", self.name, str)
        owner = f"Tool {self.name!r}"
        object.__setattr__(
            self, "other_names", check_items(owner, "other_names", self.other_names, str)
        )
        for name in (self.name, *self.other_names):
            if not _NAME.fullmatch(name):
                raise PromptError(
                    f"Tool name must be 1 to 64 letters, digits, '_' or '-': {name!r}"
                )
        self._check_arguments()
        text = self.description.strip()
        if not text or len(text) > _MAX_DESCRIPTION:
            raise PromptError(
                f"Tool description must have 1 to {_MAX_DESCRIPTION} characters: {self.name!r}"
            )
        params = (
            None if self.input_schema is not None else self.params_type or _infer_params_type(self)
        )
        object.__setattr__(self, "_params", params)
        aliases = field_aliases(self._params, self.aliases, self.name)
        object.__setattr__(self, "_field_aliases", aliases)
        object.__setattr__(self, "_shapes", _accepted_shapes(self, self._params, aliases))
        expected = self._params if self.input_schema is None else Mapping
        for example in self.examples:
            if expected is None or not isinstance(example.input, expected):
                raise PromptError(
                    f"Example input of tool {self.name!r} has the wrong type: {example.input!r}"
                )

    def _check_arguments(self) -> None:
        owner = f"Tool {self.name!r}"
        check_argument(owner, "description", self.description, str)
        for name in ("handler", "access"):
            value = getattr(self, name)
            check_or_none(owner, name, value, "a callable", is_valid=callable(value))
        for name in ("params_type", "other_params"):
            value = getattr(self, name)
            check_or_none(owner, name, value, "a dataclass", is_valid=is_dataclass_type(value))
        check_argument(owner, "input_schema", self.input_schema, Mapping, or_none=True)
        if self.input_schema is not None and (
            self.params_type or self.other_params or self.aliases
        ):
            raise PromptError(
                f"{owner}: input_schema excludes params_type, other_params and aliases"
            )
        for name in ("read_only", "bypasses_filesystem", "atomic", "accepts_overrides"):
            check_argument(owner, name, getattr(self, name), bool)
        examples = check_items(owner, "examples", self.examples, ToolExample[Any, Any])
        object.__setattr__(self, "examples", examples)
        aliases = check_names(owner, "aliases", self.aliases)
        object.__setattr__(self, "aliases", MappingProxyType(aliases))

    @cached_property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema of the parameters: what a model may send, each thing said once."""
        if self.input_schema is not None:
            return self.input_schema
        if self._params is None:
            return _NO_PARAMETERS
        return concise_schema(self._field_aliases.schema(json_schema(self._params)))

    def parse(self, arguments: Mapping[str, object] | str | bytes) -> P:
        """Parse and validate the arguments that a model sent.

        Unambiguous mistakes are corrected: a number or boolean as a string, null for an
        optional field, a list as a JSON string.

        Raises:
            ToolValidationError: They do not match the schema; the message names the field.
        """
        if self.input_schema is not None:
            return cast("P", self._parse_object(arguments))
        if not self._shapes:
            return self._parse_no_arguments(arguments)
        problems: list[tuple[int, str, SerdeError]] = []
        known = frozenset[str]().union(*(names.fields for _, names in self._shapes))
        for kind, names in self._shapes:
            try:
                return _parse(arguments, kind, names, known)
            except SerdeError as error:
                unknown = _field_names(arguments, names) - names.fields
                problems.append((len(unknown), names.translate(str(error)), error))
        # report the error of the shape with the fewest unknown fields: it was probably meant
        _, message, cause = min(problems, key=lambda problem: problem[0])
        if message.startswith("Unknown field") and "did you mean" not in message:
            offered = cast("Mapping[str, object]", self.schema["properties"])
            message += f"; {self.name} takes {', '.join(offered)}"
        raise ToolValidationError(f"Invalid arguments for {self.name}: {message}") from cause

    def with_description(self, description: str) -> "Tool[P, R]":
        """Return the same tool with another description."""
        return replace(self, description=description)

    def _parse_object(self, arguments: Mapping[str, object] | str | bytes) -> dict[str, object]:
        if not isinstance(arguments, str | bytes):
            return dict(arguments)
        try:
            return decode(arguments or b"{}", dict[str, object])
        except SerdeError as error:
            raise ToolValidationError(f"Invalid arguments for {self.name}: {error}") from error

    def _parse_no_arguments(self, arguments: Mapping[str, object] | str | bytes) -> Any:
        if isinstance(arguments, str | bytes):
            arguments = decode(arguments or b"{}", dict[str, Any])
        if arguments:
            raise ToolValidationError(
                f"Invalid arguments for {self.name}: it takes none, but got {sorted(arguments)}"
            )
        return None


def _accepted_shapes(
    tool: Tool[Any, Any], params: type[Any] | None, names: FieldAliases
) -> Sequence[tuple[type[Any], FieldAliases]]:
    """Return the dataclasses accepted as parameters, each with its aliases."""
    other = tool.other_params
    more = [] if other is None else [(other, field_aliases(other, tool.aliases, tool.name))]
    return more if params is None else [(params, names), *more]


_Arguments = Mapping[str, object] | str | bytes


def _parse(
    arguments: _Arguments, kind: type[Any], names: FieldAliases, known: AbstractSet[str]
) -> Any:
    """Parse arguments strictly, then leniently; raise the error of the strict attempt.

    Null for a field that is `known` only from another shape is ignored.
    """
    try:
        return _parse_strictly(arguments, kind, names)
    except SerdeError as error:
        try:
            return _parse_leniently(arguments, kind, names, known - names.fields)
        except SerdeError:
            raise error from None


def _parse_strictly(arguments: _Arguments, kind: type[Any], names: FieldAliases) -> Any:
    if not isinstance(arguments, str | bytes):
        given = arguments
    elif names.is_needed:
        given = decode(arguments or b"{}", object)
    else:
        return decode(arguments or b"{}", kind)
    return convert(names.apply(given) if names.is_needed else given, kind)


def _parse_leniently(
    arguments: _Arguments, kind: type[Any], names: FieldAliases, other_fields: AbstractSet[str]
) -> Any:
    is_text = isinstance(arguments, str | bytes)
    given = names.apply(decode(arguments or b"{}", object) if is_text else arguments)
    coerced = coerce(_drop_nulls(given, other_fields), kind)
    # again: objects decoded from a JSON string have aliases too
    return convert(names.apply(coerced), kind, lax=True)


def _drop_nulls(given: object, fields: AbstractSet[str]) -> object:
    """Return arguments without those of these fields that are null."""
    if not isinstance(given, Mapping):
        return given
    items = cast("Mapping[str, object]", given).items()
    return {name: value for name, value in items if value is not None or name not in fields}


def _field_names(arguments: _Arguments, names: FieldAliases) -> set[str]:
    """Return the field names in the arguments; none if they are not an object."""
    try:
        is_text = isinstance(arguments, str | bytes)
        given = names.apply(decode(arguments or b"{}", object) if is_text else arguments)
    except SerdeError:
        return set()
    return set(cast("Mapping[str, object]", given)) if isinstance(given, Mapping) else set()


def _infer_params_type(tool: Tool[Any, Any]) -> type[Any] | None:
    """Return the dataclass that the handler takes, or None if it takes none."""
    if tool.handler is None:
        return None
    hints = _resolve_hints(tool)
    names = _positional_parameters(tool)
    if len(names) != 1 or names[0] not in hints:
        raise PromptError(
            f"Handler of tool {tool.name!r} must take one annotated parameter, then context"
        )
    params = hints[names[0]]
    if params is type(None):
        return None
    if not is_dataclass_type(params):
        raise PromptError(f"Parameters of tool {tool.name!r} must be a dataclass: {params!r}")
    return params


def _positional_parameters(tool: Tool[Any, Any]) -> list[str]:
    """Return the names of the handler's positional parameters."""
    try:
        found = signature(tool.handler or _positional_parameters).parameters.values()
    except (TypeError, ValueError) as error:
        raise PromptError(
            f"Handler of tool {tool.name!r} has no readable signature;"
            " wrap it in a function, or pass params_type"
        ) from error
    positional = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    return [each.name for each in found if each.kind in positional]


def _resolve_hints(tool: Tool[Any, Any]) -> dict[str, Any]:
    target: Any = tool.handler
    while isinstance(target, partial):
        target = target.func
    if not hasattr(target, "__code__"):
        target = type(target).__call__
    try:
        return get_type_hints(target)
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise PromptError(
            f"Handler of tool {tool.name!r} has an annotation that cannot be resolved: {error}"
        ) from error
