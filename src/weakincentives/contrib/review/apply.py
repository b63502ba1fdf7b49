"""Apply and undo: the edits of a plan as one change of the original, and their record.

Each apply is recorded before it begins and settled when it has committed, so that after a
crash the journal in the original decides which of them happened.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from weakincentives.contrib.review.conflicts import Conflict, ConflictError, Plan, create_conflict
from weakincentives.contrib.review.records import (
    Application,
    IndexChange,
    WorkingCopy,
    read_record,
    write_record,
)
from weakincentives.contrib.review.views import LayeredFilesystem, ReviewFilter, Version
from weakincentives.filesystem import FilesystemSnapshot, ReadableFilesystem
from weakincentives.filesystem.diff import Side
from weakincentives.history import (
    Attributes,
    ChangeConflictError,
    ChangeRecord,
    ChangeRequest,
    Edit,
    Ending,
    Kept,
    Recovery,
    change,
)
from weakincentives.posix import parents_of


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an apply, an undo or a recovery."""

    paths: tuple[str, ...]
    """The paths that changed in the original, sorted."""
    merged: tuple[str, ...] = ()
    """The files in which both changes were merged."""
    kept_directories: tuple[str, ...] = ()
    """Directories that were not removed because they hold something outside the review."""
    kept: tuple[Kept, ...] = ()
    """Changes of others that were left alone, and where the other versions are."""
    created: tuple[str, ...] = ()
    """Those of the paths that did not exist before."""
    removed: tuple[str, ...] = ()
    """Those of the paths that do not exist any more."""
    directories: tuple[str, ...] = ()
    """Those of the paths that are, or were, directories."""

    def __str__(self) -> str:
        """Return the number of changed paths."""
        number = len(self.paths)
        return f"{number} path{'' if number == 1 else 's'} changed"


@dataclass(frozen=True, slots=True)
class CommitSource:
    """The changes that a git commit is made of."""

    before: ReadableFilesystem
    after: ReadableFilesystem
    paths: tuple[str, ...]
    has_pending: bool
    """Whether some of them were not applied yet."""


def summarize(plan: Plan) -> Applied:
    """Return the result of a plan that was carried out."""
    return Applied(
        paths=tuple(each.path for each in plan.edits),
        merged=tuple(each.path for each in plan.merges),
        kept_directories=tuple(plan.kept_directories),
        created=tuple(each.path for each in plan.edits if each.before.kind == "absent"),
        removed=tuple(each.path for each in plan.edits if each.after.kind == "absent"),
        directories=tuple(each.path for each in plan.edits if _has_directory(each)),
    )


def _has_directory(edit: Edit) -> bool:
    last = edit.before if edit.after.kind == "absent" else edit.after
    return last.kind == "directory"


def summarize_recoveries(recoveries: Sequence[Recovery]) -> Applied:
    """Return the result of recoveries."""
    return Applied(
        paths=tuple(sorted({path for each in recoveries for path in each.paths})),
        kept=tuple(kept for each in recoveries for kept in each.kept),
    )


def describe_left(conflicts: Sequence[Conflict]) -> list[Kept]:
    """Return what an undo leaves alone; not the directories above it, which it keeps as well."""
    above = {parent for each in conflicts for parent in parents_of(each.path)}
    return [
        Kept(
            each.path,
            f"was left as it is: {each.in_original} after the apply",
            can_merge=each.can_merge,
        )
        for each in conflicts
        if each.path not in above
    ]


class ApplyHistory:
    """The recorded applies of one working copy, oldest first."""

    def __init__(
        self,
        copy: WorkingCopy,
        view: Callable[[FilesystemSnapshot], ReadableFilesystem],
        review_filter: ReviewFilter,
    ) -> None:
        """Read the record of `copy`; `view` opens its snapshots."""
        self._copy = copy
        self._view = view
        self._filter = review_filter

    @property
    def entries(self) -> tuple[Application, ...]:
        """The applies as they are recorded now."""
        return read_record(self._copy.place).applied

    def state(self, count: int | None = None) -> ReadableFilesystem:
        """Return the copied state with what the first `count` applies, or all, changed."""
        layers: dict[str, Side | Version] = {}
        for each in self.entries[:count]:
            if each.is_settled:
                # without bits that were withheld from it
                accepted = LayeredFilesystem(
                    self._view(each.after), transform=self._filter.strip_rights
                )
                side = Side(accepted)
                layers |= {path: each.contents.get(path, side) for path in each.accepted}
        base = self._view(self._copy.base)
        return LayeredFilesystem(base, layers) if layers else base

    def clean(self) -> None:
        """Drop what never happened or was undone; call it when no transaction is pending."""
        entries = self.entries
        kept = tuple(each for each in entries if each.is_settled and (each.paths or each.accepted))
        if kept != entries:
            self._write(kept)

    def begin(self, entry: Application) -> int:
        """Record an apply before it begins; return its number."""
        entries = self.entries
        self._write((*entries, entry))
        return len(entries)

    def carry_out(
        self,
        plan: Plan,
        number: int,
        attributes: Attributes,
        *,
        kind: Literal["apply", "undo"] = "apply",
    ) -> Applied:
        """Execute all edits of a plan or none, for the apply `number` or for its undo.

        A ConflictError says that a path changed meanwhile; then everything was rolled back except
        for concurrent saves.
        """
        request = ChangeRequest(
            plan.edits,
            Side(plan.change_set.after).open,
            kind=kind,
            place=str(self._copy.place),
            number=number,
            attributes=attributes,
        )
        try:
            done = change(plan.original.directory, request, on_end=self.end)
        except ChangeConflictError as error:
            found = create_conflict(plan.find_change(error.path), error.fact)
            raise ConflictError([found], kept=error.kept) from error
        return replace(summarize(plan), kept=done.kept)

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

    @property
    def last_staged(self) -> Mapping[str, IndexChange]:
        """The entries of git's index that the last commit changed, before and after."""
        return self.entries[-1].staged if self.entries else {}

    @property
    def last_commit(self) -> str:
        """The git commit that was made of the last apply; empty if there is none."""
        return self.entries[-1].commit if self.entries else ""

    def mark_committed(self, commit: str, staged: Mapping[str, IndexChange]) -> None:
        """Record the commit of all applies that had none, and what it changed in git's index.

        It is called before the index changes, without a commit, and when the commit is made.
        """
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
        rest = {*entry.paths, *entry.accepted} - set(paths)
        entries[number : number + 1] = [_select(entry, paths), _select(entry, rest)]
        self._write(tuple(entries))
        return number + 1

    def _write(self, entries: tuple[Application, ...]) -> None:
        record = read_record(self._copy.place)
        if record.applied != entries:
            write_record(self._copy.place, record.with_applies(entries))


def _select(entry: Application, paths: Collection[str]) -> Application:
    return replace(
        entry,
        paths=tuple(each for each in entry.paths if each in paths),
        accepted=tuple(each for each in entry.accepted if each in paths),
    )
