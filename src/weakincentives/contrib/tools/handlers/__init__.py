"""How requests are carried out on files, once for every dialect and backend."""

from weakincentives.contrib.tools.handlers.registry import HANDLERS

__all__ = ["HANDLERS"]
