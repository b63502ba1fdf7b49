"""Work on a copy of a directory, and bring back what was changed: all of it or nothing."""

from weakincentives.contrib.review.conflicts import Conflict, ConflictError, Kept
from weakincentives.contrib.review.copy import working_copy
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.records import CopyError, WorkingCopy, open_copy
from weakincentives.contrib.review.recovery import (
    ApplyInterruptedError,
    Interrupted,
    Recovery,
    recover,
)
from weakincentives.contrib.review.review import Applied, Review
from weakincentives.contrib.review.views import Version

__all__ = [
    "Applied",
    "ApplyInterruptedError",
    "Conflict",
    "ConflictError",
    "CopyError",
    "Interrupted",
    "Kept",
    "Merge",
    "Recovery",
    "Review",
    "Version",
    "WorkingCopy",
    "open_copy",
    "recover",
    "working_copy",
]
