"""One side of a comparison: a filesystem, and what was kept of it on the way."""

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    BaseFilesystem,
    Diff,
    FileStat,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    ObservableFilesystem,
    Results,
    StateReplaced,
    normalize_path,
)
from weakincentives.filesystem.testing.operations import Operation, Outcome
from weakincentives.filesystem.testing.states import State, state_of, tree_in

_KEPT = 8  # snapshots, and archives, that can still be asked for
_BEYOND_THE_PROTOCOL = {
    "move": "move",
    "copy": "copy",
    "link": "_make_link",
    "content_hash": "content_hash",
    "snapshot": "snapshot",
    "restore": "restore",
    "restore_paths": "restore",
    "preview": "preview",
    "view": "view",
    "export": "export_archive",
    "import": "import_archive",
}


class Side:
    """A filesystem that operations are done to; it remembers snapshots, archives and events."""

    def __init__(self, filesystem: Any, new_archive: Callable[[], Path]) -> None:
        """Watch a Filesystem with all it can do beyond that; `new_archive` returns a free place."""
        self.filesystem: Any = filesystem
        self.other = self
        self.events: list[FilesystemEvent] = []
        self._new_archive = new_archive
        self._archives: deque[tuple[Path, State]] = deque(maxlen=_KEPT)
        self._snapshots: deque[tuple[FilesystemSnapshot, State]] = deque(maxlen=_KEPT)

    def listen(self) -> None:
        """Remember events from now on."""
        if isinstance(self.filesystem, ObservableFilesystem):
            self.filesystem.subscribe(self._hear)

    def perform(self, operation: Operation) -> Outcome:
        """Do `operation`; an import `across` takes an archive of the other side.

        Raises:
            Exception: What is neither OSError, ValueError, TypeError nor ours is a bug.
        """
        try:
            return Outcome(comparable(self._call(operation)))
        except (OSError, ValueError, TypeError, WinkError) as error:
            return Outcome(None, type(error), getattr(error, "errno", None), str(error))

    def _call(self, operation: Operation) -> object:
        own: dict[str, Callable[..., object]] = {
            "link": self._link,
            "delete": self._delete,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "restore_paths": self._restore_paths,
            "preview": self._preview,
            "view": self._view,
            "export": self._export,
            "import": self._import,
        }
        name = operation.name.removesuffix("_at")
        call = own.get(name) or getattr(self.filesystem, name)
        return call(**operation.arguments)

    def _link(self, path: str, target: str) -> bool:
        """Make a link where there is room for one, as another program would."""
        fs, key = self.filesystem, normalize_path(path)
        parent = key.rpartition("/")[0]
        if fs.exists(key) or not fs.stat(parent).is_directory or not _can_be_named(key):
            return False
        if isinstance(fs, BaseFilesystem):
            fs._make_link(key, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links
        return True

    def _delete(self, path: str, recursive: bool = False) -> object:
        fs = self.filesystem
        if recursive and _is_root(path):
            # the one stated difference: memory empties, the host refuses; so do what both can
            return [fs.delete(entry.path, recursive=True) for entry in fs.list()]
        return fs.delete(path, recursive=recursive)

    def _snapshot(self, tag: str | None) -> str | None:
        state = state_of(self.filesystem)
        kept = self.filesystem.snapshot(tag=tag)
        self._snapshots.append((kept, state))
        return kept.tag

    def _restore(self, number: int) -> None:
        if self._snapshots:
            kept, state = _picked(self._snapshots, number)
            self.filesystem.restore(kept)
            _expect(state_of(self.filesystem), state, "restored")

    def _restore_paths(self, number: int, paths: Sequence[str]) -> None:
        if self._snapshots:
            self.filesystem.restore(_picked(self._snapshots, number)[0], paths=paths)

    def _preview(self, number: int, paths: Sequence[str] | None) -> object:
        if self._snapshots:
            return self.filesystem.preview(_picked(self._snapshots, number)[0], paths=paths)
        return None

    def _view(self, number: int, path: str) -> object:
        if self._snapshots:
            return self.filesystem.view(_picked(self._snapshots, number)[0]).stat(path)
        return None

    def _export(self) -> int:
        place = self._new_archive()
        count = self.filesystem.export_archive(place)
        self._archives.append((place, state_of(self.filesystem)))
        return count

    def _import(self, number: int, across: bool) -> int | None:
        archives = self.other._archives if across else self._archives
        if not archives:
            return None
        archive, state = _picked(archives, number)
        count = self.filesystem.import_archive(archive)
        # permissions of directories are not everybody's
        _expect(tree_in(state_of(self.filesystem)), tree_in(state), "imported")
        return count

    def _hear(self, event: FilesystemEvent) -> None:
        # a snapshot and an archive have different names on both sides
        self.events.append(
            StateReplaced(event.reason, "") if isinstance(event, StateReplaced) else event
        )


def comparable(value: object) -> object:
    """Return a result without what may differ: the one place that says what that is.

    - Times and permissions of a stat: clocks and the umask of the process differ. So a
      preview is compared without what changes permissions only.
    - Everything else must be equal. `delete` of the root is dealt with in `Side`.
    """
    if isinstance(value, FileStat):
        return value.path, value.kind, value.size_bytes, value.link_target, value.content_hash
    if isinstance(value, Diff):
        changes = [each for each in value.entries if each.kind != "mode-changed"]
        return tuple((each.kind, each.path, each.source) for each in changes)
    if isinstance(value, Results):
        found: Results[object] = value  # pyright: ignore[reportUnknownVariableType] # of whatever
        return tuple(found), found.truncated
    return value


def missing_operations(fs: Filesystem) -> frozenset[str]:
    """Return the operations beyond the protocol that `fs` does not have."""
    missing = {name for name, method in _BEYOND_THE_PROTOCOL.items() if not hasattr(fs, method)}
    restore = getattr(fs, "restore", None)
    if restore is None or "paths" not in inspect.signature(restore).parameters:
        missing.add("restore_paths")
    return frozenset(missing)


def _picked(kept: Sequence[Any], number: int) -> Any:
    """Return one of those that were kept; 0 is the last one."""
    return kept[-1 - number % len(kept)]


def _expect(found: dict[str, Any], wanted: dict[str, Any], how: str) -> None:
    if found != wanted:
        paths = sorted(path for path in {**found, **wanted} if found.get(path) != wanted.get(path))
        raise AssertionError(f"The {how} state is not what was kept, at {paths}")


def _can_be_named(key: str) -> bool:
    """Return whether an ordinary disk could hold the last segment of `key`."""
    name = key.rpartition("/")[2]
    with suppress(UnicodeEncodeError):
        return len(name.encode()) <= 255 and not name.startswith(".wink-tmp-")
    return False


def _is_root(path: str) -> bool:
    with suppress(WinkError):
        return normalize_path(path) == ""
    return False
