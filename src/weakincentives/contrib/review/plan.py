"""The way from one state of a copy to another, made ready for the original as it is now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weakincentives.contrib.review.conflicts import Conflict, Plan, Renames, with_other_names
from weakincentives.contrib.review.merge import Merge, merge_of
from weakincentives.contrib.review.original import OriginalSide
from weakincentives.contrib.review.views import PreservingFilesystem, ReplacedFilesystem
from weakincentives.filesystem import Change, ReadableFilesystem
from weakincentives.filesystem.diff import Side, StaleDiffError


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes that lead from one state to another."""

    changes: Sequence[Change]
    before: ReadableFilesystem
    after: ReadableFilesystem
    is_reviewed: Callable[[str], bool]
    renames: Callable[[], Renames] = lambda: Renames(())
    """Gives the names of files that have moved."""

    def plan(self, original: PreservingFilesystem, *, looking: bool = False) -> Plan:
        """Hold the changes against the original; `looking` opens nothing that is closed."""
        sides = Side(self.before), Side(self.after)
        with OriginalSide(original, looking=looking) as now:
            return Plan(self.changes, now, sides, self.is_reviewed)

    def conflicts(
        self, original: PreservingFilesystem, plan: Plan, *, looking: bool = False
    ) -> tuple[Conflict, ...]:
        """Return what stands against a plan, and whether both changes go together.

        A rename is one change: what stands against one of its names stands against both.
        """
        merged = {each.path for each in self.merges(original, plan, looking=looking)}
        found = [replace(each, can_merge=each.path in merged) for each in plan.conflicts]
        return tuple(with_other_names(found, self.renames() if found else Renames(())))

    def merges(
        self, original: PreservingFilesystem, plan: Plan, *, looking: bool = False
    ) -> list[Merge]:
        """Return the conflicts of a plan in which both changes go together."""
        paths = {each.path for each in plan.conflicts}
        changes = [each for each in self.changes if each.path in paths]
        with OriginalSide(original, looking=looking) as now:
            sides = Side(self.before), Side(self.after), now
            found = [_merge_of(each, sides) for each in changes]
        return [each for each in found if each is not None]

    def merged(self, merges: Sequence[Merge]) -> "ChangeSet":
        """Return the way on which these files begin as they are in the original, and get both."""
        before = {each.path: each.original for each in merges}
        after = {each.path: each.merged for each in merges}
        changes = [
            replace(
                each,
                before=before[each.path].stat(each.path),
                after=after[each.path].stat(each.path),
            )
            if each.path in before
            else each
            for each in self.changes
        ]
        return replace(
            self,
            changes=changes,
            before=ReplacedFilesystem(self.before, before),
            after=ReplacedFilesystem(self.after, after),
        )

    def back(self) -> "ChangeSet":
        """Return the same way back."""
        changes = [replace(each, before=each.after, after=each.before) for each in self.changes]
        return replace(self, changes=changes, before=self.after, after=self.before)


def _merge_of(change: Change, sides: tuple[Side, Side, OriginalSide]) -> Merge | None:
    try:
        return merge_of(change, sides[2].lookup(change.path), sides)
    except (PermissionError, IsADirectoryError, NotADirectoryError, StaleDiffError):
        return None  # nobody can read what would be merged, or it is being saved just now
