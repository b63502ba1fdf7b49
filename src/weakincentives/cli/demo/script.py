"""The part of the model in `wink demo`: what it says and calls, and what is shown of the answers.

Nothing else is written down. What the tools answer, they answer when the demo runs.
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
"""What runs the tests of the project: the Python that runs this."""
Excerpt: TypeAlias = Callable[[Sequence[str]], Sequence[str]]
_MAX_ARGUMENT = 48
_REASON = re.compile(r"(FAIL|ERROR|\w*Error): ")


@dataclass(frozen=True, slots=True)
class Act:
    """A call of a tool, which lines of the answer are shown, and how it has to end."""

    call: ToolCall
    excerpt: Excerpt
    exit_code: int | None = None
    is_refused: bool = False

    def __str__(self) -> str:
        """Return the call as one line, without arguments that are long."""
        arguments = self.call.arguments
        if isinstance(arguments, str):
            return f"{self.call.name}({arguments})"
        told = ", ".join(f"{name}={_short(value)}" for name, value in arguments.items())
        return f"{self.call.name}({told})"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model does in one step: some words, and calls of tools."""

    name: str
    title: str
    says: str
    acts: tuple[Act, ...]

    def completion(self) -> Completion:
        """Return it as the model sends it; the id of a call tells which one it is."""
        calls = (
            replace(act.call, call_id=f"{self.name}-{number}".replace(" ", "-"))
            for number, act in enumerate(self.acts, 1)
        )
        return Completion(self.says, tuple(calls), stop_reason="tool_calls")


@dataclass(frozen=True, slots=True)
class Part:
    """What somebody asks, the turns of the model, and its answer in the end."""

    asked: str
    turns: tuple[Turn, ...]
    answer: str


def _everything(lines: Sequence[str]) -> Sequence[str]:
    return lines


def _first(lines: Sequence[str]) -> Sequence[str]:
    return lines[:1]


def _sentence(lines: Sequence[str]) -> Sequence[str]:
    return [lines[0].partition(". ")[0]]


def _matches(lines: Sequence[str]) -> Sequence[str]:
    return [each for each in lines[1:] if each]


def _page(lines: Sequence[str]) -> Sequence[str]:
    return [each.lstrip().replace("\t", "  ", 1) for each in lines[1:]]


def _reasons(lines: Sequence[str]) -> Sequence[str]:
    """Keep what unittest says is wrong, or else how many tests there are, and its last line."""
    told = [each.partition(" (")[0] for each in lines if _REASON.match(each)]
    return [*(told or lines[-3:-2]), lines[-1]]


def _nothing(_: Sequence[str]) -> Sequence[str]:
    return ()


def _ending(lines: Sequence[str]) -> Sequence[str]:
    return [lines[0], lines[-1]] if len(lines) > 1 else lines


def _act(name: str, excerpt: Excerpt = _everything, **arguments: object) -> Act:
    return Act(ToolCall(name, arguments), excerpt)


def _refused(name: str, excerpt: Excerpt = _everything, **arguments: object) -> Act:
    return replace(_act(name, excerpt, **arguments), is_refused=True)


def _run(exit_code: int, excerpt: Excerpt, *command: str, **arguments: object) -> Act:
    ran = _act("shell_execute", excerpt, command=command, **arguments)
    return replace(ran, exit_code=exit_code)


def _tests(exit_code: int) -> Act:
    return _run(exit_code, _reasons, PYTHON.name, "-m", "unittest")


def _short(value: object) -> str:
    told = json.dumps(value)
    return told if len(told) <= _MAX_ARGUMENT and "\\n" not in told else "..."


_BUG = "    return [total // people] * people\n"
_REPAIR = """\
    share, left = divmod(total, people)
    return [share + 1] * left + [share] * (people - left)
"""
_BEFORE_TEST = """\
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
            "It looks around",
            "A bill is divided somewhere.",
            (_act("ls", path="."), _act("grep", _matches, pattern="//", glob="*.py")),
        ),
        Turn(
            "test",
            "It reads the place, and runs the tests",
            "",
            (_act("read_file", _page, file_path="bills/split.py", start_line=4), _tests(1)),
        ),
        Turn(
            "mistake",
            "It makes a mistake",
            "Whole numbers lose the rest. I divide exactly, everywhere.",
            (_run(0, _nothing, "sh", "-c", "sed -i.bak s,//,/, bills/*.py"), _tests(1)),
        ),
    ),
    "Now another test fails, and my backups lie everywhere. I am stuck.",
)
SECOND_ATTEMPT = Part(
    "Your change broke a test, so it is taken back. Try something smaller.",
    (
        Turn(
            "fix",
            "It tries again, and the tests pass",
            "I hand out what is left over, one cent each, and add a test.",
            (
                _act(
                    "edit_file",
                    _first,
                    file_path="bills/split.py",
                    old_string=_BUG,
                    new_string=_REPAIR,
                ),
                _act(
                    "edit_file",
                    _first,
                    file_path="test_bills.py",
                    old_string=_BEFORE_TEST,
                    new_string=_NEW_TEST + _BEFORE_TEST,
                ),
                _tests(0),
            ),
        ),
    ),
    "Every cent of a bill is paid, and a test says so.",
)
MISCHIEF = Part(
    "And what can you not do here?",
    (
        Turn(
            "attacks",
            "It tries what it must not do",
            "I try to get out, to remove all, to change by halves, and to hang.",
            (
                _refused("read_file", file_path="../../etc/passwd"),
                _refused("rm", path="."),
                _refused(
                    "edit_file",
                    _ending,
                    file_path="bills/money.py",
                    edits=[
                        {"old_string": "cents", "new_string": "pence", "replace_all": True},
                        {"old_string": "dollars", "new_string": "pounds"},
                    ],
                ),
                _run(124, _sentence, "sleep", "600", timeout_seconds=1),
            ),
        ),
    ),
    "I got nowhere.",
)
SCRIPT = tuple(
    step
    for part in (ATTEMPT, SECOND_ATTEMPT, MISCHIEF)
    for step in (*(turn.completion() for turn in part.turns), part.answer)
)
"""All that the model says, in the order in which it is asked."""
