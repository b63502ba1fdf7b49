"""Tool specifications: how a dialect turns tool calls into requests, and requests into calls.

Messages for a model name tools and parameters. Their text is built here, from the same
table as the tools, so that no message mentions a tool that is not offered or counts
lines from another base than the tool does.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

from weakincentives.filesystem import VfsPath
from weakincentives.prompt.arguments import display_names

P = TypeVar("P")
_MENTION = re.compile(r"\$([A-Za-z]+)")
_MAX_VALUE = 200  # characters of one argument in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec(Generic[P]):
    """One tool of a dialect: its parameters, and the requests that they stand for.

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
        selector: The parameter that selects the type of request, if the tool has several.
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

    def encode_arguments(self, request: Any) -> Mapping[str, object] | None:
        """Return the arguments for a request; None if this tool cannot express it."""
        params = self.encode(request) if type(request) in self.requests else None
        return None if params is None else cast("Mapping[str, object]", _to_json(params))


@dataclass(frozen=True, slots=True)
class Dialect:
    """The tools that a model is offered."""

    specs: tuple[ToolSpec[Any], ...] = ()

    def tool_name(self, request: type[Any]) -> str | None:
        """Return the name of the tool for a kind of request; None if there is none."""
        return next((spec.name for spec in self.specs if request in spec.requests), None)

    def encode(self, request: Any) -> tuple[str, Mapping[str, object]] | None:
        """Return the tool name and the arguments for a request; None if no tool fits."""
        return next(((spec.name, arguments) for spec, arguments in self._calls(request)), None)

    def format_call(self, request: Any, *only: str) -> str | None:
        """Return the call for a request, to quote in a message: "read_file with offset=2000".

        Args:
            request: The request.
            only: Fields of the request to mention; all if none is given. The dialect decides
                how its parameters are named, and how many it needs for one field.
        """
        for spec, arguments in self._calls(request):
            wanted = _keys_for(spec, request, only) if only else arguments.keys()
            text = ", ".join(
                f"{key}={_format_value(value)}" for key, value in arguments.items() if key in wanted
            )
            return f"{spec.name} with {text}" if text else spec.name
        return None

    def fill(self, text: str) -> str:
        """Return a text with `$Request` replaced by tool names.

        A line that mentions a request without a tool is left out.
        """
        lines = (self._fill_line(line) for line in text.splitlines())
        return "\n".join(line for line in lines if line is not None)

    def _calls(self, request: Any) -> Iterator[tuple[ToolSpec[Any], Mapping[str, object]]]:
        for spec in self.specs:
            arguments = spec.encode_arguments(request)
            if arguments is not None:
                yield spec, arguments

    def _fill_line(self, line: str) -> str | None:
        kinds = {kind.__name__: kind for each in self.specs for kind in each.requests}
        names = {name: self.tool_name(kind) or name for name, kind in kinds.items()}
        mentioned = _MENTION.findall(line)
        if any(each.endswith("Params") and each not in names for each in mentioned):
            return None
        return _MENTION.sub(lambda match: names.get(match[1], match[0]), line)


def select_specs(specs: Iterable[ToolSpec[Any]], handled: Iterable[type[Any]]) -> Dialect:
    """Return the dialect of the tools whose requests are all among `handled`."""
    known = frozenset(handled)
    return Dialect(
        tuple(
            spec
            for spec in specs
            if known.issuperset(spec.requests) and known.isdisjoint(spec.superseded_by)
        )
    )


def _keys_for(spec: ToolSpec[Any], request: Any, only: tuple[str, ...]) -> set[str]:
    """Return the arguments that depend on these fields: they change if the field does."""
    arguments = spec.encode_arguments(request) or {}
    keys = {*only, *([spec.selector] if spec.selector else ())}
    for each in fields(request):
        if each.name in only:
            changed = replace(request, **{each.name: _other_value(each, request)})
            others = spec.encode_arguments(changed) or {}
            keys |= {key for key in arguments if arguments[key] != others.get(key)}
    return keys


def _other_value(each: Field[Any], request: Any) -> Any:
    """Return a different value for a field: its default, or a longer text."""
    if each.default is not MISSING:
        return each.default
    value: object = getattr(request, each.name)
    return value + "x" if isinstance(value, str) else ()


def _to_json(value: Any) -> object:
    """Return parameters as JSON values, without those that have their default."""
    if isinstance(value, VfsPath):
        return str(value)
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in cast("list[Any]", value)]
    if not is_dataclass(value):
        return value
    names = display_names(cast("type[Any]", type(value)))
    return {
        names.get(each.name, each.name): _to_json(getattr(value, each.name))
        for each in fields(value)
        if each.default is MISSING or getattr(value, each.name) != each.default
    }


def _format_value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."
