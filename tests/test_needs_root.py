"""What ordinary users skip: CONTRIBUTING.md names each test, and no test skips it silently."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.steps import ROOT
from tests import conftest

_MARK = "mark.root"


def _listed() -> list[str]:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    [section] = re.findall(r"^## Tests that need root\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for path, names in re.findall(r"^- `(tests/\S+)`: (.*)$", section, re.MULTILINE):
        found += [f"{path}::{name}" for name in re.findall(r"`(\w+)`", names)]
    return found


def _marked() -> list[str]:
    files = [each for each in Path("tests").rglob("test_*.py") if _MARK in each.read_text()]
    options = ("--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "root")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    nodes = [line for line in done.stdout.splitlines() if line.startswith("tests/")]
    return sorted({node.partition("[")[0] for node in nodes})


def test_the_list_is_that_of_the_marked_tests(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    assert _listed() == _marked()


@pytest.mark.parametrize(("is_root", "reasons"), [(False, ["needs root"]), (True, [])])
def test_the_marked_are_skipped_unless_we_are_root(
    is_root: bool,
    reasons: list[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(conftest, "is_root", lambda: is_root)
    parent = request.node.parent
    for marks, expected in ((["root", "slow"], reasons), (["slow"], [])):
        item = pytest.Function.from_parent(parent, name="x", callobj=lambda: None)
        for mark in marks:
            item.add_marker(mark)
        conftest.pytest_itemcollected(item)
        assert [mark.kwargs["reason"] for mark in item.iter_markers("skip")] == expected
