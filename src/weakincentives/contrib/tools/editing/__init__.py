"""Edits that land: a text is found with as little as possible overlooked, and replaced."""

from weakincentives.contrib.tools.editing.engine import apply_edits
from weakincentives.contrib.tools.editing.model import Edit, EditError, EditOutcome, MatchLevel

__all__ = ["Edit", "EditError", "EditOutcome", "MatchLevel", "apply_edits"]
