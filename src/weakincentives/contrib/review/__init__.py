"""Working copies: review changes made in a copy, then apply all of them or none."""

from weakincentives.contrib.review.apply import Applied
from weakincentives.contrib.review.commit import Committed, commit_changes, commit_to_branch
from weakincentives.contrib.review.commit import create_message as create_message
from weakincentives.contrib.review.commit import is_in_repository as is_in_repository
from weakincentives.contrib.review.commit import redo_commit as redo_commit
from weakincentives.contrib.review.commit import require_repository as require_repository
from weakincentives.contrib.review.commit import undo_commit as undo_commit
from weakincentives.contrib.review.conflicts import Conflict, ConflictError
from weakincentives.contrib.review.copy import copy_of_states as copy_of_states
from weakincentives.contrib.review.copy import working_copy
from weakincentives.contrib.review.git import CommitError
from weakincentives.contrib.review.git import GitRunner as GitRunner
from weakincentives.contrib.review.hunks import Hunk
from weakincentives.contrib.review.merge import Merge
from weakincentives.contrib.review.original import ApplyInterruptedError, Interrupted, recover
from weakincentives.contrib.review.original import is_interrupted as is_interrupted
from weakincentives.contrib.review.records import CopyError, CopyInUseError, WorkingCopy, open_copy
from weakincentives.contrib.review.records import RunRecord as RunRecord
from weakincentives.contrib.review.records import Status as Status
from weakincentives.contrib.review.records import find_record as find_record
from weakincentives.contrib.review.records import is_copy as is_copy
from weakincentives.contrib.review.records import open_files as open_files
from weakincentives.contrib.review.records import read_record as read_record
from weakincentives.contrib.review.records import record_path as record_path
from weakincentives.contrib.review.records import workspace_path as workspace_path
from weakincentives.contrib.review.records import write_record as write_record
from weakincentives.contrib.review.removal import find_attributes as find_attributes
from weakincentives.contrib.review.removal import remove_copy as remove_copy
from weakincentives.contrib.review.removal import remove_place as remove_place
from weakincentives.contrib.review.removal import remove_unused as remove_unused
from weakincentives.contrib.review.removal import take_back as take_back
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
