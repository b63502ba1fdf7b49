"""Tree comparison: the changes between two states of a workspace.

A state is anything readable: a live filesystem, a snapshot, an archive. Both trees are walked in
parallel, one directory at a time. A file is read only if the sizes are equal and git's object id
is not known on both sides.
"""

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from weakincentives.filesystem.base import ReadableFilesystem
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.diff.changes import (
    Change,
    ChangeKind,
    GitSection,
    Side,
    same_bytes,
    sections_of,
)
from weakincentives.filesystem.diff.myers import changed_blocks, split_lines
from weakincentives.filesystem.diff.patch import Omission, Patch, Style
from weakincentives.filesystem.diff.renames import detect_renames
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.protocol import Filesystem, Viewable
from weakincentives.filesystem.types import FileStat, FilesystemSnapshot, Results
from weakincentives.posix import check_time, display_path, join, os_error, parents_of, shorten_path

_MAX_SHOWN = 50  # changes in a summary


@dataclass(frozen=True, slots=True)
class LineCount:
    """The lines that a change adds and removes; none are counted in a binary file."""

    insertions: int = 0
    deletions: int = 0
    is_binary: bool = False

    def __str__(self) -> str:
        """Return the numbers."""
        return "binary" if self.is_binary else f"+{self.insertions}, -{self.deletions}"


@dataclass(frozen=True, slots=True)
class DiffStatistics:
    """Totals of a diff; links count as files, directories do not."""

    files_changed: int
    insertions: int
    deletions: int
    binary_files: int
    files_added: int = 0
    files_removed: int = 0
    files_renamed: int = 0

    def __str__(self) -> str:
        """Return the numbers in the format of git."""
        kinds = {
            "added": self.files_added,
            "removed": self.files_removed,
            "renamed": self.files_renamed,
        }
        detail = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
        parts = [
            _format_count(self.files_changed, "file changed", "files changed")
            + (f" ({detail})" if detail else ""),
            _format_count(self.insertions, "insertion(+)", "insertions(+)"),
            _format_count(self.deletions, "deletion(-)", "deletions(-)"),
        ]
        if self.binary_files:
            parts.append(f"{self.binary_files} binary")
        return ", ".join(parts)


