"""The dispatch of a tool call: a spec decodes the request, a handler carries it out in a context.

Messages for a model name tools and parameters. Their text is built by the dialect, from the same
table as the tools, so that no message mentions a tool that is not offered or counts lines from
another base than the tool does.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from math import ceil
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from weakincentives.contrib.tools import requests
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, PathEscapeError, VfsPath, normalize_path
from weakincentives.posix import display_path, parse_displayed_path, shorten_path
from weakincentives.prompt import (
    PromptError,
    Tool,
    ToolAccess,
    ToolContext,
    ToolResult,
    display_names,
)

P = TypeVar("P")
T = TypeVar("T")
_MENTION = re.compile(r"\$([A-Za-z]+)")
_MAX_VALUE = 200  # characters of one argument in a message
_READ_ONLY = frozenset(
    {
        requests.GlobParams,
        requests.GrepParams,
        requests.LsParams,
        requests.ReadFileParams,
        requests.ReadManyParams,
        requests.RepoMapParams,
        requests.TreeParams,
    }
)
_SANDBOX_ROOT = "/workspace"  # where commands find the workspace, and so do their messages
_SYSTEM_DIRECTORIES = frozenset(
    {
        *("bin", "boot", "dev", "etc", "home", "lib", "media", "mnt", "opt", "proc", "root"),
        *("run", "sbin", "srv", "sys", "tmp", "usr", "var", "Users", "Volumes", "private"),
    }
)
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
_NO_FILESYSTEM = """\
No filesystem available in this context. Add a workspace section to the prompt, or pass a \
filesystem in the tool context."""
_MAX_RETRIES = 3  # with less room, while a result has too many tokens


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


def pass_through(name: str, request: type[Any], description: str, **options: Any) -> ToolSpec[Any]:
    """Return a tool whose parameters are the fields of a request."""
    return ToolSpec(
        name=name,
        description=description,
        params=request,
        requests=(request,),
        decode=identity,
        encode=identity,
        **options,
    )


def identity(value: T, _context: object = None) -> T:
    """Return the value: the parameters are the request."""
    return value


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


def select_specs(
    dialects: Mapping[Any, tuple[ToolSpec[Any], ...]],
    name: str,
    handled: Iterable[type[Any]],
    *,
    read_only: bool = False,
) -> Dialect:
    """Return the tools of a dialect whose requests are all among `handled`.

    If `read_only`, those that can change something are left out.

    Raises:
        PromptError: The dialect is unknown.
    """
    if name not in dialects:
        raise PromptError(f"Dialect must be one of {', '.join(dialects)}: {name!r}")
    known = frozenset(handled)
    return Dialect(
        tuple(
            spec
            for spec in dialects[name]
            if known.issuperset(spec.requests) and known.isdisjoint(spec.superseded_by)
            if spec.read_only or not read_only
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


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """Limits and rules of a workspace's tools.

    Args:
        ascii_paths: New files and directories must have ASCII names.
        max_characters: Characters in one result.
        max_tokens: Tokens in one result, as estimated by `count_tokens`.
        max_line_characters: Characters shown of one line.
        max_entries: Entries in one listing, and paths in one search by name.
        max_matches: Matches in one search.
        max_media_bytes: Size of the largest picture that is passed to a model.
        characters_per_token: ASCII characters per token; any other character counts as a token.
        host_roots: Directories of the host that stand for the workspace root in absolute paths,
            such as the one that it is a copy of. Absolute paths below none of them are refused.
    """

    ascii_paths: bool = True
    max_characters: int = 50_000
    max_tokens: int = 20_000
    max_line_characters: int = 2_000
    max_entries: int = 1_000
    max_matches: int = 250
    max_media_bytes: int = 5 * 1024 * 1024
    characters_per_token: float = 3.0
    host_roots: tuple[str, ...] = ()

    @property
    def budget(self) -> int:
        """The number of characters that one result may have."""
        return min(self.max_characters, int(self.max_tokens * self.characters_per_token))

    def count_tokens(self, text: str) -> int:
        """Return the estimated number of tokens in a text."""
        ascii_count = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
        return ceil(ascii_count / self.characters_per_token) + len(text) - ascii_count


DEFAULT_SETTINGS = ToolSettings()


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What a handler needs to carry out a request."""

    tool_context: ToolContext
    filesystem: Filesystem
    settings: ToolSettings = DEFAULT_SETTINGS
    dialect: Dialect = field(default_factory=Dialect)
    handlers: "Mapping[type[Any], Handler]" = field(default_factory=dict[Any, Any])

    def handle(self, request: object) -> ToolResult[Any]:
        """Carry out a request with the handler for its type.

        A read-only request is repeated with less room while its result has too many tokens.

        Raises:
            ToolValidationError: There is no handler for this request.
        """
        handler = self.handlers.get(type(request))
        if handler is None:
            raise ToolValidationError(f"Not available here: {type(request).__name__}")
        result = handler(request, self)
        if type(request) in _READ_ONLY:
            for _ in range(_MAX_RETRIES):
                tokens = self.settings.count_tokens(result.message)
                if tokens <= self.settings.max_tokens:
                    break
                room = len(result.message) * self.settings.max_tokens // tokens
                smaller = replace(self.settings, max_characters=max(room, 1))
                result = handler(request, replace(self, settings=smaller))
        return result

    def check_access(self, access: ToolAccess) -> None:
        """Ask the policies about paths that are known only while a request is carried out."""
        self.tool_context.check_access(access)

    def resolve_path(self, given: str) -> str:
        """Return the workspace path for a path that a model sent.

        An absolute path below the workspace root is made relative, and so is one below
        `/workspace`, where commands in a sandbox find it, or below a host root of the settings. A
        name that is displayed escaped, because it has invisible characters, may be sent in that
        form.

        Raises:
            PathEscapeError: The path leaves the workspace, or is one of the machine's.
        """
        sent = given
        roots = (*self.settings.host_roots, self.filesystem.root)
        for root in (*(each.rstrip("/") for each in roots), _SANDBOX_ROOT):
            if root and (given == root or given.startswith(root + "/")):
                # the workspace may have a directory of that name
                if root != _SANDBOX_ROOT or not self.filesystem.exists(root[1:]):
                    given = given[len(root) :].lstrip("/")
                break
        try:
            path = normalize_path(given)
        except PathEscapeError as error:
            raise PathEscapeError(f"{error}; use a path relative to the workspace root") from None
        if given is sent and self._is_foreign(sent, path):
            root = next(iter(self.settings.host_roots), self.filesystem.root)
            raise PathEscapeError(
                f"Path is outside the workspace: {shorten_path(sent)!r}; use a path relative to its"
                f" root {root!r}"
            )
        return self._resolve_escapes(path) if "\\" in path else path

    def _is_foreign(self, sent: str, path: str) -> bool:
        """Return whether a path names a place of the machine that the workspace does not have.

        `/src/a.py` counts from the workspace root, but a file that was to be `/etc/hosts` or
        on a drive `C:` must not be created below it. With host roots, every absolute path is one
        of the machine.
        """
        if self.settings.host_roots and sent.startswith("/"):
            return True
        first = path.partition("/")[0]
        is_system = sent.startswith("/") and first in _SYSTEM_DIRECTORIES
        is_foreign = is_system or _WINDOWS_PATH.match(sent) is not None
        return is_foreign and not self.filesystem.exists(first)

    def _resolve_escapes(self, path: str) -> str:
        """Return the existing path that is displayed as `path`, or else `path` itself.

        Only characters that must be escaped may be: otherwise a name that a policy forbids
        could be sent in another form.
        """
        if self.filesystem.exists(path):
            return path
        for shown in (path, path.replace("\\\\", "\\")):  # quoting escapes it twice
            actual = parse_displayed_path(shown)
            if display_path(actual) == shown and self.filesystem.exists(actual):
                return actual
        return path

    def resolve_new_path(self, given: str) -> str:
        """Return the workspace path for a file or directory that may be created.

        Raises:
            ToolValidationError: It would be new, and its name is not ASCII.
            PathEscapeError: The path leaves the workspace.
        """
        path = self.resolve_path(given)
        if self.settings.ascii_paths and not path.isascii() and not self.filesystem.exists(path):
            raise ToolValidationError(
                f"New names must be ASCII: {given!r}; use letters without accents, digits,"
                " '-', '_' and '.'"
            )
        return path


