"""`repo_map`: the most central source files of a workspace, with an outline of their code."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

from weakincentives.contrib.digest import MIN_TOKENS, DigestCache, RepositoryMap, repo_map
from weakincentives.contrib.tools.context import Handler, HandlerContext
from weakincentives.contrib.tools.handlers.errors import stat_path
from weakincentives.contrib.tools.handlers.render import bounded_result, format_count, format_path
from weakincentives.contrib.tools.requests import RepoMapParams
from weakincentives.contrib.tools.results import RepoMapResult
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import ToolResult

_MARGIN = 300  # tokens for the lines around the map


def repo_map_handlers(cache: DigestCache | None = None) -> Mapping[type[Any], Handler]:
    """Return the handler for requests of a repository map.

    Pass it as `extra_handlers=` to a section or to `filesystem_tools` to add the tool `repo_map`.

    Args:
        cache: Facts about files, so that only those that have changed are scanned and parsed
            again; by default one in memory.
    """
    mapper = _Mapper(DigestCache() if cache is None else cache)
    return {RepoMapParams: mapper.map}


class _Mapper:
    """Makes repository maps with one cache, one at a time."""

    def __init__(self, cache: DigestCache) -> None:
        self._cache = cache
        self._lock = Lock()

    def map(self, request: RepoMapParams, context: HandlerContext) -> ToolResult[RepoMapResult]:
        """Return the repository map of the workspace, or the part around a path."""
        if request.max_tokens < MIN_TOKENS:
            raise ToolValidationError(
                f"max_tokens must be at least {MIN_TOKENS}: {request.max_tokens!r}"
            )
        path = context.resolve_path(request.path)
        stat_path(context, path)
        room = int(context.settings.budget / context.settings.characters_per_token) - _MARGIN
        tokens = max(MIN_TOKENS, min(request.max_tokens, room))
        with self._lock:
            found = repo_map(context.filesystem, path or ".", tokens=tokens, cache=self._cache)
        result = RepoMapResult(
            path or ".", found.text, found.files, found.source_files, found.warnings
        )
        return bounded_result(context, _render(found, path), result, "\n".join(found.warnings))


def _render(found: RepositoryMap, path: str) -> list[str]:
    if not found.files:
        return [f"No source files to map in {format_path(path)}"]
    order = f"beginning with {format_path(path)}" if path else "the most central first"
    head = f"Map of {format_count(found.source_files, 'source file')} with line numbers, {order}"
    return [head, found.text]
