"""The tasks of make, as far as they are tables."""

from scripts.steps import ROOT
from scripts.tasks import BY_USER, BY_VERSION, BY_WHEEL


def test_tests_that_another_python_or_user_runs_are_there():
    assert [path for path in BY_VERSION + BY_WHEEL + BY_USER if not (ROOT / path).exists()] == []
