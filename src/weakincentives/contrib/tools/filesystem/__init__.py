"""How requests are carried out on files, once for every dialect and backend."""

from weakincentives.contrib.tools.filesystem.performers import PERFORMERS

__all__ = ["PERFORMERS"]
