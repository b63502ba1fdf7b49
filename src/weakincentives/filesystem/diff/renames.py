"""Rename detection: pairs removed files with added ones.

Files with the same bytes are paired first, then text files that are at least 50 % similar. The
second step compares every removed file with every added one, so it is bounded by the size of
files, their number and the total of compared lines.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weakincentives.filesystem.diff.changes import Change, Side, mode_of
from weakincentives.filesystem.diff.myers import split_lines
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import check_time

_MAX_SIZE = 256 * 1024  # bytes in a file that is compared for similarity
_MAX_FILES = 200  # removed and added files together
_MAX_LINES = 2_000_000  # lines in all comparisons
_MIN_SIMILARITY = 50  # percent of the larger file


class _Pair(NamedTuple):
    similarity: int
    source: str
    path: str


def detect_renames(changes: Sequence[Change], before: Side, after: Side) -> list[Change]:
    """Return `changes` with matching removals and additions merged into renames."""
    removed = [each.before for each in changes if each.kind == "removed" and each.before]
    added = [each.after for each in changes if each.kind == "added" and each.after]
    finder = _Pairing(before, after, _by_path(removed), _by_path(added))
    renamed = {pair.path: pair for pair in finder.pairs()}
    gone = {pair.source for pair in renamed.values()}
    stats = {found.path: found for found in removed}
    kept: list[Change] = []
    for each in changes:
        pair = renamed.get(each.path) if each.kind == "added" else None
        if pair is not None:
            old = stats[pair.source]
            kept.append(Change(each.path, "renamed", old, each.after, pair.similarity))
        elif each.kind != "removed" or each.path not in gone:
            kept.append(each)
    return kept


def find_moves(changes: Sequence[Change], before: Side, after: Side) -> dict[str, str]:
    """Return the new paths of files that moved over other files, as when two are swapped.

    The executable bit is ignored. A file that stays in place is not a move, even if its old
    content is elsewhere now, unless another file has moved to its path.
    """
    other = [each for each in changes if each.kind != "mode-changed"]
    old = [each.before for each in other if each.before is not None and mode_of(each.before)]
    new = [each.after for each in other if each.after is not None and mode_of(each.after)]
    finder = _Pairing(before, after, _by_path(old), _by_path(new), _kind_of)
    found = {pair.source: pair.path for pair in finder.pairs() if pair.source != pair.path}
    staying = {each.path for each in changes if each.after is not None and each.after.is_file}
    while idle := (found.keys() & staying) - set(found.values()):
        for path in idle:
            del found[path]
    return found


@dataclass(slots=True)
class _Pairing:
    """The files that are not paired yet; pairing removes both."""

    before: Side
    after: Side
    removed: dict[str, FileStat]
    added: dict[str, FileStat]
    mode: Callable[[FileStat], int | None] = mode_of
    """The mode that two files must have in common."""

    def pairs(self) -> Iterator[_Pair]:
        yield from self._exact()
        if self.removed and self.added:
            yield from self._similar()

    def _exact(self) -> Iterator[_Pair]:
        """Pair files with the same bytes: equal names first, then in order."""
        sizes = {self._shape(found) for found in self.removed.values()}
        sizes &= {self._shape(found) for found in self.added.values()}
        sources = self._by_content(self.before, self.removed, sizes)
        targets = self._by_content(self.after, self.added, sizes)
        for key, paths in targets.items():
            for pair in _by_name(sources.get(key, []), paths):
                yield self._take(pair)

    def _similar(self) -> Iterator[_Pair]:
        """Pair text files that share lines, the most similar first."""
        old = _lines_of(self.before, self.removed)
        new = _lines_of(self.after, self.added)
        if len(old) + len(new) > _MAX_FILES:
            return
        found: list[_Pair] = []
        work = _MAX_LINES
        for source, path in self._candidates(old, new):
            check_time("Diff")
            work -= min(len(old[source]), len(new[path]))
            if work < 0:
                break
            sizes = self.removed[source].size_bytes, self.added[path].size_bytes
            percent = min(99, 100 * _common(old[source], new[path]) // max(sizes))
            if percent >= _MIN_SIMILARITY:
                found.append(_Pair(percent, source, path))
        for pair in sorted(found, key=_preference):
            if pair.source in self.removed and pair.path in self.added:
                yield self._take(pair)

    def _candidates(
        self, old: "dict[str, Counter[bytes]]", new: "dict[str, Counter[bytes]]"
    ) -> list[tuple[str, str]]:
        """Return the pairs to compare: equal names and similar sizes first."""
        ranked: list[tuple[bool, int, str, str]] = []
        for source in old:
            first = self.removed[source]
            for path in new:
                second = self.added[path]
                small, large = sorted((first.size_bytes, second.size_bytes))
                if 100 * small >= _MIN_SIMILARITY * large and self.mode(first) == self.mode(second):
                    other_name = _name(source) != _name(path)
                    ranked.append((other_name, large - small, source, path))
        return [(source, path) for _, _, source, path in sorted(ranked)]

    def _shape(self, found: FileStat) -> tuple[int | None, int | str]:
        return self.mode(found), found.link_target or found.size_bytes

    def _by_content(
        self, state: Side, files: dict[str, FileStat], shapes: set[tuple[int | None, int | str]]
    ) -> dict[tuple[int | None, str], list[str]]:
        """Return the sorted paths of files of certain shapes by mode and content."""
        found: defaultdict[tuple[int | None, str], list[str]] = defaultdict(list)
        for path, each in sorted(files.items()):
            if self._shape(each) in shapes:
                found[self.mode(each), state.blob_id(each)].append(path)
        return found

    def _take(self, pair: _Pair) -> _Pair:
        del self.removed[pair.source], self.added[pair.path]
        return pair


def _by_path(found: Sequence[FileStat]) -> dict[str, FileStat]:
    """Return the files that can be paired; empty files are all alike and are left out."""
    return {each.path: each for each in found if each.is_symlink or each.size_bytes}


def _kind_of(found: FileStat) -> int | None:
    """Return git's mode without the executable bits."""
    mode = mode_of(found)
    return mode if mode is None else mode & ~0o111


def _by_name(sources: list[str], paths: list[str]) -> Iterator[_Pair]:
    left: defaultdict[str, deque[str]] = defaultdict(deque)
    for source in sources:
        left[_name(source)].append(source)
    unpaired: list[str] = []
    for path in paths:
        if left[_name(path)]:
            yield _Pair(100, left[_name(path)].popleft(), path)
        else:
            unpaired.append(path)
    remaining = sorted(source for group in left.values() for source in group)
    for source, path in zip(remaining, unpaired, strict=False):
        yield _Pair(100, source, path)


def _lines_of(state: Side, files: dict[str, FileStat]) -> "dict[str, Counter[bytes]]":
    found: dict[str, Counter[bytes]] = {}
    for path, each in sorted(files.items()):
        if each.is_file and each.size_bytes <= _MAX_SIZE and len(found) <= _MAX_FILES:
            data = state.data(each)
            if b"\0" not in data:
                found[path] = Counter(split_lines(data))
    return found


def _common(first: "Counter[bytes]", second: "Counter[bytes]") -> int:
    """Return the number of bytes in common lines."""
    small, large = sorted((first, second), key=len)
    return sum(len(line) * min(count, large.get(line, 0)) for line, count in small.items())


def _preference(pair: _Pair) -> tuple[int, bool, str, str]:
    return -pair.similarity, _name(pair.source) != _name(pair.path), pair.source, pair.path


def _name(path: str) -> str:
    return path.rpartition("/")[2]
