"""What a request is carried out with: the files, the settings, and how tools are called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, TypeAlias

from weakincentives.contrib.tools.requests import (
    GlobParams,
    GrepParams,
    LsParams,
    ReadFileParams,
    ReadManyParams,
    TreeParams,
)
from weakincentives.contrib.tools.spec import Dialect
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, PathEscapeError, normalize_path
from weakincentives.posix import display_path, parse_displayed_path
from weakincentives.prompt import ToolContext, ToolResult

_REPEATABLE = frozenset(
    {GlobParams, GrepParams, LsParams, ReadFileParams, ReadManyParams, TreeParams}
)
_TRIES = 3  # to show little enough of what is looked at


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What the tools of a workspace allow and show.

    Args:
        ascii_paths: What is created must have a name of ASCII characters.
        max_characters: Characters in one result.
        max_tokens: Tokens in one result, as `tokens` estimates them.
        max_line_characters: Characters shown of one line.
        max_entries: Entries shown of one listing, paths of one search by name.
        max_matches: Matches shown of one search.
        max_media_bytes: How large a picture may be to be handed to a model.
        characters_per_token: ASCII characters in a token; any other character is taken for one.
    """

    ascii_paths: bool = True
    max_characters: int = 50_000
    max_tokens: int = 20_000
    max_line_characters: int = 2_000
    max_entries: int = 1_000
    max_matches: int = 250
    max_media_bytes: int = 5 * 1024 * 1024
    characters_per_token: float = 3.0

    @property
    def budget(self) -> int:
        """How many characters one result may have."""
        return min(self.max_characters, int(self.max_tokens * self.characters_per_token))

    def tokens(self, text: str) -> int:
        """Return about how many tokens a text has."""
        plain = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
        return ceil(plain / self.characters_per_token) + len(text) - plain


DEFAULT_SETTINGS = ToolSettings()


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What a request is carried out with."""

    tool_context: ToolContext
    filesystem: Filesystem
    settings: ToolSettings = DEFAULT_SETTINGS
    dialect: Dialect = field(default_factory=Dialect)
    handlers: "Mapping[type[Any], Handler]" = field(default_factory=dict[Any, Any])

    def handle(self, request: object) -> ToolResult[Any]:
        """Carry out a request.

        Raises:
            ToolValidationError: Nobody here can.
        """
        handler = self.handlers.get(type(request))
        if handler is None:
            raise ToolValidationError(f"Not available here: {type(request).__name__}")
        result = handler(request, self)
        if type(request) in _REPEATABLE:
            for _ in range(_TRIES):
                tokens = self.settings.tokens(result.message)
                if tokens <= self.settings.max_tokens:
                    break
                # the writing takes more tokens than was thought: less of it is shown
                room = len(result.message) * self.settings.max_tokens // tokens
                less = replace(self.settings, max_characters=max(room, 1))
                result = handler(request, replace(self, settings=less))
        return result

    def path(self, given: str) -> str:
        """Return the path in the workspace that a model means.

        A path that begins with the workspace's own directory means what is below it. A name
        that is shown escaped, because it holds what cannot be seen, may be sent so.

        Raises:
            PathEscapeError: It leads out of the workspace.
        """
        root = self.filesystem.root.rstrip("/")
        if root and (given == root or given.startswith(root + "/")):
            given = given[len(root) :].lstrip("/")
        try:
            path = normalize_path(given)
        except PathEscapeError as error:
            raise PathEscapeError(
                f"{error}; paths are relative to the top of the workspace"
            ) from None
        return self._unescaped(path) if "\\" in path else path

    def _unescaped(self, path: str) -> str:
        """Return the path that exists and is shown so, or the path itself.

        Only what has to be escaped may be: otherwise a name that a policy forbids could be
        sent in another form.
        """
        if self.filesystem.exists(path):
            return path
        for sent in (path, path.replace("\\\\", "\\")):  # in quotes it is escaped twice
            meant = parse_displayed_path(sent)
            if display_path(meant) == sent and self.filesystem.exists(meant):
                return meant
        return path

    def new_path(self, given: str) -> str:
        """Return the path of something that may be created.

        Raises:
            ToolValidationError: Its name is not ASCII and must be.
            PathEscapeError: It leads out of the workspace.
        """
        path = self.path(given)
        if self.settings.ascii_paths and not path.isascii() and not self.filesystem.exists(path):
            raise ToolValidationError(
                f"New names must be ASCII: {given!r}; use letters without accents, digits,"
                " '-', '_' and '.'"
            )
        return path


Handler: TypeAlias = Callable[[Any, HandlerContext], ToolResult[Any]]
"""Carries out one kind of request."""


def handler_context(
    tool_context: ToolContext,
    settings: ToolSettings,
    dialect: Dialect,
    handlers: Mapping[type[Any], Handler],
) -> HandlerContext:
    """Return what a call is carried out with.

    Raises:
        ToolValidationError: There is no workspace.
    """
    if tool_context.filesystem is None:
        raise ToolValidationError(
            "There is no workspace: the prompt has no section that brings one,"
            " or the context was made without a filesystem"
        )
    return HandlerContext(tool_context, tool_context.filesystem, settings, dialect, handlers)
