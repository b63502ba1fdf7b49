"""Working copies: review changes made in a copy, then apply all of them or none."""

from weakincentives.contrib.review.apply import Applied
from weakincentives.contrib.review.commit import Committed, commit_changes, commit_to_branch
from weakincentives.contrib.review.conflicts import Conflict, ConflictError
from weakincentives.contrib.review.copy import working_copy
from weakincentives.contrib.review.git import CommitError
from weakincentives.contrib.review.hunks import Hunk
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.original import ApplyInterruptedError, Interrupted, recover
from weakincentives.contrib.review.records import CopyError, CopyInUseError, WorkingCopy, open_copy
from weakincentives.contrib.review.review import Review
from weakincentives.contrib.review.views import Version
from weakincentives.history import Kept, Recovery

__all__ = [
    "Applied",
    "ApplyInterruptedError",
    "CommitError",
    "Committed",
    "Conflict",
    "ConflictError",
    "CopyError",
    "CopyInUseError",
    "Hunk",
    "Interrupted",
    "Kept",
    "Merge",
    "Recovery",
    "Review",
    "Version",
    "WorkingCopy",
    "commit_changes",
    "commit_to_branch",
    "open_copy",
    "recover",
    "working_copy",
]