Handler: TypeAlias = Callable[[Any, HandlerContext], ToolResult[Any]]
"""Carries out requests of one type."""


@runtime_checkable
class DescribedHandler(Protocol):
    """A handler that knows more about its tool than the dialect does."""

    @property
    def description(self) -> str:
        """What is added to the description of the tool."""
        ...

    @property
    def bypasses_filesystem(self) -> bool:
        """Whether it changes files without the workspace's methods."""
        ...


Binding: TypeAlias = Callable[[ToolContext], ToolContext]
"""Returns the tool context for a call; a section rejects foreign sessions here."""


@dataclass(frozen=True, slots=True)
class SpecHandler:
    """Handles the calls of one tool: decode the request, carry it out, render the result."""

    spec: ToolSpec[Any]
    settings: ToolSettings
    dialect: Dialect
    handlers: Mapping[type[Any], Handler] = field(repr=False)
    binding: Binding | None = None

    def find_access(self, params: Any, context: ToolContext) -> ToolAccess:
        """Return the paths that a call touches."""
        if context.filesystem is None:
            return ToolAccess()
        ours = self._handler_context(context, context.filesystem)
        return requests.find_access(self.spec.decode(params, ours), ours.resolve_path)

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        """Handle a call; without a filesystem it fails."""
        if self.binding is not None:
            context = self.binding(context)
        if context.filesystem is None:
            return ToolResult[Any].error(_NO_FILESYSTEM)
        ours = self._handler_context(context, context.filesystem)
        request = self.spec.decode(params, ours)
        result = ours.handle(request)
        return result if self.spec.render is None else self.spec.render(request, result, ours)

    def build_tool(self) -> Tool[Any, Any]:
        """Return the tool."""
        spec = self.spec
        handlers = map(self.handlers.get, spec.requests)
        described = [each for each in handlers if isinstance(each, DescribedHandler)]
        texts = (self.dialect.fill(spec.description), *(each.description for each in described))
        return Tool[Any, Any](
            spec.name,
            "\n".join(texts),
            self,
            params_type=spec.params,
            read_only=spec.read_only,
            bypasses_filesystem=spec.bypasses_filesystem
            or any(each.bypasses_filesystem for each in described),
            aliases=spec.aliases,
            access=self.find_access,
            other_names=spec.other_names,
            other_params=spec.other_params,
        )

    def _handler_context(self, context: ToolContext, filesystem: Filesystem) -> HandlerContext:
        return HandlerContext(context, filesystem, self.settings, self.dialect, self.handlers)


def build_tools(
    offered: Dialect,
    handlers: Mapping[type[Any], Handler],
    settings: ToolSettings,
    binding: Binding | None = None,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools that are offered, each with its handler."""
    return tuple(
        SpecHandler(each, settings, offered, handlers, binding).build_tool()
        for each in offered.specs
    )
