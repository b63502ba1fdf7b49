"""Fuzzy text edits: find the text to replace at increasing tolerance, and replace it."""

from weakincentives.contrib.tools.editing.engine import apply_edits
from weakincentives.contrib.tools.editing.errors import EditError
from weakincentives.contrib.tools.editing.model import Edit, EditOutcome, MatchLevel

__all__ = ["Edit", "EditError", "EditOutcome", "MatchLevel", "apply_edits"]
