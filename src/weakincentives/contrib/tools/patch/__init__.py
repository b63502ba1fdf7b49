"""Patches of several files, planned as a whole: V4A and unified diffs."""

from weakincentives.contrib.tools.patch.changes import ChangeKind, PatchError, PlannedChange, Reader
from weakincentives.contrib.tools.patch.planning import plan_patch

__all__ = ["ChangeKind", "PatchError", "PlannedChange", "Reader", "plan_patch"]
