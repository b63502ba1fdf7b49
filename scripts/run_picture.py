"""Make `docs/demo.svg`: a run in a terminal, from the task over the live view to the decision.

Run it when the output of `wink run` changes: `python -m scripts.run_picture`. It needs tmux.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.text import Text

from weakincentives.cli.demo.command import PROJECT, RECORDING, render_svg

TARGET = Path(__file__).parents[1] / "docs" / "demo.svg"
TASK = "the tests fail: find the bug and fix it"
WIDTH, HEIGHT = 96, 48
_PROMPT = re.compile(r"^\$")
_QUESTION = re.compile(r"iscard|\[\w\]", re.IGNORECASE)
_SECONDS = 60
_TEST = {"name": "shell_execute", "arguments": {"command": ["python3", "-m", "unittest", "-q"]}}


def main() -> None:
    """Run a script in tmux until it asks for a decision, and save the screen."""
    with TemporaryDirectory(prefix="run-") as directory:
        home = Path(directory)
        shutil.copytree(PROJECT, home / "bills", ignore=shutil.ignore_patterns("__pycache__"))
        (home / "model.json").write_text(json.dumps(create_script()))
        screen = take_screen(home)
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"))  # noqa: SIM115  # for the whole process
    console.print(Text.from_ansi(screen), end="")
    TARGET.write_text(render_svg(console, "wink run"))


def create_script() -> list[object]:
    """Return what the model says and calls: it looks, tests, fixes and tests again."""
    recorded: list[Any] = json.loads(RECORDING.read_text())
    calls = [call for step in recorded if "tool_calls" in step for call in step["tool_calls"]]
    edit = next(each for each in calls if each["name"] == "edit_file")
    read = {"name": "read_file", "arguments": {"file_path": "bills/split.py"}}
    answer = (
        "Integer division lost the remainder of a bill. The first people now pay one cent more"
        " until it is used up, and **all tests pass**."
    )
    return [[read, _TEST], edit, _TEST, answer]


def take_screen(home: Path) -> str:
    """Return the screen at the moment of the decision, with its colours."""
    command = f'wink run "{TASK}" --model scripted:../model.json'
    variables = {"XDG_STATE_HOME": home / "state", "HOME": home, "WINK_DIGEST": "off"}
    tmux = ["tmux", "-L", f"picture-{os.getpid()}", "-f", os.devnull]
    settings = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())
    path = shlex.quote(str(Path(sys.executable).parent))
    place = shlex.quote(str(home / "bills"))
    shell = f"cd {place}; export {settings} PATH={path}:$PATH PS1='$ '; exec sh"
    size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
    subprocess.run([*tmux, "new-session", "-d", *size, "sh", "-c", shell], check=True)
    try:
        _wait_for(tmux, _PROMPT)
        subprocess.run([*tmux, "send-keys", command, "Enter"], check=True)
        return _wait_for(tmux, _QUESTION).replace(str(home), "~")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def _wait_for(tmux: list[str], pattern: re.Pattern[str]) -> str:
    """Return the screen once its last line matches."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        done = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True
        )
        lines = done.stdout.rstrip().splitlines()
        if lines and pattern.search(lines[-1]):
            return done.stdout.rstrip()
        time.sleep(0.2)
    raise TimeoutError(f"Not on the screen: {pattern.pattern!r}")


if __name__ == "__main__":
    main()
