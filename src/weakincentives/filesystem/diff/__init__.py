"""Differences between two states of a workspace, as changes, line counts and git patches."""

from weakincentives.filesystem.diff.changes import MAX_TEXT as MAX_TEXT
from weakincentives.filesystem.diff.changes import Change as Change
from weakincentives.filesystem.diff.changes import ChangeKind as ChangeKind
from weakincentives.filesystem.diff.changes import Side as Side
from weakincentives.filesystem.diff.changes import StaleDiffError as StaleDiffError
from weakincentives.filesystem.diff.changes import same_bytes as same_bytes
from weakincentives.filesystem.diff.diff import Diff as Diff
from weakincentives.filesystem.diff.diff import DiffStatistics as DiffStatistics
from weakincentives.filesystem.diff.diff import LineCount as LineCount
from weakincentives.filesystem.diff.diff import diff as diff
from weakincentives.filesystem.diff.diff import diff_since as diff_since
from weakincentives.filesystem.diff.myers import Block as Block
from weakincentives.filesystem.diff.myers import changed_blocks as changed_blocks
from weakincentives.filesystem.diff.myers import group_blocks as group_blocks
from weakincentives.filesystem.diff.myers import hunks as hunks
from weakincentives.filesystem.diff.myers import split_lines as split_lines
from weakincentives.filesystem.diff.patch import Omission as Omission
from weakincentives.filesystem.diff.renames import find_moves as find_moves
from weakincentives.filesystem.diff.words import Span as Span
from weakincentives.filesystem.diff.words import changed_words as changed_words
from weakincentives.filesystem.paths import encode_path as encode_path
from weakincentives.filesystem.paths import label_path as label_path
from weakincentives.filesystem.paths import quote_path as quote_path
