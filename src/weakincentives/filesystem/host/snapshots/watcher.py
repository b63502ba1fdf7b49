"""What confined commands changed, as reported by the kernel; a walk finds the rest.

Every directory has an inotify watch. A report is complete only if no file was changed under a
name that has no watch: see `ChangeWatcher.collect`. A file with several hard links has a
watch of its own, because the report of a change names only the link that was used.

Stores into a shared memory mapping are reported when the mapping ends, not before. A command that
has ended has no mappings; while one runs, nothing is known.
"""

import os
from collections.abc import Iterable

from weakincentives.posix import (
    Event,
    Inotify,
    Mask,
    RootedDirectory,
    is_hidden,
    join,
    reports_all_changes,
)

_MAX_WATCHES = 50_000  # each takes about a kilobyte of the kernel's memory
_CHANGES = Mask.MODIFY | Mask.ATTRIB | Mask.CLOSE_WRITE
_MOVES = Mask.MOVED_FROM | Mask.MOVED_TO
_IN_DIRECTORY = _CHANGES | _MOVES | Mask.CREATE | Mask.DELETE | Mask.ONLYDIR
# plain numbers: an event is tested against most of them
_LOST = int(Mask.OVERFLOW | Mask.UNMOUNT)
_IGNORED, _ISDIR = int(Mask.IGNORED), int(Mask.ISDIR)
_CREATE, _DELETE = int(Mask.CREATE), int(Mask.DELETE)
_MOVED_FROM, _MOVED_TO = int(Mask.MOVED_FROM), int(Mask.MOVED_TO)
_APPEARED, _DISAPPEARED = _CREATE | _MOVED_TO, _DELETE | _MOVED_FROM


class ChangeWatcher:
    """Watches the directories of one tree, as far as they were listed in walks."""

    def __init__(self, directory: RootedDirectory) -> None:
        """Start without watches.

        Raises:
            OSError: There is no inotify, or not for all changes below `directory`.
        """
        if directory.crosses_mounts or not reports_all_changes(directory.descriptor):
            raise OSError("Not every change on this file system is reported")
        self._inotify = Inotify()
        self._directories: dict[int, str] = {}
        self._links: dict[int, set[str]] = {}
        self._watch_of: dict[str, int] = {}  # the watches of `_links` by path
        self._unwatched: set[str] = set()  # directories that were not listed since they appeared
        self._new: set[str] = set()  # files that appeared in commands and were not captured yet
        self.new_links: int = 0
        """How many names of files with several links were found; see `watch_link`."""
        self.is_exhausted: bool = False
        """Whether something could not be watched, so that nothing is known any more."""

    @property
    def is_complete(self) -> bool:
        """Whether all directories are watched."""
        return bool(self._directories) and not self._unwatched

    @property
    def is_shared(self) -> bool:
        """Whether this process is a fork of the one that watches."""
        return self._inotify.is_shared

    def watch_directory(self, path: str, descriptor: int) -> None:
        """Watch an open directory; call it before the directory is listed."""
        watch = self._add(b"/proc/self/fd/%d" % descriptor, _IN_DIRECTORY)
        if watch is not None:
            self._directories[watch] = path  # if it was moved, this is its new path
            self._unwatched.discard(path)

    def watch_link(self, path: str, descriptor: int, name: str) -> None:
        """Watch a file with several hard links, found in an open directory.

        `new_links` counts it if the name is not known: a change by the other names may have been
        overlooked so far.
        """
        place = b"/proc/self/fd/%d/%s" % (descriptor, os.fsencode(name))
        watch = self._add(place, _CHANGES | Mask.DONT_FOLLOW)
        if watch is not None and path not in self._links.setdefault(watch, set()):
            self._links[watch].add(path)
            self._watch_of[path] = watch
            self.new_links += 1

    def begin_walk(self) -> None:
        """Note that all directories will be watched or skipped now."""
        self._unwatched.clear()
        self._links.clear()
        self._watch_of.clear()

    def skip_directory(self, path: str) -> None:
        """Note that a directory exists that is not watched."""
        self._unwatched.add(path)

    def forget_new(self, paths: Iterable[str] | None) -> None:
        """Note that the files at `paths`, or all, were captured, and links are watched."""
        if paths is None:
            self._new.clear()
        else:
            self._new.difference_update(paths)

    def collect(self, *, by_command: bool) -> set[str] | None:
        """Return the paths that were reported since the last call; None if some are missing.

        A directory among them stands for everything below it. After a command, the report is
        incomplete if a file may have been changed by a name that is gone: a hard link that
        appeared and disappeared, or that was in a directory without a watch. It cannot be told
        from a temporary file, so these count as well.
        """
        found: set[str] = set()
        moved: dict[int, bool] = {}
        complete = True
        for event in self._inotify.read():
            if event.mask & _LOST:
                complete = False
            elif event.mask & _IGNORED:
                complete = self._directories.pop(event.watch, None) != "" and complete
                self._links.pop(event.watch, None)
            elif event.watch in self._links:
                found |= self._links[event.watch]
            elif event.name and event.watch in self._directories:
                path = join(self._directories[event.watch], os.fsdecode(event.name))
                found.add(path)
                self._note_name(event, path)
                complete = (not by_command or self._follow(event, path, moved)) and complete
        return found if complete and not any(moved.values()) else None

    def close(self) -> None:
        """Remove all watches."""
        self._inotify.close()

    def _add(self, path: bytes, mask: Mask) -> int | None:
        if len(self._directories) + len(self._links) >= _MAX_WATCHES:
            self.is_exhausted = True
        if self.is_exhausted:
            return None
        try:
            return self._inotify.add(path, mask)
        except FileNotFoundError:
            return None  # removed since it was found, which is reported
        except OSError:
            self.is_exhausted = True
            return None

    def _note_name(self, event: Event, path: str) -> None:
        """Note that a name appeared or disappeared."""
        if not event.mask & (_APPEARED | _DISAPPEARED):
            return
        if not event.mask & _ISDIR:
            # from here on it may be a link to another file
            self._links.get(self._watch_of.pop(path, 0), set()).discard(path)
        elif event.mask & _APPEARED:
            self._unwatched.add(path)
        else:
            self._unwatched.discard(path)

    def _follow(self, event: Event, path: str, moved: dict[int, bool]) -> bool:
        """Follow a new file through renames; return False if one is gone before its capture.

        `moved` has the files under way, by the cookie of the rename, and whether they are new.
        """
        mask = event.mask
        if mask & _ISDIR:
            return not mask & (_APPEARED | _MOVED_FROM)
        if is_hidden(path):
            return False
        is_lost = path in self._new and bool(mask & (_APPEARED | _DELETE))
        if mask & _MOVED_FROM:
            moved[event.cookie] = path in self._new
            self._new.discard(path)
        elif mask & _CREATE or (mask & _MOVED_TO and moved.pop(event.cookie, True)):
            self._new.add(path)
        elif mask & _DELETE:
            self._new.discard(path)
        return not is_lost
