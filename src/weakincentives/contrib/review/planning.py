"""The way from one state of a copy to another, made ready for the original as it is now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weakincentives.contrib.review.conflicts import Conflict, Plan
from weakincentives.contrib.review.exact import ExactFilesystem
from weakincentives.contrib.review.merging import Merge, merge_of
from weakincentives.contrib.review.parts import ReplacedFilesystem
from weakincentives.filesystem import Change, ReadableFilesystem
from weakincentives.filesystem.diffs.changes import Side


@dataclass(frozen=True, slots=True)
class Way:
    """Changes that lead from one state to another."""

    changes: Sequence[Change]
    before: ReadableFilesystem
    after: ReadableFilesystem
    is_reviewed: Callable[[str], bool]

    def plan(self, original: ExactFilesystem) -> Plan:
        """Hold the changes against the original."""
        sides = Side(self.before), Side(self.after)
        return Plan(self.changes, Side(original), sides, self.is_reviewed)

    def conflicts(self, original: ExactFilesystem, plan: Plan) -> tuple[Conflict, ...]:
        """Return what stands against a plan, and whether both changes go together."""
        merged = {each.path for each in self.merges(original, plan)}
        return tuple(replace(each, can_merge=each.path in merged) for each in plan.conflicts)

    def merges(self, original: ExactFilesystem, plan: Plan) -> list[Merge]:
        """Return the conflicts of a plan in which both changes go together."""
        paths = {each.path for each in plan.conflicts}
        sides = Side(self.before), Side(self.after), Side(original)
        found = (
            merge_of(each, sides[2].lookup(each.path), sides)
            for each in self.changes
            if each.path in paths
        )
        return [each for each in found if each is not None]

    def merged(self, merges: Sequence[Merge]) -> "Way":
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

    def back(self) -> "Way":
        """Return the same way back."""
        changes = [replace(each, before=each.after, after=each.before) for each in self.changes]
        return replace(self, changes=changes, before=self.after, after=self.before)
