"""The packs that are there: listed, trusted or not, and removed.

Another process may add and remove packs at any moment. One that is damaged is still
read, because most of it may be whole, but what is in it does not count as stored.
"""

import os
import re
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import is_temporary
from weakincentives.filesystem.staging import remove_leftovers
from weakincentives.filesystem.store.deltas import PackError
from weakincentives.filesystem.store.packs import Pack

_PACK_FILE = re.compile(r"(pack-[0-9a-f]{40})\.([a-z]+)")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ATTEMPTS = 10


class PackSet:
    """The packs in one directory, as they were when it was looked at last."""

    def __init__(self, directory: Path) -> None:
        """Know of none yet."""
        self._directory = directory
        self._refreshing = threading.Lock()
        self.all: dict[str, Pack] = {}
        self.trusted: tuple[Pack, ...] = ()
        self.damaged: dict[str, PackError] = {}
        """Those that cannot be opened, and why."""
        self.losses: int = 0
        """How often objects were found to be gone, or damaged, that had been here."""

    def knows(self, key: bytes) -> bool:
        """Return whether an object is in a pack that is undamaged."""
        packs = self.trusted
        return bool(packs) and any(pack.offset_of(key) is not None for pack in packs)

    def refresh(self, *, closely: bool = False) -> None:
        """Look for packs that have been added or removed; `closely` also for others' writing."""
        with self._refreshing:
            if closely:
                self.all = {n: p for n, p in self.all.items() if not p.has_changed()}
            self._relist(self._names())

    def sweep(self) -> None:
        """Remove what killed writers left, and look what is there."""
        with self._refreshing:
            names = self._names()
            self._sweep(names)
            self._relist(names)

    def distrust(self, pack: Pack) -> None:
        """Rely no more on a pack in which something was found to be damaged."""
        pack.distrust()
        with self._refreshing:
            self.trusted = tuple(each for each in self.trusted if each is not pack)
            self.losses += 1

    def remove(self, names: Collection[str]) -> None:
        """Remove packs, except those that a person wants to keep."""
        files = [match for match in map(_PACK_FILE.fullmatch, self._names()) if match]
        kept = {match[1] for match in files if match[2] == "keep"}
        # it would name packs that are gone; git does without
        (self._directory / "multi-pack-index").unlink(missing_ok=True)
        for name in set(names) - kept:
            # git and we read a pack only where both files are, and git never writes an
            # index before its pack: an index alone is known to be a leftover
            self._file(name, "pack").unlink(missing_ok=True)
            reached("objects.removed")
            for match in files:
                if match[1] == name:
                    (self._directory / match[0]).unlink(missing_ok=True)
        self.refresh()

    def close(self) -> None:
        """Let go of the packs; what is being read elsewhere stays readable."""
        with self._refreshing:
            self.all, self.trusted, self.damaged = {}, (), {}

    def _relist(self, names: dict[str, int]) -> None:
        for _ in range(_ATTEMPTS):
            if self._listed(names):
                return
            names = self._names()

    def _listed(self, names: dict[str, int]) -> bool:
        """Open the packs that are there; False if one has gone in the meantime."""
        packs: dict[str, Pack] = {}
        damaged: dict[str, PackError] = {}
        complete = True
        for name in sorted(n.removesuffix(".idx") for n in names if n.endswith(".idx")):
            inode = names.get(f"{name}.pack")
            if inode is None:
                continue
            known = self.all.get(name)
            try:
                # a damaged pack may have been replaced by a good one of the same name
                if known is None or known.inode != inode:
                    known = Pack(self._file(name, "idx"))
                packs[name] = known
            except FileNotFoundError:
                complete = False
            except PackError as error:
                damaged[name] = error
        before, self.all, self.damaged = self.trusted, packs, damaged
        self.trusted = tuple(pack for pack in packs.values() if not pack.is_suspect)
        vanished = [pack for pack in before if pack not in self.trusted]
        if complete and not all(
            self.knows(bytes.fromhex(each)) for pack in vanished for each in pack
        ):
            self.losses += 1
        return complete

    def _sweep(self, names: dict[str, int]) -> None:
        """Remove what killed writers left: hidden files, and parts of a pack without the pack."""
        hidden = list(filter(is_temporary, names))
        if hidden:
            directory = os.open(self._directory, _DIRECTORY)
            try:
                remove_leftovers(directory, hidden)
            finally:
                os.close(directory)
        for match in filter(None, map(_PACK_FILE.fullmatch, names)):
            if f"{match[1]}.pack" not in names and match[2] != "keep":
                (self._directory / match[0]).unlink(missing_ok=True)

    def _names(self) -> dict[str, int]:
        """Return the names in the directory of packs, with their inodes."""
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
        return {}

    def _file(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"
