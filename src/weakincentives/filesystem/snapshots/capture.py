"""Capture: what is in a directory of the host, as git objects.

Only files that have changed since the last capture are read. Who knows what has been
touched since pays for that alone; otherwise everything is looked at. Nothing in the
workspace can influence what is captured.
"""

import errno
from collections.abc import Collection
from contextlib import closing

from weakincentives.filesystem.leftovers import is_temporary
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import join, os_error, parent_of
from weakincentives.filesystem.rooted import RootedDirectory, explained
from weakincentives.filesystem.snapshots.captured import CapturedDirectory, in_order
from weakincentives.filesystem.snapshots.walking import Found, Other, Walk
from weakincentives.filesystem.store.batches import Batch

_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def capture(
    directory: RootedDirectory,
    batch: Batch,
    prior: CapturedDirectory | None,
    touched: Collection[str] | None = None,
) -> CapturedDirectory:
    """Return what is in `directory` now, with every new object added to `batch`.

    Where nothing has changed, the result is made of the objects of `prior`; if nothing
    has changed at all, it is `prior`. With `touched`, nothing is looked at but these
    paths and what is below them: it is the caller's promise that all else is as in `prior`.

    Raises:
        OSError: Something may not be read. A capture holds everything or is not made.
    """
    with closing(Walk(directory, batch)) as walk:
        if prior is not None and touched is not None and "" not in touched:
            found = _Update(walk, prior).take(touched)
        else:
            found = walk.below("", prior)
    if found is None:
        raise os_error(errno.ENOENT, "")
    if prior is not None:
        found.learn(prior)
    return found


class _Update:
    """Finds out what became of some paths, and builds the directories above them anew."""

    def __init__(self, walk: Walk, prior: CapturedDirectory) -> None:
        self._walk = walk
        self._above = {"": prior}
        self._found: dict[str, dict[str, Found]] = {}

    def take(self, touched: Collection[str]) -> CapturedDirectory:
        done = "\0"  # below no path
        for path in sorted(filter(None, map(self._first_unknown, touched)), key=_in_tree_order):
            check_time("Snapshot")
            if not f"{path}/".startswith(f"{done}/"):
                done = self._look(path)
        return self._built()

    def _first_unknown(self, path: str) -> str | None:
        """Return `path`, or the first above it that was no directory; None if it is hidden."""
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

    def _look(self, path: str) -> str:
        """Find out what is at `path`, or the first above it that is no directory any more."""
        while True:
            parent, _, name = path.rpartition("/")
            try:
                found = self._walk.at(path, self._above[parent].children.get(name))
            except OSError as error:
                if error.errno not in _NO_DIRECTORY or not parent:
                    raise explained(error, path) from None
                path = parent
            else:
                self._found.setdefault(parent, {})[name] = found
                return path

    def _built(self) -> CapturedDirectory:
        for path in sorted(self._above, key=_depth, reverse=True):
            before = self._above[path]
            now = self._updated(path, before, self._found.get(path, {}))
            if not path:
                return now
            if now is not before:
                # unless something else has been found in its place
                self._found.setdefault(parent_of(path), {}).setdefault(path.rpartition("/")[2], now)
        return self._above[""]

    def _updated(
        self, path: str, before: CapturedDirectory, found: dict[str, Found]
    ) -> CapturedDirectory:
        children, specials = dict(before.children), set(before.here)
        is_in_order = True
        for name, node in found.items():
            old = children.get(name)
            specials.discard(name)
            if isinstance(node, Other):
                children.pop(name, None)
                if node is Other.SPECIAL:
                    specials.add(name)
            else:
                children[name] = node
                is_in_order = is_in_order and type(old) is type(node)
        if children == before.children and before.here == frozenset(specials):
            return before
        if not is_in_order:
            children = in_order(children)
        return self._walk.stored(path, children, before.permissions, frozenset(specials))


def _in_tree_order(path: str) -> str:
    """Return a key that puts what is below a path right behind it."""
    return path.replace("/", "\0")


def _depth(path: str) -> int:
    return path.count("/") + 1 if path else 0
