"""Reading what a plan found: never more than was measured, and a note of what has changed."""

import codecs
import os
from collections.abc import Generator, Iterable, Iterator
from itertools import groupby

from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.mounts.plan import MountedFile, MountPlan
from weakincentives.filesystem.mounts.report import Meter, MountReport
from weakincentives.filesystem.mounts.roots import Root
from weakincentives.filesystem.paths import parent_of
from weakincentives.filesystem.primitives import is_passed_over
from weakincentives.filesystem.rooted import explained, read_range

_CHUNK = 16 * 1024 * 1024
_BINARY_PREFIX = 8 * 1024


class MountCopy:
    """The files of one plan, read one after the other; what came of it is in the report."""

    def __init__(self, plan: MountPlan) -> None:
        """Start with nothing read."""
        self.plan = plan
        self._paths: list[str] = []
        self._changed: list[str] = []
        self._size = 0
        self._binary = 0

    def contents(
        self, files: Iterable[MountedFile], meter: Meter
    ) -> Generator[tuple[MountedFile, Iterable[bytes]], None, None]:
        """Yield each file with its bytes, in one piece or in several if it is large.

        A file that cannot be reached any more is skipped.
        """
        for (root, folder), group in groupby(files, key=_folder):
            try:
                directory = root.directory.open_directory(folder)
            except OSError as error:
                for file in group:
                    self._skip(file, error, meter)
                continue
            try:
                yield from self._listed(directory, group, meter)
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

    def _listed(
        self, directory: int, files: Iterable[MountedFile], meter: Meter
    ) -> Iterator[tuple[MountedFile, Iterable[bytes]]]:
        for file in files:
            check_time("Mount")
            name = file.source.rpartition("/")[2]
            try:
                descriptor, _ = file.root.directory.open_listed(directory, name)
            except OSError as error:
                self._skip(file, error, meter)
                continue
            try:
                yield file, self._pieces(descriptor, file, meter)
                self._finish(descriptor, file)
            finally:
                os.close(descriptor)

    def _pieces(self, descriptor: int, file: MountedFile, meter: Meter) -> Iterable[bytes]:
        pieces = self._read(descriptor, file, meter)
        return pieces if file.size > _CHUNK else (next(pieces),)

    def _read(self, descriptor: int, file: MountedFile, meter: Meter) -> Iterator[bytes]:
        for offset in range(0, file.size or 1, _CHUNK):
            check_time("Mount")
            try:
                data = read_range(descriptor, offset, min(_CHUNK, file.size - offset))
            except OSError as error:
                raise explained(error, file.below) from None
            if offset == 0 and _is_binary(data[:_BINARY_PREFIX]):
                self._binary += 1
            self._size += len(data)
            meter.add(0, len(data))
            yield data

    def _finish(self, descriptor: int, file: MountedFile) -> None:
        found = os.fstat(descriptor)
        self._paths.append(file.path)
        if (found.st_ino, found.st_mtime_ns) != file.version or found.st_size != file.size:
            self._changed.append(file.path)

    def _skip(self, file: MountedFile, error: OSError, meter: Meter) -> None:
        """Leave out a file that has gone meanwhile; if it is all that was named, refuse."""
        if file.path == self.plan.mount_path or not is_passed_over(error):
            raise explained(error, file.below) from None
        self.plan.skip(file.below, error.strerror or str(error))
        meter.add(1, file.size)


def _folder(file: MountedFile) -> tuple[Root, str]:
    return file.root, parent_of(file.source)


def _is_binary(head: bytes) -> bool:
    if b"\0" in head:
        return True
    if head.isascii():
        return False
    try:
        codecs.utf_8_decode(head, "strict", False)  # the last character may be cut
    except UnicodeDecodeError:
        return True
    return False
