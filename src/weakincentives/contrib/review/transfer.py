"""Write the entries of a scan to a new directory, in two processes if they are many."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import groupby

from weakincentives.contrib.review.environments import Relocation
from weakincentives.contrib.review.scan import Scan
from weakincentives.filesystem import Content, FileStat, HostFilesystem
from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.host import CopyWorker, FileBatch, HostFile, TreeWriter
from weakincentives.filesystem.mounts import ProgressMeter
from weakincentives.posix import count_processors, parent_of

_MIN_FILES = 2_000  # that make it worthwhile to start a process
_MAX_BATCH = 100  # files that are copied at a time


def write_entries(writer: TreeWriter, scan: Scan, meter: ProgressMeter) -> None:
    """Write the scanned entries; note in `scan` what cannot be copied."""
    _Transfer(writer, scan, meter).run()


class _Transfer:
    """One copy: directories and links first, then files, a directory at a time."""

    def __init__(self, writer: TreeWriter, scan: Scan, meter: ProgressMeter) -> None:
        self._writer = writer
        self._scan = scan
        self._meter = meter
        self._relocation = Relocation(scan.root, scan.entries)
        self._stats: dict[str, FileStat] = {}  # of the files that the worker has
        self._worker: CopyWorker | None = None

    def run(self) -> None:
        files = [each for each in self._scan.entries if self._is_left(each)]
        with ExitStack() as stack:
            if len(files) >= _MIN_FILES and self._scan.host and count_processors() > 1:
                self._worker = stack.enter_context(CopyWorker())
            for directory, group in groupby(files, key=lambda each: parent_of(each.path)):
                self._write_directory(directory, list(group))
            if self._worker is not None:
                self._finish_batches(self._worker, wait=True)

    def _is_left(self, found: FileStat) -> bool:
        """Write an entry that is not a file; return whether it is one."""
        if found.is_file:
            return True
        if found.is_directory:
            self._writer.add_directory(found.path, found.permissions)
        elif found.link_target is not None:
            self._writer.add_link(found.path, self._relocation.link_target(found))
        self._meter.add(1, found.size_bytes)
        return False

    def _write_directory(self, directory: str, files: Sequence[FileStat]) -> None:
        """Write the files of one directory, which may be many."""
        host = self._scan.host
        source = None
        if host is not None and not self._relocation.rewrites_in(directory):
            source = _open_directory(host, directory)
        if source is None:
            self._write_contents(files)
            return
        try:
            for batch in _split(files):
                if not self._submit(directory, batch, source):
                    self._copy(directory, batch, source)
                if self._worker is not None:
                    self._finish_batches(self._worker)
        finally:
            os.close(source)

    def _submit(self, directory: str, files: Sequence[FileStat], source: int) -> bool:
        """Let the worker copy files, if it has time."""
        if self._worker is None or not self._worker.has_room:
            return False
        names = [each.path.rpartition("/")[2] for each in files]
        batch = FileBatch(directory, names)
        if not self._worker.submit(batch, source, self._writer.open_directory(directory)):
            return False
        self._stats |= {each.path: each for each in files}
        return True

    def _finish_batches(self, worker: CopyWorker, *, wait: bool = False) -> None:
        for batch in worker.receive(wait=wait):
            prefix = f"{batch.directory}/" if batch.directory else ""
            copied = self._writer.add_copied(batch)
            for name, is_copied in zip(batch.names, copied, strict=True):
                self._finish_file(self._stats.pop(prefix + name), is_copied=is_copied)

    def _copy(self, directory: str, files: Sequence[FileStat], source: int) -> None:
        names = (each.path.rpartition("/")[2] for each in files)
        copied = self._writer.copy_files(source, directory, names)
        for found, is_copied in zip(files, copied, strict=True):
            self._finish_file(found, is_copied=is_copied)

    def _finish_file(self, found: FileStat, *, is_copied: bool) -> None:
        if not is_copied:
            self._write_missed(found)
        self._meter.add(1, found.size_bytes)

    def _write_contents(self, files: Sequence[FileStat]) -> None:
        """Write the files of one directory, each as its content may be rewritten."""
        with closing(self._scan.source.contents(each.path for each in files)) as contents:
            opened = next(contents, None)
            for found in files:
                if opened is not None and opened[0] == found.path:
                    self._write(found, opened[1])
                    opened = next(contents, None)
                else:
                    self._write_missed(found)
                self._meter.add(1, found.size_bytes)

    def _write_missed(self, found: FileStat) -> None:
        """Write a file that could not be copied, unless it still cannot."""
        try:
            content = self._scan.source.open(found.path)
        except OSError as error:
            if not (is_skippable(error) or isinstance(error, IsADirectoryError)):
                raise
            self._scan.skip(found.path, error.strerror or str(error))
            return
        with content:
            self._write(found, content)

    def _write(self, found: FileStat, content: Content) -> None:
        modified = None
        if isinstance(content, HostFile):
            modified = content.modified_ns
        elif found.modified_at is not None:
            modified = int(found.modified_at.timestamp() * 1_000_000) * 1_000
        rewritten = self._relocation.rewrite(found, content)
        self._writer.add_file(found.path, rewritten, found.permissions, modified)


def _open_directory(host: HostFilesystem, path: str) -> int | None:
    try:
        return host.open_directory(path)
    except OSError:
        return None  # opening its files tells why


def _split(files: Sequence[FileStat]) -> Iterator[Sequence[FileStat]]:
    for start in range(0, len(files), _MAX_BATCH):
        yield files[start : start + _MAX_BATCH]
