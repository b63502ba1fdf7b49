"""Multi-file patches, V4A and unified diffs: parsed and planned before any file is written."""

from weakincentives.contrib.tools.patching.formats import patched_paths
from weakincentives.contrib.tools.patching.hunks import (
    ChangeKind,
    PatchError,
    PlannedChange,
    Reader,
)
from weakincentives.contrib.tools.patching.plan import plan_patch

__all__ = ["ChangeKind", "PatchError", "PlannedChange", "Reader", "patched_paths", "plan_patch"]
