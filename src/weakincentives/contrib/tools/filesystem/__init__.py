"""How requests are carried out on files, once for every dialect and backend."""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.tools.workbench import Performer

PERFORMERS: Mapping[type[Any], Performer] = {}
"""Who carries out which request."""

__all__ = ["PERFORMERS"]
