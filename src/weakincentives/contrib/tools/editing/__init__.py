"""Fuzzy text edits: find the text to replace at increasing tolerance, and replace it."""

from weakincentives.contrib.tools.editing.engine import Edit, EditOutcome, apply_edits
from weakincentives.contrib.tools.editing.match import EditError, MatchLevel

__all__ = ["Edit", "EditError", "EditOutcome", "MatchLevel", "apply_edits"]
