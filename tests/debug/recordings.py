"""Recorded sessions to look at: one with a bit of everything, one with branches, hostile ones."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from weakincentives.adapters import (
    AssistantMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from weakincentives.adapters.events import ContextCompacted, ModelResponded
from weakincentives.cli.run.result import TestsFinished
from weakincentives.filesystem import Filesystem, InMemoryFilesystem, Limits
from weakincentives.runtime import (
    CommandOutcome,
    PromptExecuted,
    PromptRendered,
    TokenUsage,
    ToolInvoked,
)
from weakincentives.runtime.events import ConversationStarted, MessageAdded
from weakincentives.runtime.session import Session, dump_session_tree
from weakincentives.runtime.timeline import SessionRecorder

KEY = "sk-proj-AbCdEf0123456789AbCdEf0123456789"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
)
NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": ["# Title of the notebook\n", "words"]},
            {
                "cell_type": "code",
                "source": "total = 1 + 1\n",
                "outputs": [
                    {"output_type": "stream", "text": ["printed by the cell\n"]},
                    {"data": {"image/png": base64.b64encode(PNG).decode()}},
                ],
            },
        ]
    }
)
APP = '"""Greets."""\n\n\ndef greet(name):\n    return "hello " + name\n'


@dataclass(frozen=True)
class Plan:
    """A slice of the user."""

    goal: str


class Recorded:
    """A session that is recorded as it goes, with the events that adapters emit."""

    def __init__(self, path: Path, files: Filesystem) -> None:
        self.files = files
        self.session = Session(tags={"session_id": path.name.removesuffix(".timeline")})
        self.recorder = SessionRecorder(self.session, path, files, durable=False)

    def begin(self, task: str) -> None:
        messages = (SystemMessage("You are careful."), UserMessage(f"## Task\n\n{task}"))
        self.session.dispatch(ConversationStarted(messages, self.session.session_id))
        self.session.dispatch(
            PromptRendered(prompt_ns="t", prompt_key="k", prompt_name="task", text=task)
        )

    def answer(self, text: str, *calls: str) -> None:
        made = tuple(ToolCall(each, {"path": "app.py"}, f"call-{each}") for each in calls)
        self.session.dispatch(MessageAdded(AssistantMessage(text, made), self.session.session_id))
        self.session.dispatch(
            ModelResponded(
                prompt_name="task",
                adapter="scripted",
                model="a-model",
                step=1,
                text=text,
                tool_calls=calls,
                usage=TokenUsage(1200, 34),
                duration_ms=1500,
            )
        )

    def call(
        self,
        tool: str,
        *paths: str,
        success: bool = True,
        result: str = "done",
        outcome: CommandOutcome | None = None,
        **params: object,
    ) -> None:
        message = ToolMessage(f"call-{tool}", tool, result, success)
        self.session.dispatch(MessageAdded(message, self.session.session_id))
        self.session.dispatch(
            ToolInvoked(
                tool=tool,
                params=params,
                paths=paths,
                success=success,
                result_message=result,
                error=None if success else result,
                duration_ms=12.5,
                command=outcome,
            )
        )

    def compact(self, summary: str = "") -> None:
        self.session.dispatch(
            ContextCompacted(
                prompt_name="task",
                adapter="scripted",
                model="a-model",
                step=4,
                reason="full",
                window=32_000,
                tokens_before=27_000,
                tokens_after=9_000,
                shortened=6,
                summarized=4 if summary else 0,
                summary=summary,
                usage=TokenUsage(900, 120) if summary else TokenUsage(),
            )
        )

    def end(self, text: str) -> None:
        self.session.dispatch(
            PromptExecuted(
                prompt_ns="t", prompt_key="k", prompt_name="task", model="a-model", text=text
            )
        )


def workspace() -> InMemoryFilesystem:
    """Return a project with files of every kind."""
    files = InMemoryFilesystem(limits=Limits(max_write_length=1_000_000))
    files.write("app.py", APP)
    files.write("README.md", "# A project\n\nWords.\n")
    files.write("src/deep/module.js", "export const answer = 42; // the answer\n")
    files.write("notes.ipynb", NOTEBOOK)
    files.write_bytes("picture.png", PNG)
    files.write_bytes("data.bin", bytes(range(256)) * 8)
    files.write("long.txt", "".join(f"line {number}\n" for number in range(1, 5_001)))
    files.write(".env", f"API_KEY={KEY}\n")
    return files


def record(directory: Path, name: str = "run") -> Path:
    """Record a session of eight steps with its dump; return the timeline."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.timeline"
    done = Recorded(path, workspace())
    files, session = done.files, done.session
    done.begin("Make the greeting kind.")
    done.answer("I read the file first.", "read_file")
    done.call("read_file", "app.py", path="app.py", result=APP)
    files.write("app.py", APP.replace("hello ", "dear "))
    files.write("docs/new.md", "# New\n")
    session[Plan].append(Plan("be kind"))
    done.call("edit_file", "app.py", path="app.py", old_string="hello ", new_string="dear ")
    done.call("rm", "README.md", success=False, result="Not permitted", path="README.md")
    files.delete("README.md")
    done.call("shell_execute", command="rm README.md", result=f"exit code 0\nkey {KEY}")
    done.answer("The greeting is kind now.")
    done.end("The greeting is kind now.")
    done.recorder.close()
    dump_session_tree(session, directory, files)
    return path


