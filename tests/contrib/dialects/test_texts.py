"""What models read: each thing once, nothing about what is not there, no contradiction."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest

from tests.contrib.dialects.replay import Replay
from weakincentives.contrib.evaluation import EvalParams
from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.sections.base import tool_guidance
from weakincentives.contrib.tools.suite import HANDLERS, create_dialect, filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Tool, ToolResult

NAMES: tuple[DialectName, ...] = get_args(DialectName)
_FOREGROUND = (requests.ShellExecuteParams, requests.BashParams)
_BACKGROUND = (
    requests.ShellStartParams,
    requests.BashStartParams,
    requests.ShellPollParams,
    requests.ShellStopParams,
)
EXTRAS: dict[str, tuple[type[Any], ...]] = {
    "files": (),
    "commands": _FOREGROUND,
    "background": (*_FOREGROUND, *_BACKGROUND),
    "everything": (*_FOREGROUND, *_BACKGROUND, EvalParams, requests.RepoMapParams),
}


def answer(request: object, context: HandlerContext) -> ToolResult[object]:
    return ToolResult(repr(request), request)


@cache
def offered(dialect: DialectName, extras: str) -> dict[str, Tool[Any, Any]]:
    handlers = dict.fromkeys(EXTRAS[extras], answer)
    return {tool.name: tool for tool in filesystem_tools(dialect, extra_handlers=handlers)}


def guidance(dialect: DialectName, extras: str, *, is_new: bool) -> str:
    handlers = {**HANDLERS, **dict.fromkeys(EXTRAS[extras], answer)}
    return tool_guidance(create_dialect(dialect, handlers=handlers), (), is_new=is_new)


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for each in schema.values():
            yield from nodes(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from nodes(each)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dialect", NAMES)
def test_no_parameter_is_there_for_nothing(dialect: DialectName, extras: str):
    useless = re.compile(r"not (available|needed|supported)|ignored$|no effect|deprecated", re.I)
    for name, tool in offered(dialect, extras).items():
        for node in nodes(tool.schema):
            assert not useless.search(str(node.get("description", ""))), (name, node)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dialect", NAMES)
def test_what_may_be_omitted_is_not_null(dialect: DialectName, extras: str):
    for name, tool in offered(dialect, extras).items():
        for node in nodes(tool.schema):
            assert {"type": "null"} not in node.get("anyOf", []), name
            assert node.get("default", "") is not None, name


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dialect", NAMES)
def test_a_sentence_is_said_once(dialect: DialectName, extras: str):
    for name, tool in offered(dialect, extras).items():
        texts = [
            tool.description,
            *(str(each.get("description", "")) for each in nodes(tool.schema)),
        ]
        said = [each.strip() for text in texts for each in re.split(r"(?<=\.)\s", text)]
        long = [each for each in said if len(each) > 40]
        assert len(long) == len(set(long)), name


@pytest.mark.parametrize("dialect", NAMES)
def test_there_is_one_way_to_say_where_a_page_begins(dialect: DialectName):
    ways = {"offset", "start_line", "start", "lines", "first_line", "view_range"}
    for name, tool in offered(dialect, "files").items():
        properties: Any = tool.schema["properties"]
        assert len(ways & set(properties)) <= 1, name


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("dialect", NAMES)
def test_the_guidance_is_short_and_names_only_tools_that_are_there(
    dialect: DialectName, extras: str, is_new: bool
):
    text = guidance(dialect, extras, is_new=is_new)
    mentioned = set(re.findall(r"`([A-Za-z_]+)`", text))
    assert mentioned <= set(offered(dialect, extras))
    assert "in one reply" in text
    # in a project of the user's, what to delete and to copy is for the task to say
    assert ("copy large repositories" in text) == is_new
    assert is_new or "Delete" not in text
    assert len(text) < 1200


VENDOR_CALLS: tuple[tuple[DialectName, str, str, dict[str, object]], ...] = (
    ("wink", "files", "read_file", {"file_path": "a", "start_line": 2}),
    ("claude", "files", "Grep", {"pattern": "x", "-n": True, "output_mode": "content"}),
    ("claude", "commands", "Bash", {"command": "ls", "description": "List", "timeout": 5}),
    ("claude", "background", "BashOutput", {"bash_id": "1", "filter": "x"}),
    ("gemini", "files", "replace", {
        "file_path": "a", "old_string": "x", "new_string": "y", "instruction": "Say y."
    }),
    ("gemini", "commands", "run_shell_command", {"command": "ls", "description": "List"}),
    ("openai", "commands", "exec_command", {
        "cmd": "ls", "shell": "/bin/bash", "login": True, "tty": False, "yield_time_ms": 1000
    }),
    ("openai", "background", "write_stdin", {"session_id": 1, "max_output_tokens": 100}),
)  # fmt: skip


@pytest.mark.parametrize(("dialect", "extras", "name", "arguments"), VENDOR_CALLS)
def test_parameters_of_the_vendor_that_do_nothing_here_are_accepted_but_not_offered(
    dialect: DialectName, extras: str, name: str, arguments: dict[str, object]
):
    tool = offered(dialect, extras)[name]
    assert tool.parse(arguments)
    properties: Any = tool.schema["properties"]
    assert set(arguments) - set(properties)


@pytest.mark.parametrize(
    ("dialect", "extras", "name", "arguments", "said"),
    [
        ("claude", "files", "Grep", {"pattern": "x", "multiline": True}, "within one line"),
        (
            "claude",
            "commands",
            "Bash",
            {"command": "serve", "run_in_background": True},
            "cannot run in the background",
        ),
    ],
)
def test_what_cannot_be_done_is_answered_with_what_to_do_instead(
    dialect: DialectName, extras: str, name: str, arguments: dict[str, object], said: str
):
    tool = offered(dialect, extras)[name]
    handler: Any = tool.handler
    with pytest.raises(ValueError, match=said):
        handler.spec.decode(tool.parse(arguments), None)


def test_a_file_is_moved_with_the_default_dialect():
    files = InMemoryFilesystem()
    files.write("src/a.py", "x = 1\n")
    files.write("src/b.py", "y = 2\n")
    made = Replay("wink", files)
    moved = made.call("move_file", {"source": "src/a.py", "destination": "lib/deep/a.py"})
    assert moved.text == "Moved src/a.py to lib/deep/a.py"
    for name, arguments in (
        ("mv", {"from": "lib", "to": "library"}),
        ("rename_file", {"old_path": "library", "new_path": "pkg"}),
    ):
        assert made.call(name, arguments).result.success
    assert files.read("pkg/deep/a.py").content == "x = 1\n"
    refused = made.call("move_file", {"source": "src/b.py", "destination": "pkg/deep/a.py"})
    assert refused.text == (
        "Destination already exists, nothing was moved: 'pkg/deep/a.py'; to remove it first: rm"
        " with path='pkg/deep/a.py'"
    )
    assert files.read("src/b.py").content == "y = 2\n"
