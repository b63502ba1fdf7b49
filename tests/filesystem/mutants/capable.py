"""Backends that are wrong beyond the protocol: events, links, quotas, threads."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import (
    MEMORY_LIMITS,
    Content,
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    FileEntry,
    FilesystemEvent,
    FileWritten,
    GlobMatch,
    HostFilesystem,
    Limits,
    Listener,
    ReadBytesResult,
    Results,
    WriteMode,
    WriteResult,
)


class DropsEvents(Memory):
    """Emits events for files only."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        def some(event: FilesystemEvent) -> None:
            if not isinstance(event, DirectoryCreated):
                listener(event)

        return super().subscribe(some)


class Unobservable(Memory):
    """Has no `subscribe`."""

    subscribe = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] # its defect


class NeverUnsubscribes(Memory):
    """Ignores an unsubscription."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        super().subscribe(listener)
        return lambda: None


class ReportsEveryDeletion(Memory):
    """Emits one event per file of a deleted directory."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        for match in self.glob("**", path=path) if recursive else ():
            super().delete(match.path)
        super().delete(path, recursive=recursive)


class ReportsNoHashes(Memory):
    """Emits events without hashes."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        def bare(event: FilesystemEvent) -> None:
            if isinstance(event, FileWritten):
                event = FileWritten(event.path, event.bytes_written)
            listener(event)

        return super().subscribe(bare)


class ReportsDeletionsPlainly(Memory):
    """Emits deletions without the hash of the file."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        def bare(event: FilesystemEvent) -> None:
            listener(FileDeleted(event.path) if isinstance(event, FileDeleted) else event)

        return super().subscribe(bare)


class ReportsTheLastFirst(Memory):
    """Calls listeners in reverse order."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        done = super().subscribe(listener)
        self._listeners._entries = self._listeners._entries[::-1]
        return done


class ReportsEachListenerOnce(Memory):
    """Merges two subscriptions of one listener."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        if any(known == listener for (known,) in self._listeners._entries):
            return lambda: None
        return super().subscribe(listener)


class MovesByName(Memory):
    """Moves a file and forgets what is below a directory."""

    def _move(self, source: str, destination: str) -> None:
        found = self._lookup(source)
        if found is not None and found.is_directory:
            self._make_directory(destination)
            self._remove(source)
        else:
            super()._move(source, destination)


class SharesCopies(Memory):
    """Copies a directory by reference: both change together."""

    def _copy(self, source: str, destination: str) -> None:
        node = self._find(source)
        self._place_node(destination, node, 0)


class ReportsMoveAsCopy(Memory):
    """Emits a move as a deletion and a creation."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        def plain(event: FilesystemEvent) -> None:
            if isinstance(event, EntryMoved):
                listener(FileDeleted(event.source))
                event = FileWritten(event.path, 0)
            listener(event)

        return super().subscribe(plain)


class FollowsLinks(Memory):
    """Reads through links."""

    def _open(self, path: str) -> Content:
        found = self._lookup(path)
        if found is not None and found.link_target is not None:
            target = self._lookup(found.link_target)
            if target is not None and target.is_file:
                return super()._open(found.link_target)
        return super()._open(path)


class DeletesTargets(Memory):
    """Deletes what a link points to."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        found = self.stat(path) if self.exists(path) else None
        if found is not None and found.link_target and self.exists(found.link_target):
            super().delete(found.link_target, recursive=True)
        super().delete(path, recursive=recursive)


class HidesLinks(Memory):
    """Does not list links."""

    def list(self, path: str = ".") -> Results[FileEntry]:
        return Results(entry for entry in super().list(path) if not entry.is_symlink)


class NoQuota(Memory):
    """Grows without end."""

    def __init__(self, *, read_only: bool = False, limits: Limits = MEMORY_LIMITS) -> None:
        super().__init__(
            read_only=read_only, limits=replace(limits, max_total_bytes=None, max_files=None)
        )


class LeakyQuota(Memory):
    """Counts what was ever written."""

    def __init__(self, *, read_only: bool = False, limits: Limits = MEMORY_LIMITS) -> None:
        super().__init__(read_only=read_only, limits=limits)
        self.ever = 0

    def _remove(self, path: str) -> None:
        self.ever += self._usage()[0]
        super()._remove(path)

    def _usage(self) -> tuple[int, int]:
        size, count = super()._usage()
        return size + getattr(self, "ever", 0), count


class SilentReadOnly(Memory):
    """Ignores writes in silence when it is read-only."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        if self.read_only:
            return WriteResult(path, len(content), "overwrite")
        return super().write(path, content, **how)


class WritableReadOnly(Memory):
    """Deletes files while read-only."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        frozen, self._read_only = self._read_only, False
        super().delete(path, recursive=recursive)
        self._read_only = frozen


class TornRead(Memory):
    """Writes a file in two halves."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        half = len(content) // 2
        first = super().write(path, content[:half], **how)
        time.sleep(0.0005)  # another thread gets its chance, as a slow disk would give it
        rest = super().write(path, content[half:], mode="append")
        return replace(first, bytes_written=first.bytes_written + rest.bytes_written)


class LosesAppends(Memory):
    """Reads, waits and writes back without a lock."""

    def _write_content(
        self, path: str, data: bytes, mode: WriteMode, *, create_parents: bool
    ) -> WriteResult:
        if mode == "append" and self.exists(path):
            old = self.read_bytes(path).content
            time.sleep(0)
            super()._write_content(path, old + data, "overwrite", create_parents=create_parents)
            return WriteResult(path, len(data), mode)
        return super()._write_content(path, data, mode, create_parents=create_parents)


class MovesInSteps(Memory):
    """Moves a directory entry by entry, visible to readers."""

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        self.mkdir(destination)
        for entry in self.list(source):
            super().move(entry.path, f"{destination}/{entry.name}", overwrite=overwrite)
            time.sleep(0.0005)  # as above
        self.delete(source, recursive=True)


class OpensPipes(HostFilesystem):
    """Opens whatever is there."""

    def read_bytes(self, path: str, **page: Any) -> ReadBytesResult:
        if self.stat(path).kind == "special":
            descriptor = os.open(Path(self.root, path), os.O_RDONLY | os.O_NONBLOCK)
            os.close(descriptor)
            return ReadBytesResult(b"", path, 0, 0, -1, False)
        return super().read_bytes(path, **page)


class KeepsPipes(HostFilesystem):
    """Finds pipes and cannot remove them."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        found = super().glob(pattern, **where)
        pipes = (GlobMatch(each.path, False) for each in self.list() if each.kind == "special")
        return Results([*found, *pipes])

    def delete(self, path: str, *, recursive: bool = False) -> None:
        if self.stat(path).kind != "special":
            super().delete(path, recursive=recursive)


class CallsPipesFiles(HostFilesystem):
    """Thinks that everything is a file."""

    def list(self, path: str = ".") -> Results[FileEntry]:
        found = super().list(path)
        return Results(
            replace(entry, is_file=True) if entry.kind == "special" else entry for entry in found
        )
