"""Sizes of the long tests: a part by default, everything with `pytest --long`.

Kills, races, faults and random operations find more the longer they run. `make test` runs enough
to notice what breaks today; `make test-long` runs all of it, every night.
"""

import os
from typing import TypeVar

_VARIABLE = "WINK_LONG"

Size = TypeVar("Size")


def set_long(is_long: bool) -> None:
    """Choose the sizes, for this process and those that it starts."""
    if is_long:
        os.environ[_VARIABLE] = "1"


def size(short: Size, long: Size) -> Size:
    """Return `long` if everything is to run, else `short`."""
    return long if os.environ.get(_VARIABLE) else short
