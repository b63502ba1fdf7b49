"""SIGTERM and SIGHUP at any point of a run: the copy's path is printed, nothing is half done."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, Script, edit
from tests.preloaded import run

Copies = Callable[[], list[Path]]

pytestmark = pytest.mark.usefixtures("own_places")

# the signal comes at the first fault point of a phase, in the process that works
PROGRAM = """
import os, sys
from pathlib import Path
from weakincentives.cli.main import main
from weakincentives.posix import fault_hook

phase, number, original = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sent = []

def is_time(name):
    if phase == "dump":
        return name.startswith("dump")
    records = Path(os.environ["XDG_STATE_HOME"]).glob("wink/runs/*/run.json")
    copies = [each for each in records if b'"base":' in each.read_bytes()]
    if phase == "copy":
        return not copies
    return bool(copies) and b'"applied":[{' in copies[0].read_bytes()

def hook(name):
    if not sent and is_time(name):
        sent.append(name)
        os.kill(os.getpid(), number)

with fault_hook(hook):
    main(["run", "x", "--workspace", original, "--model", *sys.argv[4:]])
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("phase", ["copy", "dump", "apply"])
def test_a_request_to_end_names_the_copy_and_leaves_the_original_whole(
    project: Path, script: Script, copies: Copies, phase: str, number: signal.Signals, code: int
):
    model = script(edit(), "Done.")
    options = ("--dump", project.parent / "dumps") if phase == "dump" else ()
    arguments = (phase, str(int(number)), project, model, "--apply", *options)
    done = run([sys.executable, "-c", PROGRAM, *arguments])
    assert done.returncode == code, done.stderr
    assert f"wink: terminated by {number.name}" in done.stderr
    assert (project / "calc.py").read_text() == CALC
    if phase == "copy":
        assert copies() == []
    else:
        assert f"The working copy is kept: wink review {copies()[0].name}" in done.stderr
        again = run([sys.executable, "-m", "weakincentives", "review", copies()[0], "--apply"])
        assert again.returncode == 0
        assert (project / "calc.py").read_text() != CALC
