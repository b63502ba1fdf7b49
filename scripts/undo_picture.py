"""Make `docs/undo.svg`: a command wrecked files, and is undone; what came later stays.

Run it when the output of `wink mcp` changes: `python -m scripts.undo_picture`. It needs tmux, git
and bubblewrap. A client of the SDK plays the agent; everything else is as a user would type it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import Implementation
from rich.console import Console
from rich.text import Text

from weakincentives.cli.demo.command import PROJECT, render_svg

TARGET = Path(__file__).parents[1] / "docs" / "undo.svg"
WIDTH, HEIGHT = 84, 26
_PROMPT = re.compile(r"^\$ $", re.MULTILINE)
_SECONDS = 60
_WINK = Path(sys.executable).with_name("wink")
_WRECK = "sed -i s/total/sum/ bills/*.py; rm README.md"
_EDIT = {"oldText": "import unittest", "newText": '"""Tests of the bills."""\n\nimport unittest'}
_STATUS = "git status --short"
_COMMANDS = ("wink mcp . --calls | head -4", _STATUS, "wink mcp . --undo 1", _STATUS)


def main() -> None:
    """Let an agent work, save a file as its user, undo the first call, and save the screen."""
    with TemporaryDirectory(prefix="undo-") as directory:
        home = Path(directory)
        project = home / "bills"
        shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
        variables = {"XDG_STATE_HOME": str(home / "state"), "HOME": str(home)}
        git = ("git", "-C", project, "-c", "user.name=you", "-c", "user.email=you@example.org")
        for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Start")):
            subprocess.run([*git, *arguments], check=True)
        anyio.run(work, project, {**os.environ, **variables})
        (project / "notes.txt").write_text("saved by the user meanwhile\n")
        screen = take_screen(project, variables)
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"))  # noqa: SIM115  # for the whole process
    console.print(Text.from_ansi(screen), end="")
    TARGET.write_text(render_svg(console, "undo of one call, with everything after it kept"))


async def work(project: Path, environment: dict[str, str]) -> None:
    """Wreck files by a command, then make a good edit, as an MCP client."""
    words = ["mcp", str(project), "--in-place"]
    server = StdioServerParameters(command=str(_WINK), args=words, env=environment)
    name = Implementation(name="claude-code", version="1")
    async with Client(stdio_client(server), client_info=name) as client:
        await client.call_tool("shell_execute", {"command": ["sh", "-c", _WRECK]})
        await client.call_tool("edit_file", {"path": "test_bills.py", "edits": [_EDIT]})


def take_screen(project: Path, variables: dict[str, str]) -> str:
    """Return the screen after the commands, with its colours."""
    tmux = ["tmux", "-L", f"picture-{os.getpid()}", "-f", os.devnull]
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    path = shlex.quote(str(_WINK.parent))
    place = shlex.quote(str(project))
    shell = f"cd {place}; export {settings} PATH={path}:$PATH PS1='$ '; exec sh"
    size = ["-x", str(WIDTH), "-y", str(HEIGHT)]
    subprocess.run([*tmux, "new-session", "-d", *size, "sh", "-c", shell], check=True)
    try:
        for number, command in enumerate(_COMMANDS, 1):
            _wait_for(tmux, number)
            subprocess.run([*tmux, "send-keys", command, "Enter"], check=True)
        screen = _wait_for(tmux, len(_COMMANDS) + 1)
        return screen.rstrip().removesuffix("$").rstrip().replace(str(project), "~/bills")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def _wait_for(tmux: list[str], prompts: int) -> str:
    """Return the screen once the last of so many prompts waits for a command."""
    end, screen = time.monotonic() + _SECONDS, ""
    while time.monotonic() < end:
        screen = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p"], capture_output=True, text=True, check=True
        ).stdout.rstrip("\n")
        lines = [line for line in screen.splitlines() if line.startswith("$")]
        if len(lines) == prompts and screen.splitlines()[-1].strip() == "$":
            return screen
        time.sleep(0.2)
    raise TimeoutError(f"The terminal shows:\n{screen}")


if __name__ == "__main__":
    main()
