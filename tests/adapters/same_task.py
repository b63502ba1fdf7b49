"""One task for every adapter: write, edit, read and remove files with the real tools.

Whoever plays `STEPS` ends in the same tree, whatever it speaks to its provider.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from tests.adapters.workers import prompt
from weakincentives.adapters import (
    PromptResponse,
    ProviderAdapter,
    RetryPolicy,
    RunOptions,
    ScriptedAdapter,
    ToolCall,
)
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.runtime.session import Session

TREE = "5b706879f12d6d2b8f6de274a73e6702c9d3558926885b568989b728145da8ef"
"""What `tree_hash` says of the files in the end, by every adapter in every environment."""
ANSWER = "Done: the greeting is in German."
STEPS: tuple[tuple[ToolCall, ...], ...] = (
    (
        ToolCall("write_file", {"file_path": "a/hello.txt", "content": "hello\nworld\n"}, "c1"),
        ToolCall("write_file", {"file_path": "junk.txt", "content": "away\n"}, "c2"),
    ),
    (
        ToolCall(
            "edit_file",
            {"file_path": "a/hello.txt", "old_string": "hello", "new_string": "grüß dich"},
            "c3",
        ),
    ),
    (
        ToolCall("read_file", {"file_path": "a/hello.txt"}, "c4"),
        ToolCall("ls", {"path": "."}, "c5"),
    ),
    (
        ToolCall("rm", {"path": "junk.txt"}, "c6"),
        ToolCall("rm", {"path": "no such file"}, "c7"),
    ),
)


def tree_hash(fs: Filesystem) -> str:
    found = hashlib.sha256()
    for each in fs.glob("**"):
        found.update(repr((each.path, fs.read_bytes(each.path).content)).encode())
    return found.hexdigest()


def work(
    adapter: ProviderAdapter,
    fs: Filesystem,
    *,
    on_text: Callable[[str], None] | None = None,
    **options: Any,
) -> PromptResponse[Any]:
    """Work on the task, without waits between retries."""
    patience: dict[str, Any] = {"retries": RetryPolicy(sleep=lambda _: None), "max_steps": 10}
    return adapter.evaluate(
        prompt(fs, tools=filesystem_tools()),
        session=Session(),
        on_text=on_text,
        options=RunOptions(**(patience | options)),
    )


def expected() -> tuple[str, list[str]]:
    """Return the hash of the tree, and what the tools said, as a script has it."""
    fs = InMemoryFilesystem()
    response = work(ScriptedAdapter([*STEPS, ANSWER]), fs)
    assert tree_hash(fs) == TREE
    return TREE, [each.text for each in response.tool_results]
