"""Edits that land: a text is found with as little as possible overlooked, and replaced."""

from weakincentives.contrib.tools.edit.applying import apply_edits
from weakincentives.contrib.tools.edit.edits import Edit, EditError, EditOutcome, Grade

__all__ = ["Edit", "EditError", "EditOutcome", "Grade", "apply_edits"]
