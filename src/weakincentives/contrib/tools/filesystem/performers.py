"""The table of who carries out which request."""

from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.tools.filesystem.reading import read_file, read_many
from weakincentives.contrib.tools.requests import ReadFileParams, ReadManyParams
from weakincentives.contrib.tools.workbench import Performer

PERFORMERS: Mapping[type[Any], Performer] = {
    ReadFileParams: read_file,
    ReadManyParams: read_many,
}
"""Who carries out which request."""
