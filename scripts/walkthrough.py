"""Make `docs/walkthrough.md`: a bug is fixed with wink, in a real terminal, and every screen kept.

Run it when the screens change: `python -m scripts.walkthrough`. It needs tmux. The model is a
local server with prepared answers that speaks the API of OpenAI; everything else is real.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.steps import ROOT, output_of
from tests.adapters.chat_server import (
    Answer,
    Handler,
    begin_stream,
    event,
    piece,
    pieces,
    serving,
)
from weakincentives.adapters import ToolCall

TARGET = ROOT / "docs" / "walkthrough.md"
WIDTH, HEIGHT = 96, 60
LIMIT = 120.0  # seconds; only a failing walk reaches it
PROMPT = r"\$"
DECISION = r"iscard.*:"
QUESTION = "What does cart.py do?"
TASK = "test_cart.py fails: find out why and fix it"
REPLY = "good, but keep the old name: discount"

FILES = {
    "cart.py": '''"""A shopping cart."""


def total(prices, discount=0):
    """Return the sum of the prices, less a discount in percent."""
    return sum(prices) - discount
''',
    "test_cart.py": """import unittest

from cart import total


class TotalTest(unittest.TestCase):
    def test_without_discount(self):
        self.assertEqual(total([10, 20]), 30)

    def test_discount_is_in_percent(self):
        self.assertEqual(total([10, 20], 50), 15)


if __name__ == "__main__":
    unittest.main()
""",
}
RENAMED = """*** Begin Patch
*** Update File: cart.py
@@
-def total(prices, discount=0):
-    \"\"\"Return the sum of the prices, less a discount in percent.\"\"\"
-    return sum(prices) - discount
+def total(prices, percent=0):
+    \"\"\"Return the sum of the prices, less a discount in percent.\"\"\"
+    return sum(prices) * (100 - percent) / 100
*** End Patch
"""
RESTORED = """*** Begin Patch
*** Update File: cart.py
@@
-def total(prices, percent=0):
+def total(prices, discount=0):
@@
-    return sum(prices) * (100 - percent) / 100
+    return sum(prices) * (100 - discount) / 100
*** End Patch
"""
INTRODUCTION = """# A walkthrough

This page shows `wink run` fix a bug in a real terminal (tmux), from the installation to the
commit, with a reply and a `kill -9` in between. `python -m scripts.walkthrough` plays it and
writes this page: the screens are what the terminal showed. Only the model is prepared: a local
server with the API of OpenAI gives its answers."""
INSTALL = """## Install

The wheel is built from this repository. The extra `run` brings the clients of OpenAI and
Anthropic."""
ASK = """## Ask for a fix

The project has a test that fails. The model works in a copy, and its commands are isolated: a
command that fails shows its exit code and its last lines. At the end are the diff and
a question."""
ANSWER = """## Answer instead of deciding

Any answer of several words goes to the model, and the run goes on in the same copy and the same
conversation. In the middle of it the process is killed with `kill -9`."""
CONTINUE = """## Go on after the kill

Every step is on disk as soon as it has happened, so `wink run --continue` goes on from the last
one. What the model had changed before is still there."""
COMMIT = """## Commit

`c` applies the changes and commits exactly these files, with the task as the message. The run
stays in the list of `wink review`, so that it can be undone."""
NARROW = """## Sixty columns, without colour

`NO_COLOR=1` in a narrow terminal:"""
NO_TERMINAL = """## Without a terminal

The answer is all of standard output; there are no escape codes and no animation."""
JSON = """## For programs

