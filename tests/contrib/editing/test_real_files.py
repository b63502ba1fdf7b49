"""Edits of real files: existing text is never mistaken for a placeholder."""

import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.contrib.tools.editing import Edit, apply_edits
from weakincentives.contrib.tools.editing.sanitize import is_placeholder
from weakincentives.contrib.tools.patching import plan_patch

# that of a system is often without its larger half, so the packages are read as well
LIBRARIES = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")}
_SAID = re.compile("code|same|rest of|omitted|unchanged")


def remarks() -> Iterator[tuple[list[str], int]]:
    """Yield the lines of real files that would be placeholders in another place."""
    for path in sorted({each for library in LIBRARIES for each in library.rglob("*.py")}):
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
        telling = (number for number, line in enumerate(lines) if _SAID.search(line))
        yield from ((lines, number) for number in telling if is_placeholder(lines[number]))


@pytest.mark.slow
def test_real_remarks_can_be_added_inserted_and_corrected():
    found = list(remarks())
    assert found
    for lines, number in found:
        line = lines[number]
        around = lines[max(number - 3, 0) : number + 4]
        at = around.index(line)
        without = [*around[:at], *around[at + 1 :]]
        misspelt = [*around[:at], line.replace("e", "3"), *around[at + 1 :]]
        for old in (without, misspelt):
            outcome = apply_edits("\n".join(old), [Edit("\n".join(old), "\n".join(around))])
            assert outcome.content == "\n".join(around)
        changed = [*(each + " " for each in without[:1]), *around[1:]]
        apply_edits("\n".join(around), [Edit("\n".join(around), "\n".join([*changed, "x"]))])
        added = "".join(f"+{each}\n" for each in lines)
        patch = f"*** Begin Patch\n*** Add File: a\n{added}*** End Patch\n"
        assert plan_patch(patch, {}.get)[0].content == "\n".join([*lines, ""])
