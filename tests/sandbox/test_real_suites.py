"""Test suites of real projects end in a sandbox as they do outside; with `--long` only."""

from pathlib import Path

import pytest

from tests.sandbox.real_suites import SUITES, Suite, prepare, results_inside, results_outside
from tests.sizes import size
from weakincentives.sandbox import SandboxUnavailableError, choose_sandbox


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES, ids=[each.project for each in SUITES])
def test_a_project_that_works_outside_works_inside(suite: Suite, tmp_path: Path) -> None:
    if not size(short=False, long=True):
        pytest.skip("downloads the project from PyPI: make test-long")
    try:
        sandbox = choose_sandbox().name
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    project, environment = prepare(suite, tmp_path)
    outside = results_outside(project, environment, suite.arguments)
    assert sum(count for name, count in outside.items() if name.endswith(" passed")) > 10
    inside = results_inside(project, environment, suite.arguments, tmp_path / "run", sandbox)
    assert {name: inside.get(name) for name in outside} == outside
    assert inside.keys() == outside.keys()
