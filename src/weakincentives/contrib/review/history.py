"""The applies of a working copy: what the original has accepted, and what can be undone.

Each apply is recorded before it begins and settled when it has committed, so that after a
crash the journal in the original decides which of them happened.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from weakincentives.contrib.review import records
from weakincentives.contrib.review.views import (
    FilteredFilesystem,
    LayeredFilesystem,
    ReplacedFilesystem,
    ReviewFilter,
)
from weakincentives.filesystem import FilesystemSnapshot, ReadableFilesystem
from weakincentives.filesystem.diff import Side
from weakincentives.history import ChangeRecord, Ending


class ApplyHistory:
    """The recorded applies of one working copy, oldest first."""

    def __init__(
        self,
        copy: records.WorkingCopy,
        view: Callable[[FilesystemSnapshot], ReadableFilesystem],
        review_filter: ReviewFilter,
    ) -> None:
        """Read the record of `copy`; `view` opens its snapshots."""
        self._copy = copy
        self._view = view
        self._filter = review_filter

    @property
    def entries(self) -> tuple[records.Application, ...]:
        """The applies as they are recorded now."""
        return records.read_record(self._copy.place).applied

    def state(self, count: int | None = None) -> ReadableFilesystem:
        """Return the copied state with what the first `count` applies, or all, changed."""
        layers: dict[str, Side] = {}
        for each in self.entries[:count]:
            if each.is_settled:
                side = Side(self._accepted_state(each))
                layers |= dict.fromkeys(each.accepted_paths, side)
        base = self._view(self._copy.base)
        return LayeredFilesystem(base, layers) if layers else base

    def _accepted_state(self, entry: records.Application) -> ReadableFilesystem:
        """Return the state that an apply brought, without bits that were withheld from it."""
        state = FilteredFilesystem(
            self._view(entry.after), lambda _: False, self._filter.strip_rights
        )
        return ReplacedFilesystem(state, entry.contents) if entry.contents else state

    def clean(self) -> None:
        """Drop what never happened or was undone; call it when no transaction is pending."""
        entries = self.entries
        kept = tuple(
            each for each in entries if each.is_settled and (each.paths or each.accepted_paths)
        )
        if kept != entries:
            self._write(kept)

    def begin(self, entry: records.Application) -> int:
        """Record an apply before it begins; return its number."""
        entries = self.entries
        self._write((*entries, entry))
        return len(entries)

    def end(self, record: ChangeRecord, ending: Ending) -> None:
        """Settle an apply, or drop one that was undone or rolled back; idempotent."""
        entries, number = list(self.entries), record.number
        if len(entries) <= number or (record.kind == "undo" and ending == "rolled back"):
            return
        if record.kind == "apply" and ending == "committed":
            entries[number] = replace(entries[number], is_settled=True)
        elif number == len(entries) - 1:
            del entries[number]
        else:  # only an undo; the numbers of later applies stay as they are until `clean`
            entries[number] = _select(entries[number], ())
        self._write(tuple(entries))

    @property
    def committed_count(self) -> int:
        """The number of applies up to the last one that was committed."""
        return max((at for at, each in enumerate(self.entries, start=1) if each.commit), default=0)

    def mark_committed(self, commit: str, staged: Mapping[str, records.IndexChange]) -> None:
        """Record the commit of all applies that had none, and what it changed in git's index."""
        count = self.committed_count
        entries = self.entries
        marked = (replace(each, commit=commit, staged=dict(staged)) for each in entries[count:])
        self._write((*entries[:count], *marked))

    def keep(self, number: int, paths: Collection[str]) -> None:
        """Forget an apply, except for these paths."""
        entries = list(self.entries)
        entries[number] = _select(entries[number], paths)
        self._write(tuple(entries))

    def split(self, number: int, paths: Collection[str]) -> int:
        """Divide an apply: first these paths, then the rest; return the number of the rest."""
        entries = list(self.entries)
        entry = entries[number]
        rest = {*entry.paths, *entry.accepted_paths} - set(paths)
        entries[number : number + 1] = [_select(entry, paths), _select(entry, rest)]
        self._write(tuple(entries))
        return number + 1

    def _write(self, entries: tuple[records.Application, ...]) -> None:
        record = records.read_record(self._copy.place)
        if record.applied != entries:
            records.write_record(self._copy.place, replace(record, applied=entries))


def _select(entry: records.Application, paths: Collection[str]) -> records.Application:
    """Return an apply with only these paths."""
    return replace(
        entry,
        paths=tuple(each for each in entry.paths if each in paths),
        accepted=tuple(each for each in entry.accepted_paths if each in paths),
    )
