"""How a dialect says things: its tools, and how a request is spelled as a call of one.

Messages for a model name tools and parameters. They are spelled here, from the same
table that the tools are made of, so that no message mentions a tool that is not there
or counts lines from another base than the tool does.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

from weakincentives.filesystem import VfsPath
from weakincentives.prompt.arguments import display_names

P = TypeVar("P")
_MENTION = re.compile(r"\$([A-Za-z]+)")
_VALUE_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec(Generic[P]):
    """One tool of a dialect: which requests it says, and how.

    Args:
        name: The tool's name.
        description: Its description for the model. `$GrepParams` stands for the name of the
            tool that sends this request; a line that mentions a request no tool sends is left
            out.
        params: The dataclass of its parameters.
        requests: The requests that it can send.
        decode: Returns the request for given parameters; it may look at the workspace.
        encode: Returns the parameters for a request; None if they cannot express it.
        aliases: Other parameter names that models use.
        selector: The parameter that tells its requests apart, if it has several.
        render: Returns the result in this dialect's form, from the request, the result and
            the context.
        read_only: It changes nothing.
        bypasses_filesystem: It changes files without the workspace's methods.
        superseded_by: Requests that make it unnecessary where they are available.
        other_names: Further names that models call it by; they are not offered.
        other_params: An alternative dataclass of parameters; it is not offered.
    """

    name: str
    description: str
    params: type[P]
    requests: tuple[type[Any], ...]
    decode: Callable[[P, Any], Any]
    encode: Callable[[Any], P | None]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    selector: str | None = None
    render: Callable[[Any, Any, Any], Any] | None = None
    read_only: bool = False
    bypasses_filesystem: bool = False
    superseded_by: tuple[type[Any], ...] = ()
    other_names: tuple[str, ...] = ()
    other_params: type[Any] | None = None

    def arguments(self, request: Any) -> Mapping[str, object] | None:
        """Return the arguments that say a request; None if it cannot be said."""
        params = self.encode(request) if type(request) in self.requests else None
        return None if params is None else cast("Mapping[str, object]", _as_json(params))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The tools that are there, and what they are called."""

    specs: tuple[ToolSpec[Any], ...] = ()

    def name(self, request: type[Any]) -> str | None:
        """Return the name of the tool that says a kind of request; None if there is none."""
        return next((each.name for each in self.specs if request in each.requests), None)

    def arguments(self, request: Any) -> tuple[str, Mapping[str, object]] | None:
        """Return the tool and the arguments that say a request; None if nobody says it."""
        return next(((spec.name, said) for spec, said in self._said(request)), None)

    def call(self, request: Any, *only: str) -> str | None:
        """Return how a request is said, for a sentence: "read_file with offset=2000".

        Args:
            request: What to say.
            only: The fields of the request to mention; all if none is given. What a dialect
                calls them, and in how many parameters it says them, is its own affair.
        """
        for spec, said in self._said(request):
            keys = [each for each in said if not only or each in _saying(spec, request, only)]
            shown = ", ".join(f"{key}={_shown(said[key])}" for key in keys)
            return f"{spec.name} with {shown}" if shown else spec.name
        return None

    def fill(self, text: str) -> str:
        """Return a text with `$Request` replaced by names of tools, or its line left out."""
        lines = (self._filled(line) for line in text.splitlines())
        return "\n".join(line for line in lines if line is not None)

    def _said(self, request: Any) -> Iterator[tuple[ToolSpec[Any], Mapping[str, object]]]:
        for spec in self.specs:
            said = spec.arguments(request)
            if said is not None:
                yield spec, said

    def _filled(self, line: str) -> str | None:
        kinds = {kind.__name__: kind for each in self.specs for kind in each.requests}
        names = {name: self.name(kind) or name for name, kind in kinds.items()}
        mentioned = _MENTION.findall(line)
        if any(each.endswith("Params") and each not in names for each in mentioned):
            return None
        return _MENTION.sub(lambda found: names.get(found[1], found[0]), line)


def dialect_of(specs: Iterable[ToolSpec[Any]], handled: Iterable[type[Any]]) -> Dialect:
    """Return what can be said where only some requests are carried out."""
    known = frozenset(handled)
    return Dialect(
        tuple(
            each
            for each in specs
            if known.issuperset(each.requests) and known.isdisjoint(each.superseded_by)
        )
    )


def _saying(spec: ToolSpec[Any], request: Any, only: tuple[str, ...]) -> set[str]:
    """Return the arguments that would be others if these fields of the request were."""
    said = spec.arguments(request) or {}
    found = {*only, *([spec.selector] if spec.selector else ())}
    for each in fields(request):
        if each.name in only:
            other = spec.arguments(replace(request, **{each.name: _other(each, request)})) or {}
            found |= {key for key in said if said[key] != other.get(key)}
    return found


def _other(each: Field[Any], request: Any) -> Any:
    """Return another value for a field: its default, or a longer text."""
    if each.default is not MISSING:
        return each.default
    value: object = getattr(request, each.name)
    return value + "x" if isinstance(value, str) else ()


def _as_json(value: Any) -> object:
    """Return parameters as JSON has them, without what is left at its default."""
    if isinstance(value, VfsPath):
        return str(value)
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in cast("list[Any]", value)]
    if not is_dataclass(value):
        return value
    shown = display_names(cast("type[Any]", type(value)))
    return {
        shown.get(each.name, each.name): _as_json(getattr(value, each.name))
        for each in fields(value)
        if each.default is MISSING or getattr(value, each.name) != each.default
    }


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}..."
