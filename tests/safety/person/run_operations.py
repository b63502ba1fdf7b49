"""Operations of `wink run`: a run that is killed or interrupted, and goes on in its copy."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from tests.safety.person.moments import Moments
from tests.safety.person.operations import Operation
from tests.safety.person.project import text, top_line
from weakincentives.cli import main as cli

# what the person saves it leaves alone: nobody can keep a command from removing that
_COMMAND = f"""
is_base() {{ [ "$(head -n 1 "$1")" = '{top_line("base")}' ]; }}
is_base a.txt && printf '%s' "$1" > a.txt
is_base d/e.txt && printf '%s' "$2" > d/e.txt
mkdir n
printf '%s' "$3" > n/o.txt
rm keep.txt
"""
_TEXTS = [text(path, "agent", "agent") for path in ("a.txt", "d/e.txt", "n/o.txt")]
COMMAND_STEP = 6
"""The number of the step of the command: start, prompt, two requests and a call are before it."""
_SCRIPT = [
    {
        "name": "write_file",
        "arguments": {
            "file_path": "g/j.txt",
            "content": text("g/j.txt", "agent", "agent"),
            "mode": "overwrite",
        },
    },
    {
        "name": "shell_execute",
        "arguments": {
            "command": ["sh", "-c", _COMMAND, "sh", *_TEXTS],
        },
    },
    "Done.",
]


def run(place: Path, moments: Moments) -> str:
    """Run a script with a file call and a command."""
    with moments.count():
        return run_script(place, _SCRIPT, "run", "change it")


def continue_run(place: Path, moments: Moments) -> str:
    """Go on with the run."""
    with moments.count():
        return run_script(place, ["Done."], "run", "--continue", "go on")


def undo(place: Path, moments: Moments) -> str:
    """Undo the step of the command."""
    run_script(place, _SCRIPT, "run", "change it")
    with moments.count():
        return wink(place, "undo", str(COMMAND_STEP))


def run_script(place: Path, steps: list[object], *arguments: str) -> str:
    """Run a script in the project, with commands."""
    script = place / "script.json"
    script.write_text(json.dumps(steps))
    options = ("--workspace", str(place / "root"), "--model", f"scripted:{script}")
    return wink(place, *arguments, *options, "--sandbox", "local", "--dialect", "classic")


def wink(place: Path, *arguments: str) -> str:
    """Run the command with places of its own; return what it prints."""
    for name in ("TMPDIR", "HOME", *(f"XDG_{each}_HOME" for each in _XDG)):
        (place / name).mkdir(exist_ok=True)
        os.environ[name] = str(place / name)
    os.environ["WINK_DIGEST"] = "off"
    tempfile.tempdir = str(place / "TMPDIR")
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            cli.main([*arguments])
        except SystemExit as end:
            output.write(f"exit code {end.code}")
    return output.getvalue()


_XDG = ("STATE", "CACHE", "CONFIG", "DATA")


def copy_of_run(place: Path) -> Path | None:
    """Return the copy that the run works in; None until it is complete."""
    runs = sorted((place / "XDG_STATE_HOME" / "wink" / "runs").glob("*/review.json"))
    return runs[0].parent / "workspace" if runs else None


def _operation(work: Callable[[Path, Moments], str]) -> Operation:
    return Operation(
        work,
        continue_run,
        targets=("a.txt", "d/e.txt", "g/j.txt"),
        folders=("d", "g"),
        root=copy_of_run,
        cost=2,
    )


RUNS: Mapping[str, Operation] = {
    "wink run --continue": _operation(run),
    "wink undo": _operation(undo),
}