class Diff:
    """The changes that turn one state into another, sorted by path.

    Lines are read from the states on demand. If a state is a live directory and a file in it
    has changed since, StaleDiffError is raised.
    """

    def __init__(
        self, changes: Sequence[Change], before: Side, after: Side, ground: State | None = None
    ) -> None:
        """Hold the result of `diff`; a patch applies to `before`, or to `ground`, a larger tree."""
        self.entries: Results[Change] = Results(changes)
        self._before = before
        self._after = after
        self._ground = ground

    def only(self, wanted: Callable[[Change], bool]) -> "Diff":
        """Return a diff with only the wanted entries."""
        kept = [each for each in self.entries if wanted(each)]
        return Diff(kept, self._before, self._after, self._ground)

    def on(self, ground: ReadableFilesystem) -> "Diff":
        """Return the same diff for a tree that contains more than was compared."""
        return Diff(self.entries, self._before, self._after, State(ground))

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return bool(self.entries)

    @cached_property
    def line_counts(self) -> tuple[LineCount, ...]:
        """The line counts of each entry."""
        return tuple(map(self._count, self.entries))

    def texts(self, change: Change) -> tuple[bytes, bytes] | None:
        """Return both contents of a text file that was modified; None for anything else.

        A binary or very large file, a link, and what was added, removed or renamed have none.
        """
        if change.kind != "modified" or not all(side.is_file for side in change.sides):
            return None
        (section,) = sections_of(change)
        return section.texts(self._before, self._after)

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """What a git patch cannot express: paths that still differ after `git apply`, sorted."""
        return self._patch.omissions

    @property
    def statistics(self) -> DiffStatistics:
        """The totals."""
        counts = self.line_counts
        files = [each for each in self.entries if not each.is_directory]
        return DiffStatistics(
            files_changed=len(files),
            files_added=sum(each.before is None for each in files),
            files_removed=sum(each.after is None for each in files),
            files_renamed=sum(each.source is not None for each in files),
            insertions=sum(each.insertions for each in counts),
            deletions=sum(each.deletions for each in counts),
            binary_files=sum(each.is_binary for each in counts),
        )

    def patch(self, *, context: int = 3, max_characters: int | None = None, start: int = 0) -> str:
        """Return a unified patch as text, for `git apply`.

        Files that are not UTF-8 are encoded as binary, so that no byte is lost. What git
        cannot express is in lines that start with `# wink:`, which git skips.

        Args:
            context: Lines around a change; with 0 git needs `--unidiff-zero`.
            max_characters: Stop before the first change that does not fit; the last line then
                says how to continue.
            start: The index in `entries` to begin with.
        """
        if max_characters is not None:
            return self.patch_page(max_characters, context=context, start=start)[0]
        style = Style(_check_not_negative("context", context), utf8=True)
        return b"".join(self._parts(_check_not_negative("start", start), style)).decode()

    def patch_page(
        self, max_characters: int, *, context: int = 3, start: int = 0
    ) -> tuple[str, int | None]:
        """Return `patch` and the `start` that continues it; None if it is complete."""
        style = Style(_check_not_negative("context", context), utf8=True)
        first = _check_not_negative("start", start)
        return self._page(first, style, _check_not_negative("max_characters", max_characters))

    def patch_bytes(self, *, context: int = 3) -> bytes:
        """Return a unified patch in which text has the bytes of the files, in any encoding."""
        return b"".join(self.patch_chunks(context=context))

    def patch_chunks(self, *, context: int = 3) -> Iterator[bytes]:
        """Yield the patch in pieces, so that it need not fit into memory."""
        return self._parts(0, Style(_check_not_negative("context", context)))

    def __str__(self) -> str:
        """Return a summary: the changes and the totals; it names everything that was removed."""
        shown_entries = zip(self.entries[:_MAX_SHOWN], self.line_counts, strict=False)
        lines = [_summary(change, count) for change, count in shown_entries]
        more = len(self.entries) - len(lines)
        if more:
            lines += [f"... and {more} more", *_describe_removed(self.entries[_MAX_SHOWN:])]
        return "\n".join([*lines, str(self.statistics)])

    def __repr__(self) -> str:
        """Return the number of entries."""
        return f"<Diff of {len(self.entries)} entries>"

    @cached_property
    def _patch(self) -> Patch:
        return Patch(self.entries, self._before, self._after, self._ground)

    def _parts(self, start: int, style: Style) -> Iterator[bytes]:
        for number in range(start, len(self.entries)):
            check_time("Diff")
            yield from self._patch.part(number, style)

    def _page(self, start: int, style: Style, room: int) -> tuple[str, int | None]:
        """Return the parts that fit and a note about the rest, and where to continue."""
        fitting: list[str] = []
        for number in range(start, len(self.entries)):
            check_time("Diff")
            last = number + 1 == len(self.entries)
            note = "" if last else self._note(number + 1, start)
            part = _join_within(self._patch.part(number, style), room - len(note))
            if part is None:
                page = "".join(fitting) + self._note(number, start)[: max(room, 0)]
                return page, number + (number == start)
            fitting.append(part)
            room -= len(part)
        return "".join(fitting), None

    def _note(self, number: int, start: int) -> str:
        left = len(self.entries) - number
        name = display_path(shorten_path(self.entries[number].path))
        how = f"continue with start={number}, {name!r}"
        if number == start:
            how = f"{name!r} does not fit into max_characters, start={number + 1} skips it"
        return f"# wink: {left} of {len(self.entries)} changes are left out: {how}\n"

    def _count(self, change: Change) -> LineCount:
        check_time("Diff")
        counts = [self._count_section(section) for section in sections_of(change)]
        return LineCount(
            sum(each.insertions for each in counts),
            sum(each.deletions for each in counts),
            any(each.is_binary for each in counts),
        )

    def _count_section(self, section: GitSection) -> LineCount:
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
    """Return the changes from `before` to `after`, at and below one or several paths.

    Every file, link and directory that was added, removed or changed is an entry; the root
    itself, times and the permissions of links are not compared. With `renames`, a removed file
    and a similar added one become one entry. New directories above a `path` are entries too.

    Raises:
        FileNotFoundError: A `path` exists on neither side.
    """
    walk = _Walk(Side(before), Side(after))
    for place in outermost([path] if isinstance(path, str) else path):
        walk.run(place)
    changes = walk.changes
    if renames:
        changes = detect_renames(changes, walk.before, walk.after)
    changes.sort(key=lambda change: change.path)
    return Diff(changes, walk.before, walk.after)


