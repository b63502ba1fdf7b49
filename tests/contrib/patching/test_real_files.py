"""Patches of real files: unambiguous ones apply, with any anchor, and none applies wrongly."""

from collections import Counter
from pathlib import Path

import pytest

from tests.contrib.corpus.real_patches import (
    LIBRARY,
    heading_above,
    headings_of_git,
    real_patches,
)
from tests.sizes import size
from weakincentives.contrib.tools.patching import PatchError, plan_patch


def content_of(text: str, patch: str) -> str | None:
    try:
        return plan_patch(patch, {"f": text}.get)[0].content
    except PatchError:
        return None


def check(seed: int, files: int, changes: int) -> Counter[str]:
    counted: Counter[str] = Counter()
    problems: list[str] = []
    for case in real_patches(seed=seed, files=files, changes=changes):
        content = content_of(case.text, case.patch)
        counted[case.kind] += content is not None
        if content is None and case.is_clear:
            problems.append(f"refused, {case.kind}: {case.where}\n{case.patch}")
        elif content not in {None, case.expected}:
            problems.append(f"wrong, {case.kind}: {case.where}\n{case.patch}")
    assert problems == []
    return counted


def test_clear_patches_of_real_files_land_and_none_lands_wrong():
    landed = check(seed=1, files=40, changes=3)
    assert set(landed) == {"none", "enclosing", "nested", "heading"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", size([2], [2, 3, 4]))
def test_clear_patches_of_many_real_files_land_and_none_lands_wrong(seed: int):
    landed = check(seed=seed, files=150, changes=6)
    assert min(landed.values()) > 100


def test_the_headings_of_the_corpus_are_those_of_git(tmp_path: Path):
    lines = (LIBRARY / "dataclasses.py").read_text(encoding="utf-8").split("\n")
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_text("\n".join(lines), encoding="utf-8")
    for start in range(10, 1000, 90):
        new.write_text("\n".join([*lines[:start], "x", *lines[start + 1 :]]), encoding="utf-8")
        (heading,) = headings_of_git(old, new)
        above = heading_above(lines, start - 3)
        assert heading == ("" if above is None else lines[above][:80].rstrip())