`--json` prints one object per line (cut here):"""


@dataclass
class Conversation:
    """What the model says, in order; `is_waiting` is set when it never will."""

    is_waiting: bool = False
    numbers: list[int] = field(default_factory=lambda: [0])

    def says(self, text: str, *calls: tuple[str, dict[str, Any]]) -> Answer:
        """Answer in pieces, with the pauses of a model."""

        def answer(handler: Handler) -> None:
            named = [ToolCall(name, arguments, self._next_id()) for name, arguments in calls]
            size = len(str(handler.server_state.last)) // 4
            usage = {
                "prompt_tokens": size,
                "completion_tokens": len(text) // 4 + 30 * len(calls) + 5,
                "total_tokens": size + len(text) // 4 + 30 * len(calls) + 5,
                "prompt_tokens_details": {"cached_tokens": size * 3 // 4},
            }
            begin_stream(handler)
            for each in pieces(text, named):
                handler.chunk(event(each))
                handler.server_state.stopped.wait(0.02)
            handler.chunk(event(piece({}, finish_reason="tool_calls" if calls else "stop")))
            last = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}
            handler.chunk(event({**last, "choices": [], "usage": usage}))
            handler.chunk(b"data: [DONE]\n\n")
            handler.chunk(b"")

        return answer

    def waits(self, handler: Handler) -> None:
        """Think until the client is gone."""
        self.is_waiting = True
        handler.server_state.stopped.wait(LIMIT)
        handler.close_connection = True

    def _next_id(self) -> str:
        self.numbers.append(self.numbers[-1] + 1)
        return f"call_{self.numbers[-1]}"


def answers(says: Conversation) -> list[Answer]:
    """Return the answers of the walk, one for each request."""
    tests = ("exec_command", {"cmd": "python3 -m unittest -q"})
    question = [
        says.says("", ("exec_command", {"cmd": "grep -n 'def ' cart.py"})),
        says.says("`cart.py` has **one** function: `total`, the sum less a discount in percent."),
    ]
    return [
        says.says("I run the tests first, and read the code.", tests),
        says.says("", ("exec_command", {"cmd": "cat cart.py"})),
        says.says(
            "The discount is subtracted as an amount, although it is a percentage.",
            ("apply_patch", {"input": RENAMED}),
        ),
        says.says("", tests),
        says.says(
            "`total` took the discount as an **amount**; it is a percentage.\n\n"
            "- `cart.py`: the sum is now multiplied by what is left of it\n"
            "- the parameter is called `percent`, so that nobody takes it for an amount again\n\n"
            "Both tests pass."
        ),
        says.says("I give the parameter its old name back.", ("apply_patch", {"input": RESTORED})),
        says.waits,
        says.says("", tests),
        says.says("The parameter is called `discount` again, and both tests pass."),
        *(each for _ in range(3) for each in question),
    ]


class Terminal:
    """A real terminal, in tmux."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        """Start a shell in `directory`."""
        self._socket = directory / "tmux"
        self._seen = 0
        variables = [f"{name}={value}" for name, value in environment.items()]
        size = ("-x", str(WIDTH), "-y", str(HEIGHT))
        shell = shlex.join(["env", "-i", *variables, "bash", "--norc", "--noprofile"])
        self._tmux(
            *("start-server", ";", "set-option", "-g", "status", "off", ";"),
            *("set-option", "-g", "history-limit", "100000", ";"),
            *("new-session", "-d", *size, "-c", str(directory), shell),
        )
        self.wait(PROMPT)

    def type(self, line: str) -> None:
        """Type a line and press Enter."""
        self._tmux("send-keys", "-l", line)
        self._tmux("send-keys", "Enter")

    def screen(self) -> str:
        """Return the text of the screen, and what has left it at the top."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-").rstrip()

    def new_lines(self) -> str:
        """Return what was added to the screen since the last call, as a block of Markdown."""
        lines = self.screen().splitlines()
        new = [line.rstrip() for line in lines[self._seen :]]
        self._seen = len(lines) - 1
        if new and re.fullmatch(PROMPT, new[-1]):
            del new[-1]
        return "\n".join(["```text", *new, "```"])

    def forget(self) -> None:
        """Forget the lines of the screen so far: it was cleared."""
        self._tmux("clear-history")
        self._seen = 0

    def resize(self, width: int) -> None:
        """Change the number of columns."""
        self._seen = self.screen().count("\n")
        self._tmux("resize-window", "-x", str(width))
        self._tmux("send-keys", "-l", "clear")
        self._tmux("send-keys", "Enter")
        time.sleep(0.5)
        self.forget()

    def wait(self, pattern: str) -> str:
        """Wait until the end of the screen matches a regular expression; return the screen."""
        until = time.monotonic() + LIMIT
        while not re.search(rf"(?:{pattern})\s*\Z", found := self.screen()):
            if time.monotonic() > until:
                raise TimeoutError(f"never seen: {pattern}\n{found}")
            time.sleep(0.1)
        return found

    def do(self, line: str, pattern: str | None = None) -> str:
        """Type a line, wait for what follows, and return the screen."""
        self.type(line)
        time.sleep(0.3)  # or the prompt before the line is taken for the one after it
        return self.wait(PROMPT if pattern is None else pattern)

    def close(self) -> None:
        """End the shell and tmux."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", os.devnull, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Walk through it and write the page."""
    spoken = Conversation()
    with (
        TemporaryDirectory(ignore_cleanup_errors=True, prefix="walk-") as name,
        serving(*answers(spoken)) as server,
    ):
        directory = Path(name)
        create_project(directory / "shop")
        environment = {
            "PATH": f"{directory / 'venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(directory),
            "TERM": "tmux-256color",
            "LANG": "C.UTF-8",
            "PS1": "$ ",
            "OPENAI_API_KEY": "sk-of-a-local-server",
            "WINK_BASE_URL": server.url,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        wheel = build_wheel(directory)
        terminal = Terminal(directory, environment)
        try:
            text = "\n\n".join(walk(terminal, spoken, wheel, directory))
        finally:
            terminal.close()
    TARGET.write_text(text.replace(str(directory), "~") + "\n")
    print(f"written: {TARGET}")


def walk(terminal: Terminal, spoken: Conversation, wheel: Path, directory: Path) -> Iterator[str]:
    """Yield the page, section by section."""
    yield INTRODUCTION
    terminal.do("python3 -m venv venv && cd shop && clear")
    yield INSTALL
    terminal.do(f"pip install -q '../{wheel.name}[run]'")
    yield terminal.new_lines()
    yield ASK
    terminal.do(f"export WINK_MODEL=openai:gpt-5; wink run {shlex.quote(TASK)}", DECISION)
    yield terminal.new_lines()
    yield ANSWER
    terminal.type(REPLY)
    until = time.monotonic() + LIMIT
    while not spoken.is_waiting and time.monotonic() < until:
        time.sleep(0.1)
    subprocess.run(["pkill", "-9", "-f", f"{directory}/venv/bin/wink"], check=True)
    terminal.wait(PROMPT)
    yield terminal.new_lines()
    yield CONTINUE
    terminal.do("wink run --continue", DECISION)
    yield terminal.new_lines()
    yield COMMIT
    terminal.do("c")
    terminal.do("git log --stat -1")
    terminal.do("wink review")
    yield terminal.new_lines()
    yield NARROW
    terminal.resize(60)
    terminal.do(f"NO_COLOR=1 wink run {shlex.quote(QUESTION)}", "end.*:")
    terminal.do("")
    yield terminal.new_lines()
    terminal.resize(WIDTH)
    yield NO_TERMINAL
    terminal.do(f"wink run {shlex.quote(QUESTION)} > answer.txt 2> log.txt; clear")
    terminal.forget()
    terminal.do("cat answer.txt")
    terminal.do("cat log.txt")
    yield terminal.new_lines()
    yield JSON
    terminal.do(f"wink run --json {shlex.quote(QUESTION)} | cut -c 1-72")
    yield terminal.new_lines()


def create_project(path: Path) -> None:
    """Create the project with the bug, in git."""
    path.mkdir()
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path.parent / ".gitconfig").write_text(
        "[user]\nname = Ada\nemail = ada@example.org\n[init]\ndefaultBranch = main\n"
    )
    git = ["env", f"HOME={path.parent}", "git", "-C", str(path)]
    output_of([*git, "init", "-q"])
    output_of([*git, "add", "."])
    output_of([*git, "commit", "-qm", "Add the cart"])


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this project into the directory of the walk."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", directory]
    output_of([*pip, ROOT])
    [wheel] = directory.glob("*.whl")
    return wheel


if __name__ == "__main__":
    main()
