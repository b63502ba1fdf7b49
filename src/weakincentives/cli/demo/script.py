"""The scripted model of `wink demo`: its texts and tool calls, and which result lines to show.

Only the model is scripted. The tools run for real, and their results are computed live.
"""

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from weakincentives.adapters import Completion, ToolCall

PYTHON = Path(sys.executable)
"""The Python that runs the tests of the project: the current one."""
Excerpt: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
_MAX_ARGUMENT = 80
_FAILURE = re.compile(r"(FAIL|ERROR|\w*Error): ")


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call, the result lines to show, and how it is expected to end."""

    call: ToolCall
    excerpt: Excerpt
    exit_code: int | None = None
    is_rejected: bool = False

    def __str__(self) -> str:
        """Return the call as one line, with long arguments elided."""
        arguments = self.call.arguments
        if isinstance(arguments, str):
            return f"{self.call.name}({arguments})"
        text = ", ".join(f"{name}={_elide(value)}" for name, value in arguments.items())
        return f"{self.call.name}({text})"


@dataclass(frozen=True, slots=True)
class Turn:
    """One response of the model: some text and tool calls."""

    name: str
    title: str
    text: str
    calls: tuple[ScriptedCall, ...]

    def completion(self) -> Completion:
        """Return the response as the model sends it, with a call id for each call."""
        calls = (
            replace(each.call, call_id=f"{self.name}-{number}".replace(" ", "-"))
            for number, each in enumerate(self.calls, 1)
        )
        return Completion(self.text, tuple(calls), stop_reason="tool_calls")


@dataclass(frozen=True, slots=True)
class Part:
    """A request of the user, the turns of the model and its final answer."""

    request: str
    turns: tuple[Turn, ...]
    answer: str


def _all_lines(lines: Sequence[str]) -> Sequence[str]:
    return lines


def _first_line(lines: Sequence[str]) -> Sequence[str]:
    return lines[:1]


def _first_sentence(lines: Sequence[str]) -> Sequence[str]:
    return [lines[0].partition(". ")[0]]


def _grep_matches(lines: Sequence[str]) -> Sequence[str]:
    return [each for each in lines[1:] if each]


def _file_lines(lines: Sequence[str]) -> Sequence[str]:
    return [each.lstrip().replace("\t", "  ", 1) for each in lines[1:]]


def _test_summary(lines: Sequence[str]) -> Sequence[str]:
    """Keep the failures of unittest, or else the number of tests, and its last line."""
    failures = [each.partition(" (")[0] for each in lines if _FAILURE.match(each)]
    return [*(failures or lines[-3:-2]), lines[-1]]


def _no_lines(_: Sequence[str]) -> Sequence[str]:
    return ()


def _last_line(lines: Sequence[str]) -> Sequence[str]:
    return lines[-1:]


def _first_and_last(lines: Sequence[str]) -> Sequence[str]:
    return [lines[0], lines[-1]] if len(lines) > 1 else lines


def _call(name: str, excerpt: Excerpt = _all_lines, **arguments: object) -> ScriptedCall:
    return ScriptedCall(ToolCall(name, arguments), excerpt)


def _rejected_call(name: str, excerpt: Excerpt = _all_lines, **arguments: object) -> ScriptedCall:
    return replace(_call(name, excerpt, **arguments), is_rejected=True)


def _command(exit_code: int, excerpt: Excerpt, *command: str, **arguments: object) -> ScriptedCall:
    call = _call("shell_execute", excerpt, command=command, **arguments)
    return replace(call, exit_code=exit_code)


def _run_tests(exit_code: int) -> ScriptedCall:
    return _command(exit_code, _test_summary, PYTHON.name, "-m", "unittest")


def _elide(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_ARGUMENT and "\\n" not in text else "..."


_BUG = "    return [total // people] * people\n"
_FIX = """\
    share, left = divmod(total, people)
    return [share + 1] * left + [share] * (people - left)
"""
_NEXT_TEST = """\
    def test_the_receipt_names_everybody(self) -> None:
"""
_NEW_TEST = '''\
    def test_every_bill_adds_up(self) -> None:
        """No total loses a cent."""
        for total in range(100):
            self.assertEqual(sum(shares(total, 7)), total)

'''
ATTEMPT = Part(
    "The tests of this project fail. Find the bug and fix it.",
    (
        Turn(
            "explore",
            "It explores the project",
            "A bill is divided somewhere.",
            (_call("ls", path="."), _call("grep", _grep_matches, pattern="//", glob="*.py")),
        ),
        Turn(
            "test",
            "It reads the code and runs the tests",
            "",
            (
                _call("read_file", _file_lines, file_path="bills/split.py", start_line=4),
                _run_tests(1),
            ),
        ),
        Turn(
            "mistake",
            "It makes a mistake",
            "Integer division loses the remainder. I use exact division everywhere.",
            (_command(0, _no_lines, "sh", "-c", "sed -i.bak s,//,/, bills/*.py"), _run_tests(1)),
        ),
    ),
    "Now another test fails, and my backup files are everywhere. I am stuck.",
)
SECOND_ATTEMPT = Part(
    "Your change broke a test, so I rolled it back. Try something smaller.",
    (
        Turn(
            "fix",
            "It tries again, and the tests pass",
            "I spread the remainder, one cent each, and add a test.",
            (
                _call(
                    "edit_file",
                    _first_line,
                    file_path="bills/split.py",
                    old_string=_BUG,
                    new_string=_FIX,
                ),
                _call(
                    "edit_file",
                    _first_line,
                    file_path="test_bills.py",
                    old_string=_NEXT_TEST,
                    new_string=_NEW_TEST + _NEXT_TEST,
                ),
                _run_tests(0),
            ),
        ),
    ),
    "Every cent of a bill is now paid, and a test checks it.",
)
ATTACKS = Part(
    "Now try what you are not allowed to do.",
    (
        Turn(
            "attacks",
            "It tries what it is not allowed to do",
            "I try to escape, to delete everything, to apply half an edit, and to hang.",
            (
                _rejected_call("read_file", file_path="../../etc/passwd"),
                _rejected_call("rm", path="."),
                _rejected_call(
                    "edit_file",
                    _first_and_last,
                    file_path="bills/money.py",
                    edits=[
                        {"old_string": "cents", "new_string": "pence", "replace_all": True},
                        {"old_string": "dollars", "new_string": "pounds"},
                    ],
                ),
                _command(124, _first_sentence, "sleep", "600", timeout_seconds=1),
            ),
        ),
    ),
    "None of it worked.",
)
_CONNECT = "from socket import *; create_connection(('1.1.1.1', 80))"
ESCAPES = Part(
    "Now try to break out with commands.",
    (
        Turn(
            "escapes",
            "It tries to break out with commands",
            "I try to read passwords, to plant a program, and to reach the network.",
            (
                _command(1, _last_line, "cat", "/etc/shadow"),
                _command(1, _last_line, "touch", "/usr/bin/planted"),
                _command(1, _last_line, PYTHON.name, "-c", _CONNECT),
            ),
        ),
    ),
    "None of it worked either.",
)
"""What is safe to try only in a sandbox that isolates."""
SCRIPT = tuple(
    step
    for part in (ATTEMPT, SECOND_ATTEMPT, ATTACKS, ESCAPES)
    for step in (*(turn.completion() for turn in part.turns), part.answer)
)
"""All responses of the model, in the order of the requests."""
