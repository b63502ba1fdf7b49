"""What holds for the tests of the benchmarks."""

import gc

import pytest


@pytest.fixture(autouse=True)
def still_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave frozen what was before: a measurement would give all tests back to the collector."""
    monkeypatch.setattr(gc, "unfreeze", gc.freeze)
