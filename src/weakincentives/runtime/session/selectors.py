"""Names of the specification: the selectors of slices, under their module path."""

from weakincentives.runtime.session.session import select_all, select_latest, select_where

__all__ = ["select_all", "select_latest", "select_where"]
