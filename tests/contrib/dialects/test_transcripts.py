"""Guidance, descriptions and schemas do not change by accident."""

import pytest

from tests.contrib.dialects.snapshots import HERE, NAMES, render_dialect, snapshot_path
from weakincentives.contrib.tools.dialects import DialectName


@pytest.mark.parametrize("dialect", NAMES)
def test_the_texts_of_a_dialect_are_the_approved_ones(dialect: DialectName):
    approved = snapshot_path(dialect).read_text(encoding="utf-8")
    assert render_dialect(dialect) == approved, "run python3 -m tests.contrib.dialects.snapshots"


def test_every_snapshot_belongs_to_a_dialect():
    assert sorted(HERE.iterdir()) == sorted(snapshot_path(name) for name in NAMES)
