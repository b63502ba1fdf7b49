"""Guidance, descriptions and schemas do not change by accident."""

import pytest

from tests.contrib.dialects.snapshots import HERE, NAMES, render_dialect, snapshot_path
from weakincentives.contrib.tools.dialects import DialectName


@pytest.mark.parametrize("dialect", NAMES)
def test_what_a_model_is_told_is_what_was_approved(dialect: DialectName):
    approved = snapshot_path(dialect).read_text(encoding="utf-8")
    assert render_dialect(dialect) == approved, "run python3 -m tests.contrib.dialects.snapshots"


def test_nothing_is_kept_that_nobody_is_told():
    assert sorted(HERE.iterdir()) == sorted(snapshot_path(name) for name in NAMES)
