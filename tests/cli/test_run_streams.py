"""`wink run` with standard streams that are closed or not text: one line, and no work lost."""

import io
import sys
from pathlib import Path

import pytest

from tests.cli.workplace import FIXED, Script, Wink, edit


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_a_closed_output_costs_no_work(
    option: str, wink: Wink, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it where the descriptor is closed
    model = script(edit(), "Done.")
    done = wink("run", "fix", "--workspace", project, "--model", model, "--apply", option)
    assert done.code == 0
    assert (project / "calc.py").read_text() == FIXED


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (None, "The task cannot be read; standard input is closed"),
        (io.TextIOWrapper(io.BytesIO(b"fix \xff"), "utf-8"), "The task is not UTF-8"),
    ],
)
def test_a_task_that_cannot_be_read_is_one_line(
    stream: object,
    says: str,
    wink: Wink,
    project: Path,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "stdin", stream)
    done = wink("run", "-", "--workspace", project, "--model", script("Done."))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"wink: {says}")
