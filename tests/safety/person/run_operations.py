"""Operations of `wink run`: a run that is killed or interrupted, and goes on in its copy."""

import json
import os
import tempfile
from collections.abc import Mapping
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
_SCRIPT = [
    {
        "name": "write_file",
        "arguments": {"file_path": "g/j.txt", "content": text("g/j.txt", "agent", "agent")},
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
        return _wink(place, _SCRIPT, "run", "change it")


def continue_run(place: Path, moments: Moments) -> str:
    """Go on with the run."""
    with moments.count():
        return _wink(place, ["Done."], "run", "--continue", "go on")


def _wink(place: Path, steps: list[object], *arguments: str) -> str:
    for name in ("TMPDIR", "HOME", *(f"XDG_{each}_HOME" for each in _XDG)):
        (place / name).mkdir(exist_ok=True)
        os.environ[name] = str(place / name)
    os.environ["WINK_DIGEST"] = "off"
    tempfile.tempdir = str(place / "TMPDIR")
    script = place / "script.json"
    script.write_text(json.dumps(steps))
    options = ("--workspace", str(place / "root"), "--model", f"scripted:{script}")
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            cli.main([*arguments, *options, "--sandbox", "local", "--dialect", "classic"])
        except SystemExit as end:
            output.write(f"exit code {end.code}")
    return output.getvalue()


_XDG = ("STATE", "CACHE", "CONFIG", "DATA")


def copy_of_run(place: Path) -> Path | None:
    """Return the copy that the run works in; None until it is complete."""
    runs = sorted((place / "XDG_STATE_HOME" / "wink" / "runs").glob("*/review.json"))
    return runs[0].parent / "workspace" if runs else None


RUNS: Mapping[str, Operation] = {
    "wink run --continue": Operation(run, continue_run, root=copy_of_run, cost=2),
}