def record_commands(directory: Path) -> Path:
    """Record commands that failed and passed, and a compacted conversation."""
    path = directory / "commands.timeline"
    done = Recorded(path, workspace())
    done.begin("Fix the failing test.")
    failed = CommandOutcome(exit_code=1, tail="1 failed")
    done.call("shell_execute", command="pytest -q", result="exit code 1", outcome=failed)
    slow = CommandOutcome(exit_code=-9, signal="SIGKILL", timed_out=True)
    done.call("shell_execute", command="sleep 1000", result="timed out", outcome=slow)
    done.compact()
    done.compact("The test `test_mean` failed because of a division.\n\nNext: run it again.")
    colours = "\x1b[1;32m2 passed\x1b[0m, \x1b[33m1 warning\x1b[39m\x1b[2K\n"
    passed = CommandOutcome(exit_code=0, tail="2 passed, 1 warning", styled=colours)
    done.call("shell_execute", command="pytest -q", result="exit code 0", outcome=passed)
    done.end("It passes.")
    done.recorder.close()
    return path


def record_conversation(directory: Path) -> Path:
    """Record Markdown, output with colours, a long one, a patch, and tests that failed."""
    path = directory / "said.timeline"
    done = Recorded(path, workspace())
    done.begin("Say it.")
    done.answer(
        "1. **one**\n\n```python\nreturn 1\n```\n\n|a|\n|-|\n|1|\n\n[web](https://example.org/)"
        " [script](javascript:alert(1)) [file](file:///etc/passwd) ![picture](https://example.org/)",
    )
    failed = CommandOutcome(exit_code=1, tail="1 failed")
    done.call(
        "shell_execute",
        command="pytest -q --color=yes",
        result="\x1b[1;31mFAILED\x1b[0m test_mean\n\x1b]0;title\x07\x1b[2Kplain <b>",
        outcome=failed,
    )
    lines = "\n".join(f"line {number}" for number in range(30))
    done.call("read_file", "long.txt", file_path="long.txt", limit=30, result=lines)
    done.call("edit_file", "app.py", result="Edited\n@@ -1,1 +1,1 @@\n-old\n+new\n same")
    outcome = CommandOutcome(exit_code=2)
    done.session.bus.publish(TestsFinished({"command": "make check"}, outcome, "2 failed", 5.0))
    done.answer("It is said.")
    done.end("It is said.")
    done.recorder.close()
    return path


def record_branches(directory: Path) -> Path:
    """Record a session that was continued at its third step; return the timeline."""
    path = record(directory, "branches")
    files = workspace()
    session = Session()
    with SessionRecorder(session, path, files, at=4, branch="other", durable=False):
        files.write("app.py", APP.replace("hello ", "good day "))
        session.dispatch(ToolInvoked(tool="edit_file", paths=("app.py",), duration_ms=3))
    return path
