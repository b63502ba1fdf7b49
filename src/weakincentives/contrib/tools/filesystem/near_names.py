"""What may have been meant by a path at which nothing is."""

import difflib
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile

from weakincentives.contrib.tools.filesystem.ignoring import find_files
from weakincentives.contrib.tools.filesystem.wording import hint, listed, named
from weakincentives.contrib.tools.requests import LsParams, ReadFileParams
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.filesystem import FileStat, PathEscapeError, time_limit
from weakincentives.filesystem.paths import join, normalize_path, parent_of

_MOST = 3
_MAX_COMPARED = 2_000  # names in one directory: comparing is slow
_MAX_NAME = 100  # characters of a name that is looked for elsewhere
_SECONDS = 1.0
_ALIKE = 0.6
_MAGIC = re.compile(r"[*?\[\]{}\\!,]")


def near_names(bench: Workbench, path: str) -> tuple[str, ...]:
    """Return paths that exist and are close to one that does not, the closest first."""
    found: dict[str, None] = {}
    with suppress(OSError, ValueError), time_limit(_SECONDS):
        found.update(dict.fromkeys(_alike(bench, path)))
        if len(found) < _MOST:
            found.update(dict.fromkeys(_elsewhere(bench, path)))
    return tuple(found)[:_MOST]


def missing(bench: Workbench, path: str, *, what: str = "file or directory") -> FileNotFoundError:
    """Return the error for a path at which nothing is: it says what may have been meant."""
    near = near_names(bench, path)
    text = f"No such {what}: {named(path)!r}"
    if near:
        return FileNotFoundError(
            f"{text}; did you mean {listed(repr(named(each)) for each in near)}?"
        )
    place = _nearest_directory(bench, path)
    call = bench.speech.call(LsParams(place or "."))
    return FileNotFoundError(text + hint("; to see what is there:", call))


def present(bench: Workbench, path: str, *, what: str = "file or directory") -> FileStat:
    """Return what is at a path.

    Raises:
        FileNotFoundError: Nothing is; it says what may have been meant.
    """
    try:
        return bench.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        raise missing(bench, path, what=what) from None


def link_refused(bench: Workbench, path: str, target: str) -> PermissionError:
    """Return the error for a link: it names the target, and how to read that."""
    text = f"{named(path)!r} is a symbolic link to {named(target)!r}; links are not followed"
    call = None
    with suppress(OSError, ValueError):
        inside = _target_inside(bench, path, target)
        found = bench.filesystem.stat(inside or ".")
        request = ReadFileParams(inside) if found.is_file else LsParams(inside)
        call = bench.speech.call(request)
    return PermissionError(text + hint("; instead:", call))


def _target_inside(bench: Workbench, path: str, target: str) -> str:
    """Return where in the workspace a link leads.

    Raises:
        PathEscapeError: It leads out.
    """
    if target.startswith("/"):
        root = bench.filesystem.root.rstrip("/")
        if root and not target.startswith(root + "/"):
            raise PathEscapeError(f"Link leads out of the workspace: {target!r}")
        return bench.path(target)
    return normalize_path(posixpath.join(parent_of(path), target))


def _alike(bench: Workbench, path: str) -> Iterator[str]:
    """Yield paths in which the first segment that does not exist is another one."""
    directory = _nearest_directory(bench, path)
    rest = path[len(directory) :].lstrip("/")
    wrong, _, below = rest.partition("/")
    entries = bench.filesystem.list(directory or ".")[:_MAX_COMPARED]
    for name in _close(wrong, [each.name for each in entries]):
        candidate = join(directory, name)
        if below:
            candidate = f"{candidate}/{below}"
        if not below or bench.filesystem.exists(candidate):
            yield candidate


def _close(wrong: str, names: Iterable[str]) -> list[str]:
    """Return the names that are like `wrong`; those that differ in case only come first."""
    by_form: dict[str, list[str]] = {}
    for name in names:
        by_form.setdefault(_form(name), []).append(name)
    forms = difflib.get_close_matches(_form(wrong), by_form, _MOST, _ALIKE)
    return [name for form in forms for name in by_form[form]]


def _form(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _nearest_directory(bench: Workbench, path: str) -> str:
    """Return the innermost directory on the way to `path` that exists."""
    directory = parent_of(path)
    while directory:
        with suppress(OSError):
            if bench.filesystem.stat(directory).is_directory:
                return directory
        directory = parent_of(directory)
    return ""


def _elsewhere(bench: Workbench, path: str) -> list[str]:
    """Return files of the same name, in any case, in other directories."""
    name = path.rpartition("/")[2]
    if not name or len(name) > _MAX_NAME:
        return []
    pattern = "**/" + in_any_case(_MAGIC.sub(r"\\\g<0>", name))
    matches = find_files(bench.filesystem, pattern, path="", ignore=True)
    paths = [each.path for each in matches if each.path != path]
    return sorted(paths, key=lambda each: -_shared_end(each, path))[:_MOST]


def _shared_end(one: str, other: str) -> int:
    """Return how many segments two paths have in common, from the end."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: _form(pair[0]) == _form(pair[1]), pairs))


def in_any_case(pattern: str) -> str:
    """Return a glob that takes upper and lower case for the same."""
    return "".join(map(_both_cases, pattern))


def _both_cases(character: str) -> str:
    lower, upper = character.lower(), character.upper()
    alone = lower == upper or len(lower) + len(upper) > 2
    return character if alone else f"[{lower}{upper}]"