def diff_since(
    filesystem: Filesystem, snapshot: FilesystemSnapshot, *, renames: bool = True
) -> Diff | None:
    """Return the changes since a snapshot of `filesystem`; None if it cannot be compared.

    It must be `Viewable`, and it and the view must derive from `ReadableFilesystem`.
    """
    if not isinstance(filesystem, ReadableFilesystem) or not isinstance(filesystem, Viewable):
        return None
    before = filesystem.view(snapshot)
    if not isinstance(before, ReadableFilesystem):
        return None
    changed = filesystem._changed_since(snapshot)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # for backends that know
    if changed is not None:
        with suppress(FileNotFoundError):  # removed again since: compare everything
            return diff(before, filesystem, path=changed, renames=renames)
    return diff(before, filesystem, renames=renames)


class _Walk:
    """A parallel walk of two trees; iterative, so depth is not limited."""

    def __init__(self, before: Side, after: Side) -> None:
        self.before = before
        self.after = after
        self.changes: list[Change] = []
        self._pending: list[tuple[str, bool, bool]] = []
        self._above: set[str] = set()

    def run(self, path: str) -> None:
        if path:
            found = self.after.lookup(path)
            for parent in parents_of(path) if found is not None else ():
                if parent not in self._above and self.before.lookup(parent) is None:
                    self._above.add(parent)
                    self.changes.append(Change(parent, "added", None, self.after.lookup(parent)))
            self._visit(path, self.before.lookup(path), found)
        else:
            self._pending.append(("", True, True))
        while self._pending:
            check_time("Diff")
            directory, was_directory, is_directory = self._pending.pop()
            self._enter(directory, was_directory=was_directory, is_directory=is_directory)

    def _enter(self, directory: str, *, was_directory: bool, is_directory: bool) -> None:
        """Compare the entries of a directory on one side or both."""
        if was_directory and is_directory and self.before.has_same_tree(directory, self.after):
            return
        old = self.before.children(directory) if was_directory else {}
        new = self.after.children(directory) if is_directory else {}
        for name in sorted(old.keys() | new.keys()):
            self._visit(join(directory, name), old.get(name), new.get(name))

    def _visit(self, path: str, old: FileStat | None, new: FileStat | None) -> None:
        if old is None and new is None:
            raise os_error(errno.ENOENT, path)
        was_directory, is_directory = bool(old and old.is_directory), bool(new and new.is_directory)
        if was_directory or is_directory:
            self._pending.append((path, was_directory, is_directory))
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
            return True  # removed since it was listed; reading it raises StaleDiffError


def _join_within(pieces: Iterator[bytes], room: int) -> str | None:
    """Join the pieces; return None if they are longer than `room` characters."""
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


def _describe_removed(changes: Sequence[Change]) -> Iterator[str]:
    """Yield what was removed; a directory stands for everything in it."""
    removed = [each for each in changes if each.after is None]
    inside = Counter(
        parent for each in removed if not each.is_directory for parent in parents_of(each.path)
    )
    named = {each.path for each in removed if each.is_directory}
    for each in removed:
        if named.isdisjoint(parents_of(each.path)):
            count = inside[each.path]
            below = f" with {_format_count(count, 'file', 'files')}" if count else ""
            yield f"{each}{below}"


def _format_count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _check_not_negative(what: str, number: int) -> int:
    if number < 0:
        raise ValueError(f"{what} must be non-negative: {number}")
    return number
