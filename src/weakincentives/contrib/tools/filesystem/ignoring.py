"""Searching without what ignore files leave out, on any filesystem.

Ours can do that themselves. Of others the answers are sifted here, by the same rules.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

from weakincentives.filesystem import (
    Filesystem,
    GlobMatch,
    GrepMatch,
    ReadableFilesystem,
    Results,
)
from weakincentives.filesystem.ignore import IgnoreRules
from weakincentives.filesystem.paths import join, parent_of

T = TypeVar("T")

_IGNORE_FILES = (".gitignore", ".ignore")
_MAX_IGNORE_FILE = 256 * 1024  # bytes of an ignore file that count


def find_files(
    filesystem: Filesystem, pattern: str, *, path: str, ignore: bool
) -> Results[GlobMatch]:
    """Return what matches a glob below `path`, sorted."""
    place = path or "."
    if isinstance(filesystem, ReadableFilesystem):
        return filesystem.glob(pattern, path=place, use_ignore_files=ignore)
    found = filesystem.glob(pattern, path=place)
    truncated = bool(getattr(found, "truncated", False))
    if not ignore:
        return _kept(found, found, truncated)
    ignored = _Ignored(filesystem)
    directories = pattern.endswith("/")
    kept = [each for each in found if not ignored.leaves_out(each.path, directories)]
    return _kept(kept, found, truncated)


def find_lines(
    filesystem: Filesystem,
    pattern: str,
    *,
    path: str,
    glob: str | None,
    most: int | None,
    ignore: bool,
) -> Results[GrepMatch]:
    """Return lines that match below `path`, sorted; `truncated` if there may be more."""
    place = path or "."
    if isinstance(filesystem, ReadableFilesystem):
        return filesystem.grep(
            pattern, path=place, glob=glob, max_matches=most, use_ignore_files=ignore
        )
    found = filesystem.grep(pattern, path=place, glob=glob, max_matches=most)
    # others may cut without a word: an answer as long as asked for may be a part
    truncated = bool(getattr(found, "truncated", most is not None and len(found) >= most))
    if not ignore:
        return _kept(found, found, truncated)
    ignored = _Ignored(filesystem)
    kept = [each for each in found if each.path == path or not ignored.leaves_out(each.path)]
    return _kept(kept, found, truncated)


def _kept(kept: Sequence[T], found: Sequence[T], truncated: bool) -> Results[T]:
    """Return what is kept of what was found; why there is no more stays known, if it was."""
    if isinstance(found, Results):
        return Results(kept, truncated=truncated, reason=found.reason, coverage=found.coverage)
    return Results(kept, truncated=truncated)


class _Ignored:
    """Which paths the ignore files of a filesystem leave out; remembers each directory."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._rules: dict[str, IgnoreRules | None] = {}

    def leaves_out(self, path: str, is_directory: bool = False) -> bool:
        """Whether a path, or a directory above it, is left out."""
        rules = self._rules_of(parent_of(path))
        return rules is None or rules.ignores(path, is_directory)

    def _rules_of(self, directory: str) -> IgnoreRules | None:
        """Return the rules in a directory; None if it is left out itself."""
        if directory not in self._rules:
            self._rules[directory] = self._read(directory)
        return self._rules[directory]

    def _read(self, directory: str) -> IgnoreRules | None:
        rules = self._rules_of(parent_of(directory)) if directory else IgnoreRules()
        if rules is None or (directory and rules.ignores(directory, True)):
            return None
        texts: list[str] = []
        for name in _IGNORE_FILES:
            with suppress(OSError):
                page = self._filesystem.read_bytes(join(directory, name), limit=_MAX_IGNORE_FILE)
                texts.append(page.content.decode("utf-8-sig", "replace"))
        return rules.child(directory, "\n".join(texts))
