"""The context of a request: workspace, settings and dialect, and the dispatch to handlers."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Protocol, TypeAlias, runtime_checkable

from weakincentives.contrib.tools.requests import (
    GlobParams,
    GrepParams,
    LsParams,
    ReadFileParams,
    ReadManyParams,
    RepoMapParams,
    TreeParams,
)
from weakincentives.contrib.tools.spec import Dialect
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, PathEscapeError, normalize_path
from weakincentives.posix import display_path, parse_displayed_path, shorten_path
from weakincentives.prompt import ToolAccess, ToolContext, ToolResult

_READ_ONLY = frozenset(
    {GlobParams, GrepParams, LsParams, ReadFileParams, ReadManyParams, RepoMapParams, TreeParams}
)
_SANDBOX_ROOT = "/workspace"  # where commands find the workspace, and so do their messages
_SYSTEM_DIRECTORIES = frozenset(
    {
        *("bin", "boot", "dev", "etc", "home", "lib", "media", "mnt", "opt", "proc", "root"),
        *("run", "sbin", "srv", "sys", "tmp", "usr", "var", "Users", "Volumes", "private"),
    }
)
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
_MAX_RETRIES = 3  # with less room, while a result has too many tokens


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
        """Ask the policies about paths that are known only while a request is carried out.

        Raises:
            PermissionError: A policy denies it.
        """
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


def handler_context(
    tool_context: ToolContext,
    settings: ToolSettings,
    dialect: Dialect,
    handlers: Mapping[type[Any], Handler],
) -> HandlerContext:
    """Return the context for one tool call.

    Raises:
        ToolValidationError: The call has no workspace.
    """
    if tool_context.filesystem is None:
        raise ToolValidationError(
            "No workspace: add a workspace section to the prompt, or pass a filesystem"
            " in the tool context"
        )
    return HandlerContext(tool_context, tool_context.filesystem, settings, dialect, handlers)
