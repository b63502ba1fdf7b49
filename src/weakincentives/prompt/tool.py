"""Which files a call is about; policies decide by it."""

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast, get_type_hints

from weakincentives.errors import PromptError, ToolValidationError
from weakincentives.prompt.arguments import FieldAliases, coerce, field_aliases
from weakincentives.prompt.context import ToolContext
from weakincentives.prompt.result import ToolResult
from weakincentives.prompt.validation import (
    check_argument,
    check_callable,
    check_dataclass,
    check_items,
    check_names,
)
from weakincentives.serde import SerdeError, convert, decode, json_schema


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """Which files a call is about, as paths of the workspace in normal form.

    Args:
        reads: Files that it shows.
        writes: Files whose content it changes, so that they should have been read before.
        searches: Directories and files that it looks through, with everything below them.
        others: What it creates, removes or moves without regard to content.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[str, ...]:
        """What is not the same afterwards."""
        return self.writes + self.others

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(self.reads + self.writes + self.searches + self.others))


P = TypeVar("P")
R = TypeVar("R")
P_contra = TypeVar("P_contra", contravariant=True)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DESCRIPTION = 4_000
_NO_PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class ToolHandler(Protocol[P_contra, R]):
    """What runs a tool: the happy path; errors are raised."""

    def __call__(self, params: P_contra, *, context: ToolContext) -> ToolResult[R]:
        """Do what was asked."""
        ...


@dataclass(frozen=True)  # no slots: with them a subscript, `ToolExample[P, R](...)`, raises
class ToolExample(Generic[P, R]):
    """A call that a model can learn from."""

    description: str
    input: P
    output: R | str

    def __post_init__(self) -> None:
        """Refuse a description that is no text."""
        check_argument("Tool example", "description", self.description, str)


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """Something that a model can do.

    Args:
        name: What the model calls it: letters, digits, `_` and `-`, 64 at most.
        description: What it does and when to use it, in plain words for the model.
        handler: What runs it; the type of its first parameter, a dataclass, is what the
            model has to send. None: the tool runs elsewhere, for example at the provider.
        examples: Calls to learn from.
        params_type: The dataclass of the parameters, if the handler does not tell.
        read_only: It changes no files, and the workspace refuses while it runs; so calls may run
            side by side.
        outside: It changes files past the workspace's own methods (a shell does), so
            undoing it takes a snapshot.
        accepts_overrides: Whether a stored description may replace its own.
        aliases: Other names of fields that models may send, and the names that they stand
            for, in the parameters and in the objects of their lists. The schema does not
            show them. A field that is to be shown by a name that Python does not allow has
            it in its metadata: `field(metadata={"name": "-i"})`.
        access: Says which files a call is about, for policies; if it does not, fields that
            are named as paths usually are tell.
        other_names: Names that models also call it by; they are not offered.
        other_params: A dataclass that the parameters may be instead, as models know them from
            elsewhere; the schema does not show it.
    """

    name: str
    description: str
    handler: ToolHandler[P, R] | None
    _: KW_ONLY
    examples: Sequence[ToolExample[P, R]] = ()
    params_type: type[P] | None = None
    read_only: bool = False
    bypasses_filesystem: bool = False
    accepts_overrides: bool = True
    # a mapping has no hash
    aliases: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    access: "Callable[[P, ToolContext], ToolAccess] | None" = None
    other_names: Sequence[str] = ()
    other_params: type[Any] | None = None
    _params: type[Any] | None = field(init=False, repr=False, compare=False)
    _renaming: FieldAliases = field(init=False, repr=False, compare=False)
    _shapes: Sequence[tuple[type[Any], FieldAliases]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find out what the parameters are, and refuse what cannot be a tool."""
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
        object.__setattr__(self, "_params", self.params_type or _params_of(self))
        object.__setattr__(self, "_renaming", field_aliases(self._params, self.aliases, self.name))
        object.__setattr__(self, "_shapes", _shapes_of(self, self._params, self._renaming))
        for example in self.examples:
            if self._params is None or not isinstance(example.input, self._params):
                raise PromptError(
                    f"Example of tool {self.name!r} is not a call of it: {example.input!r}"
                )

    def _check_arguments(self) -> None:
        owner = f"Tool {self.name!r}"
        check_argument(owner, "description", self.description, str)
        check_callable(owner, "handler", self.handler)
        check_callable(owner, "access", self.access)
        check_dataclass(owner, "params_type", self.params_type)
        check_dataclass(owner, "other_params", self.other_params)
        for name in ("read_only", "bypasses_filesystem", "accepts_overrides"):
            check_argument(owner, name, getattr(self, name), bool)
        examples = check_items(owner, "examples", self.examples, ToolExample[Any, Any])
        object.__setattr__(self, "examples", examples)
        aliases = check_names(owner, "aliases", self.aliases)
        object.__setattr__(self, "aliases", MappingProxyType(aliases))

    @cached_property
    def schema(self) -> Mapping[str, object]:
        """The JSON schema of the parameters."""
        if self._params is None:
            return _NO_PARAMETERS
        return self._renaming.schema(json_schema(self._params))

    def parse(self, arguments: Mapping[str, object] | str | bytes) -> P:
        """Return the parameters that a model has sent.

        Slips whose meaning is clear are understood: a number or a truth value as text, null
        for a field that may be left out, a list as JSON in a text.

        Raises:
            ToolValidationError: They are not what the schema says; the message says where.
        """
        if not self._shapes:
            return self._parse_nothing(arguments)
        problems: list[tuple[int, str, SerdeError]] = []
        known = frozenset[str]().union(*(names.fields for _, names in self._shapes))
        for kind, names in self._shapes:
            try:
                return _parse(arguments, kind, names, known)
            except SerdeError as error:
                unknown = _given_names(arguments, names) - names.fields
                problems.append((len(unknown), names.told(str(error)), error))
        # the shape that knows more of what was given is the one that was meant
        _, told, cause = min(problems, key=lambda problem: problem[0])
        raise ToolValidationError(f"Invalid arguments for {self.name}: {told}") from cause

    def with_description(self, description: str) -> "Tool[P, R]":
        """Return the same tool with another description."""
        return replace(self, description=description)

    def _parse_nothing(self, arguments: Mapping[str, object] | str | bytes) -> Any:
        if isinstance(arguments, str | bytes):
            arguments = decode(arguments or b"{}", dict[str, Any])
        if arguments:
            raise ToolValidationError(
                f"Invalid arguments for {self.name}: it takes none, but got {sorted(arguments)}"
            )
        return None


