"""Reading what a plan found: never more than was measured, and a note of what has changed."""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.mounts.plan import MountedFile, MountPlan
from weakincentives.filesystem.mounts.report import Meter, MountReport
from weakincentives.filesystem.primitives import is_passed_over
from weakincentives.filesystem.rooted import explained, read_range
from weakincentives.filesystem.text import is_binary

_CHUNK = 16 * 1024 * 1024


Store: TypeAlias = Callable[[MountedFile, bytes | Iterator[bytes]], None]
"""Keeps the bytes of a file, which come in several pieces if it is large."""


class MountCopy:
    """The files of one plan, copied one after the other; what came of it is in the report."""

    def __init__(self, plan: MountPlan) -> None:
        """Start with nothing copied."""
        self.plan = plan
        self._paths: list[str] = []
        self._changed: list[str] = []
        self._size = 0
        self._binary = 0

    def run(self, files: Iterable[MountedFile], store: Store, meter: Meter) -> None:
        """Hand each file to `store`; one that cannot be reached any more is skipped."""
        for (root, folder), group in groupby(files, key=attrgetter("root", "folder")):
            try:
                directory = root.directory.open_directory(folder)
            except OSError as error:
                for file in group:
                    self._skip(file, error, meter)
                continue
            try:
                for file in group:
                    check_time("Mount")
                    self._copy(directory, file, store, meter)
            finally:
                os.close(directory)

    def report(self) -> MountReport:
        """Return what the workspace got."""
        plan = self.plan
        return MountReport(
            mount_path=plan.mount_path or ".",
            file_count=len(self._paths),
            total_bytes=self._size,
            skipped=tuple(sorted(plan.skipped, key=lambda entry: entry.path)),
            filtered_count=plan.filtered_count,
            binary_count=self._binary,
            changed=tuple(self._changed),
            paths=tuple(self._paths),
            host_path=plan.host_path,
        )

    def _copy(self, directory: int, file: MountedFile, store: Store, meter: Meter) -> None:
        try:
            descriptor, found = file.root.directory.open_listed(directory, file.name)
        except OSError as error:
            self._skip(file, error, meter)
            return
        copied = self._size
        try:
            if file.size <= _CHUNK:
                store(file, self._piece(descriptor, file, 0))
            else:
                store(file, self._pieces(descriptor, file, meter))
                found = os.fstat(descriptor)  # reading took a while
        finally:
            os.close(descriptor)
        self._paths.append(file.path)
        if (
            found.st_mtime_ns != file.modified
            or found.st_size != file.size
            or self._size - copied != file.size
        ):
            self._changed.append(file.path)
        meter.add(1, min(file.size, _CHUNK))

    def _pieces(self, descriptor: int, file: MountedFile, meter: Meter) -> Iterator[bytes]:
        yield self._piece(descriptor, file, 0)
        for offset in range(_CHUNK, file.size, _CHUNK):
            check_time("Mount")
            yield self._piece(descriptor, file, offset)
            meter.add(0, min(_CHUNK, file.size - offset))

    def _piece(self, descriptor: int, file: MountedFile, offset: int) -> bytes:
        try:
            data = read_range(descriptor, offset, min(_CHUNK, file.size - offset))
        except OSError as error:
            raise explained(error, file.below) from None
        self._size += len(data)
        if offset == 0 and is_binary(data):
            self._binary += 1
        return data

    def _skip(self, file: MountedFile, error: OSError, meter: Meter) -> None:
        """Leave out a file that has gone meanwhile; if it is all that was named, refuse."""
        if file.path == self.plan.mount_path or not is_passed_over(error):
            raise explained(error, file.below) from None
        self.plan.skip(file.below, error.strerror or str(error))
        meter.add(1, file.size)
