"""What changed between two states of a workspace.

A state is anything that can be read: a live filesystem, a snapshot, an archive. Both
are walked side by side, one directory at a time. A file is read only if its size is
the same on both sides and git's id of it is not known on both.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.diff.changes import Change, ChangeKind, Side, same_bytes
from weakincentives.filesystem.diff.myers import changed_blocks, split_lines
from weakincentives.filesystem.diff.omissions import Omission
from weakincentives.filesystem.diff.patch import Patch, Style
from weakincentives.filesystem.diff.renames import with_renames
from weakincentives.filesystem.diff.sections import Section, sections_of
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.protocol import Filesystem, Viewable
from weakincentives.filesystem.state import State
from weakincentives.filesystem.types import FileStat, FilesystemSnapshot, Results
from weakincentives.posix import check_time, display_path, join, os_error, parents_of, shorten_path

_MAX_SHOWN = 50  # changes in a summary


@dataclass(frozen=True, slots=True)
class LineCount:
    """How many lines a change adds and takes away; none are counted in a binary file."""

    insertions: int = 0
    deletions: int = 0
    is_binary: bool = False

    def __str__(self) -> str:
        """Return the numbers."""
        return "binary" if self.is_binary else f"+{self.insertions}, -{self.deletions}"


@dataclass(frozen=True, slots=True)
class DiffStatistics:
    """How much changed in all; directories do not count as files, links do."""

    files_changed: int
    insertions: int
    deletions: int
    binary_files: int

    def __str__(self) -> str:
        """Return the numbers as git puts them."""
        parts = [
            _counted(self.files_changed, "file changed", "files changed"),
            _counted(self.insertions, "insertion(+)", "insertions(+)"),
            _counted(self.deletions, "deletion(-)", "deletions(-)"),
        ]
        if self.binary_files:
            parts.append(f"{self.binary_files} binary")
        return ", ".join(parts)


class Diff:
    """The changes that turn one state into another, sorted by path.

    What is said about lines is read from the states when it is asked for. If one of
    them is a live directory, and a file in it has changed since, StaleDiffError says so.
    """

    def __init__(
        self, changes: Sequence[Change], before: Side, after: Side, ground: State | None = None
    ) -> None:
        """Hold what `diff` found; a patch is for `before`, or for `ground`, which has more."""
        self.entries: Results[Change] = Results(changes)
        self._before = before
        self._after = after
        self._ground = ground

    def only(self, wanted: Callable[[Change], bool]) -> "Diff":
        """Return the same without the entries that are not wanted."""
        kept = [each for each in self.entries if wanted(each)]
        return Diff(kept, self._before, self._after, self._ground)

    def on(self, ground: ReadableFilesystem) -> "Diff":
        """Return the same for a tree in which there is more than was compared."""
        return Diff(self.entries, self._before, self._after, State(ground))

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.entries)

    @cached_property
    def line_counts(self) -> tuple[LineCount, ...]:
        """How many lines each of the entries adds and takes away."""
        return tuple(map(self._count, self.entries))

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """What git cannot be told by a patch: these paths differ when it was applied; sorted."""
        return self._patch.omissions

    @property
    def statistics(self) -> DiffStatistics:
        """How much changed in all."""
        counts = self.line_counts
        return DiffStatistics(
            files_changed=sum(not each.is_directory for each in self.entries),
            insertions=sum(each.insertions for each in counts),
            deletions=sum(each.deletions for each in counts),
            binary_files=sum(each.is_binary for each in counts),
        )

    def patch(self, *, context: int = 3, max_characters: int | None = None, start: int = 0) -> str:
        """Return a unified patch as text, which `git apply` takes.

        Files that are not UTF-8 are in it as binary ones, so that no byte is lost. What
        git cannot say is in lines that start with `# wink:`, which it skips.

        Args:
            context: Lines around a change; with 0 git needs `--unidiff-zero`.
            max_characters: Stop before the first change that does not fit; the last line
                then says how to get the rest.
            start: The number of the change in `entries` to begin with.
        """
        style = Style(_not_negative("context", context), utf8=True)
        first = _not_negative("start", start)
        if max_characters is None:
            return b"".join(self._parts(first, style)).decode()
        return self._page(first, style, _not_negative("max_characters", max_characters))

    def patch_bytes(self, *, context: int = 3) -> bytes:
        """Return a unified patch in which the lines of text have the bytes of the files."""
        return b"".join(self.patch_chunks(context=context))

    def patch_chunks(self, *, context: int = 3) -> Iterator[bytes]:
        """Yield the patch in pieces; it is never in memory as a whole."""
        return self._parts(0, Style(_not_negative("context", context)))

    def __str__(self) -> str:
        """Return a summary: the changes, and how much changed in all."""
        shown_entries = zip(self.entries[:_MAX_SHOWN], self.line_counts, strict=False)
        lines = [_summary(change, count) for change, count in shown_entries]
        more = len(self.entries) - len(lines)
        if more:
            lines.append(f"... and {more} more")
        return "\n".join([*lines, str(self.statistics)])

    def __repr__(self) -> str:
        """Return how many entries there are."""
        return f"<Diff of {len(self.entries)} entries>"

    @cached_property
    def _patch(self) -> Patch:
        return Patch(self.entries, self._before, self._after, self._ground)

    def _parts(self, start: int, style: Style) -> Iterator[bytes]:
        for number in range(start, len(self.entries)):
            check_time("Diff")
            yield from self._patch.part(number, style)

    def _page(self, start: int, style: Style, room: int) -> str:
        """Return the parts that fit, and a line about those that do not."""
        fitting: list[str] = []
        for number in range(start, len(self.entries)):
            check_time("Diff")
            last = number + 1 == len(self.entries)
            note = "" if last else self._note(number + 1, start)
            part = _bounded(self._patch.part(number, style), room - len(note))
            if part is None:
                return "".join(fitting) + self._note(number, start)[: max(room, 0)]
            fitting.append(part)
            room -= len(part)
        return "".join(fitting)

    def _note(self, number: int, start: int) -> str:
        left = len(self.entries) - number
        name = display_path(shorten_path(self.entries[number].path))
        how = f"start={number} goes on with {name!r}"
        if number == start:
            how = f"{name!r} needs more than max_characters, start={number + 1} skips it"
        return f"# wink: {left} of {len(self.entries)} changes are left out: {how}\n"

    def _count(self, change: Change) -> LineCount:
        check_time("Diff")
        counts = [self._count_section(section) for section in sections_of(change)]
        return LineCount(
            sum(each.insertions for each in counts),
            sum(each.deletions for each in counts),
            any(each.is_binary for each in counts),
        )

    def _count_section(self, section: Section) -> LineCount:
        if section.same_content:
            return LineCount()
        texts = section.texts(self._before, self._after)
        if texts is None:
            return LineCount(is_binary=True)
        blocks = changed_blocks(*map(split_lines, texts))
        return LineCount(
            sum(each.new_stop - each.new_start for each in blocks),
            sum(each.stop - each.start for each in blocks),
        )


def diff(
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    *,
    path: str | Sequence[str] = ".",
    renames: bool = True,
) -> Diff:
    """Return what changed from `before` to `after`, at and below `path`, one or several.

    Every file, link and directory that was added, removed or changed is an entry; the
    root itself, times and the permissions of links are not compared. With `renames`, a
    file that was removed and one like it that was added are one entry. Directories above
    a `path` that are new are entries too.

    Raises:
        FileNotFoundError: Nothing is at a `path` on either side.
    """
    walk = _Walk(Side(before), Side(after))
    for place in outermost([path] if isinstance(path, str) else path):
        walk.run(place)
    changes = walk.changes
    if renames:
        changes = with_renames(changes, walk.before, walk.after)
    changes.sort(key=lambda change: change.path)
    return Diff(changes, walk.before, walk.after)


def diff_since(
    filesystem: Filesystem, snapshot: FilesystemSnapshot, *, renames: bool = True
) -> Diff | None:
    """Return what changed since a snapshot of `filesystem`; None if it cannot be compared.

    The filesystem must have a `view` of its snapshots, and both must be of our base classes.
    """
    if not isinstance(filesystem, ReadableFilesystem) or not isinstance(filesystem, Viewable):
        return None
    before = filesystem.view(snapshot)
    if not isinstance(before, ReadableFilesystem):
        return None
    return diff(before, filesystem, renames=renames)


class _Walk:
    """Two trees walked side by side; a stack, not recursion, so depth costs nothing."""

    def __init__(self, before: Side, after: Side) -> None:
        self.before = before
        self.after = after
        self.changes: list[Change] = []
        self._pending: list[tuple[str, bool, bool]] = []
        self._above: set[str] = set()

    def run(self, path: str) -> None:
        if path:
            found = self.after.lookup(path)
            if found is not None:
                self._add_parents(path)
            self._visit(path, self.before.lookup(path), found)
        else:
            self._pending.append(("", True, True))
        while self._pending:
            check_time("Diff")
            self._enter(*self._pending.pop())

    def _add_parents(self, path: str) -> None:
        for parent in parents_of(path):
            if parent not in self._above and self.before.lookup(parent) is None:
                self._above.add(parent)
                self.changes.append(Change(parent, "added", None, self.after.lookup(parent)))

    def _enter(self, directory: str, was: bool, still_is: bool) -> None:
        """Compare what is in a directory of one side or both."""
        old = self.before.children(directory) if was else {}
        new = self.after.children(directory) if still_is else {}
        for name in sorted(old.keys() | new.keys()):
            self._visit(join(directory, name), old.get(name), new.get(name))

    def _visit(self, path: str, old: FileStat | None, new: FileStat | None) -> None:
        if old is None and new is None:
            raise os_error(errno.ENOENT, path)
        was, still_is = bool(old and old.is_directory), bool(new and new.is_directory)
        if was or still_is:
            self._pending.append((path, was, still_is))
        kind = self._kind(old, new)
        if kind is not None:
            self.changes.append(Change(path, kind, old, new))

    def _kind(self, old: FileStat | None, new: FileStat | None) -> ChangeKind | None:
        if old is None:
            return "added"
        if new is None:
            return "removed"
        if old.kind != new.kind or self._is_modified(old, new):
            return "modified"
        if old.permissions != new.permissions and not old.is_symlink:
            return "mode-changed"
        return None

    def _is_modified(self, old: FileStat, new: FileStat) -> bool:
        if old.link_target != new.link_target or old.size_bytes != new.size_bytes:
            return True
        if not old.is_file or not old.size_bytes:
            return False
        known = self.before.known_id(old), self.after.known_id(new)
        if None not in known:
            return known[0] != known[1]
        try:
            with self.before.open(old.path) as first, self.after.open(new.path) as second:
                return not same_bytes(first, second)
        except FileNotFoundError:
            return True  # gone since it was listed; whoever reads it is told


def _bounded(pieces: Iterator[bytes], room: int) -> str | None:
    """Return the pieces joined, or None if they are longer than `room` characters."""
    kept: list[str] = []
    for piece in pieces:
        kept.append(piece.decode())
        room -= len(kept[-1])
        if room < 0:
            return None
    return "".join(kept)


def _summary(change: Change, count: LineCount) -> str:
    if change.is_directory or change.kind == "mode-changed" or change.similarity == 100:
        return str(change)
    return f"{change} ({count})"


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _not_negative(what: str, number: int) -> int:
    if number < 0:
        raise ValueError(f"{what} must be non-negative: {number}")
    return number