def _shapes_of(
    tool: Tool[Any, Any], params: type[Any] | None, names: FieldAliases
) -> Sequence[tuple[type[Any], FieldAliases]]:
    """Return the dataclasses that parameters may be, and what is called otherwise in them."""
    other = tool.other_params
    more = [] if other is None else [(other, field_aliases(other, tool.aliases, tool.name))]
    return more if params is None else [(params, names), *more]


_Arguments = Mapping[str, object] | str | bytes


def _parse(
    arguments: _Arguments, kind: type[Any], names: FieldAliases, known: AbstractSet[str]
) -> Any:
    """Return the arguments of a call as a dataclass; slips are understood.

    A null for a field that is `known` from another shape only is taken for nothing.
    """
    try:
        return _parse_strictly(arguments, kind, names)
    except SerdeError as error:
        try:
            return _parse_slips(arguments, kind, names, known - names.fields)
        except SerdeError:
            raise error from None


def _parse_strictly(arguments: _Arguments, kind: type[Any], names: FieldAliases) -> Any:
    if not isinstance(arguments, str | bytes):
        given = arguments
    elif names.is_needed:
        given = decode(arguments or b"{}", object)
    else:
        return decode(arguments or b"{}", kind)
    return convert(names.apply(given), kind)


def _parse_slips(
    arguments: _Arguments, kind: type[Any], names: FieldAliases, elsewhere: AbstractSet[str]
) -> Any:
    is_text = isinstance(arguments, str | bytes)
    given = names.apply(decode(arguments or b"{}", object) if is_text else arguments)
    understood = coerce(_without_nulls(given, elsewhere), kind)
    # once more: what was inside a text has names too
    return convert(names.apply(understood), kind, lax=True)


def _without_nulls(given: object, fields: AbstractSet[str]) -> object:
    """Return arguments without the fields that are null and among those given."""
    if not isinstance(given, Mapping):
        return given
    items = cast("Mapping[str, object]", given).items()
    return {name: value for name, value in items if value is not None or name not in fields}


def _given_names(arguments: _Arguments, names: FieldAliases) -> set[str]:
    """Return the names of the fields that arguments have; none if they are no object."""
    try:
        is_text = isinstance(arguments, str | bytes)
        given = names.apply(decode(arguments or b"{}", object) if is_text else arguments)
    except SerdeError:
        return set()
    return set(cast("Mapping[str, object]", given)) if isinstance(given, Mapping) else set()


def _params_of(tool: Tool[Any, Any]) -> type[Any] | None:
    """Return the dataclass that the handler takes, or None if it takes none."""
    if tool.handler is None:
        return None
    hints = _hints(tool)
    names = _positional(tool)
    if len(names) != 1 or names[0] not in hints:
        raise PromptError(
            f"Handler of tool {tool.name!r} must take one annotated parameter, then context"
        )
    params = hints[names[0]]
    if params is type(None):
        return None
    if not isinstance(params, type) or not is_dataclass(params):
        raise PromptError(f"Parameters of tool {tool.name!r} must be a dataclass: {params!r}")
    return params


def _positional(tool: Tool[Any, Any]) -> list[str]:
    """Return the names of the parameters that are given by place."""
    try:
        found = signature(tool.handler or _positional).parameters.values()
    except (TypeError, ValueError) as error:
        raise PromptError(
            f"Handler of tool {tool.name!r} does not tell its parameters;"
            " wrap it in a function, or give params_type"
        ) from error
    by_place = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    return [each.name for each in found if each.kind in by_place]


def _hints(tool: Tool[Any, Any]) -> dict[str, Any]:
    target: Any = tool.handler
    while isinstance(target, partial):
        target = target.func
    if not hasattr(target, "__code__"):
        target = type(target).__call__
    try:
        return get_type_hints(target)
    except (AttributeError, NameError, SyntaxError, TypeError) as error:
        raise PromptError(
            f"Handler of tool {tool.name!r} has an annotation that nobody knows: {error}"
        ) from error
