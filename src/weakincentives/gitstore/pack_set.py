"""The packs in one directory."""

import os
import re
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from weakincentives.gitstore.pack_reader import Pack, PackError
from weakincentives.posix import fault_point, is_temporary, remove_leftovers

_PACK_FILE = re.compile(r"(pack-[0-9a-f]{40})\.([a-z]+)")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_ATTEMPTS = 10


class PackSet:
    """The packs in one directory, as of the last refresh."""

    def __init__(self, directory: Path) -> None:
        """Start empty."""
        self._directory = directory
        self._refreshing = threading.Lock()
        self._opened: dict[str, int] = {}  # the files as of the last time, with their inodes
        self.all: dict[str, Pack] = {}
        self.trusted: tuple[Pack, ...] = ()
        self.damaged: dict[str, PackError] = {}
        """Packs that cannot be opened, and why."""
        self.losses: int = 0
        """How many times objects that had been here were found missing or damaged."""

    def is_packed(self, key: bytes) -> bool:
        """Return whether an object is in an undamaged pack."""
        packs = self.trusted
        return bool(packs) and any(pack.offset_of(key) is not None for pack in packs)

    def has_all(self, keys: Iterable[bytes]) -> bool:
        """Return whether all objects are in undamaged packs."""
        missing = set(keys)
        for pack in self.trusted:
            missing.difference_update(pack.keys())
        return not missing

    def refresh(self, *, closely: bool = False) -> None:
        """Detect packs that were added or removed; with `closely` also modified ones."""
        with self._refreshing:
            if closely:
                unchanged = {n: p for n, p in self.all.items() if not p.has_changed()}
                if len(unchanged) < len(self.all):
                    self.all, self._opened = unchanged, {}
            self._reload(self._names())

    def sweep(self) -> None:
        """Remove leftovers of killed writers, and refresh."""
        with self._refreshing:
            names = self._names()
            self._remove_leftovers(names)
            self._reload(names)

    def mark_suspect(self, pack: Pack) -> None:
        """Mark a pack as damaged, so that nothing new relies on it."""
        pack.mark_suspect()
        with self._refreshing:
            self.trusted = tuple(each for each in self.trusted if each is not pack)
            self.losses += 1

    def remove(self, names: Collection[str]) -> None:
        """Remove packs, except those with a `.keep` file."""
        files = [match for match in map(_PACK_FILE.fullmatch, self._names()) if match]
        kept = {match[1] for match in files if match[2] == "keep"}
        # it would name packs that are gone; git works without it
        (self._directory / "multi-pack-index").unlink(missing_ok=True)
        for name in set(names) - kept:
            # a pack is read only if both files exist, and git never writes an index
            # before its pack: so an index alone is a leftover
            self._file(name, "pack").unlink(missing_ok=True)
            fault_point("objects.removed")
            for match in files:
                if match[1] == name:
                    (self._directory / match[0]).unlink(missing_ok=True)
        self.refresh()

    def close(self) -> None:
        """Release the packs; streams that are open stay readable."""
        with self._refreshing:
            self._opened, self.all, self.trusted, self.damaged = {}, {}, (), {}

    def _reload(self, names: dict[str, int]) -> None:
        for _ in range(_MAX_ATTEMPTS):
            if names == self._opened and not self.damaged:
                return
            if self._open_packs(names):
                self._opened = names
                return
            names = self._names()

    def _open_packs(self, names: dict[str, int]) -> bool:
        """Open the packs among `names`; False if one disappeared meanwhile."""
        packs: dict[str, Pack] = {}
        damaged: dict[str, PackError] = {}
        complete = True
        for name in sorted(n.removesuffix(".idx") for n in names if n.endswith(".idx")):
            inode = names.get(f"{name}.pack")
            if inode is None:
                continue
            known = self.all.get(name)
            try:
                # a damaged pack may have been replaced by a good one with the same name
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
            self.is_packed(bytes.fromhex(each)) for pack in vanished for each in pack
        ):
            self.losses += 1
        return complete

    def _remove_leftovers(self, names: dict[str, int]) -> None:
        """Remove temporary files of killed writers, and indexes without their pack."""
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
        """Return the names in the pack directory, with their inodes."""
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            return {entry.name: entry.inode() for entry in entries}
        return {}

    def _file(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"
