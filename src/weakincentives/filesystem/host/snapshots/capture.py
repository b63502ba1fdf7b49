"""Capture of a host directory as git trees: all of it, or only the paths that were touched."""

import errno
from collections.abc import Collection
from contextlib import closing

from weakincentives.filesystem.host.snapshots.tree import (
    CapturedDirectory,
    sort_as_git,
)
from weakincentives.filesystem.host.snapshots.walk import (
    NOT_A_DIRECTORY,
    Found,
    Uncaptured,
    Walk,
)
from weakincentives.filesystem.host.snapshots.watcher import ChangeWatcher
from weakincentives.gitstore import PackTransaction
from weakincentives.posix import (
    RootedDirectory,
    check_time,
    explain_error,
    is_temporary,
    join,
    os_error,
    parent_of,
)


def capture(
    directory: RootedDirectory,
    batch: PackTransaction,
    prior: CapturedDirectory | None,
    touched: Collection[str] | None = None,
    watcher: ChangeWatcher | None = None,
) -> CapturedDirectory:
    """Capture the present state of `directory`; new objects are added to `batch`.

    Unchanged parts of the result are the nodes of `prior`; if nothing has changed, the
    result is `prior`. With `touched`, only these paths and what is below them are
    captured: the caller promises that everything else is as in `prior`. Directories that
    are listed are watched by `watcher` from then on.

    Raises:
        OSError: Something cannot be read. A capture is complete or fails.
    """
    with closing(Walk(directory, batch, watcher)) as walk:
        if prior is not None and touched is not None and "" not in touched:
            found = _PathUpdate(walk, prior).run(touched)
        else:
            found = walk.capture_directory("", prior)
    if found is None:
        raise os_error(errno.ENOENT, "")
    if prior is not None:
        found.reuse_notes(prior)
    return found


class _PathUpdate:
    """Captures some paths again and rebuilds the directories above them."""

    def __init__(self, walk: Walk, prior: CapturedDirectory) -> None:
        self._walk = walk
        self._above = {"": prior}
        self._found: dict[str, dict[str, Found]] = {}

    def run(self, touched: Collection[str]) -> CapturedDirectory:
        done = "\0"  # no path is below this one
        for path in sorted(filter(None, map(self._first_unknown, touched)), key=_in_tree_order):
            check_time("Snapshot")
            if not f"{path}/".startswith(f"{done}/"):
                done = self._capture(path)
        return self._rebuild()

    def _first_unknown(self, path: str) -> str | None:
        """Return `path` or its first parent that was not a directory; None if it is hidden."""
        directory, parent = self._above[""], ""
        for segment in path.split("/"):
            if is_temporary(segment):
                return None
            here = join(parent, segment)
            child = directory.children.get(segment)
            if here == path or not isinstance(child, CapturedDirectory):
                return here
            directory = self._above[here] = child
            parent = here
        return path

    def _capture(self, path: str) -> str:
        """Capture `path`, or its nearest parent that can still be reached; return that path."""
        while True:
            parent, _, name = path.rpartition("/")
            try:
                found = self._walk.capture_path(path, self._above[parent].children.get(name))
            except OSError as error:
                if error.errno not in NOT_A_DIRECTORY or not parent:
                    raise explain_error(error, path) from None
                path = parent
            else:
                self._found.setdefault(parent, {})[name] = found
                return path

    def _rebuild(self) -> CapturedDirectory:
        for path in sorted(self._above, key=_depth, reverse=True):
            before = self._above[path]
            now = self._rebuild_directory(path, before, self._found.get(path, {}))
            if not path:
                return now
            if now is not before:
                # unless something else was captured in its place
                self._found.setdefault(parent_of(path), {}).setdefault(path.rpartition("/")[2], now)
        return self._above[""]

    def _rebuild_directory(
        self, path: str, before: CapturedDirectory, found: dict[str, Found]
    ) -> CapturedDirectory:
        children, specials = dict(before.children), set(before.special_names)
        is_in_order = True
        for name, node in found.items():
            old = children.get(name)
            specials.discard(name)
            if isinstance(node, Uncaptured):
                children.pop(name, None)
                if node is Uncaptured.SPECIAL:
                    specials.add(name)
            else:
                children[name] = node
                is_in_order = is_in_order and type(old) is type(node)
        if children == before.children and before.special_names == frozenset(specials):
            return before
        if not is_in_order:
            children = sort_as_git(children)
        return self._walk.store_directory(path, children, before.permissions, frozenset(specials))


def _in_tree_order(path: str) -> str:
    """Return a sort key that puts the paths below a directory right after it."""
    return path.replace("/", "\0")


def _depth(path: str) -> int:
    return path.count("/") + 1 if path else 0
