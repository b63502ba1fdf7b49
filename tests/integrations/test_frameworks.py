"""What holds in every framework, run by its own agent with its own model for tests."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.same_task import STEPS, expected, tree_hash
from tests.integrations.frameworks import PLAYS, Play
from weakincentives.adapters import AllowedPaths, ToolCall
from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.tools import filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import Budget, BudgetTracker, ToolInvoked


@pytest.fixture(params=PLAYS)
def play(request: pytest.FixtureRequest) -> Play:
    return PLAYS[request.param]


@dataclass(frozen=True)
class Path:
    path: str


def half_done(params: Path, *, context: ToolContext) -> ToolResult[None]:
    assert context.filesystem is not None
    context.filesystem.write(params.path, "half")
    return ToolResult.error("It went wrong half-way: try the other way")


def broken(params: Path, *, context: ToolContext) -> ToolResult[None]:
    half_done(params, context=context)
    raise KeyError("bug")


def test_the_task_that_adapters_are_tested_with_ends_in_the_same_tree(play: Play):
    fs = InMemoryFilesystem()
    box = Toolbox(filesystem=fs)
    told = play(box, STEPS)
    assert (tree_hash(fs), told) == expected()
    calls = [call for step in STEPS for call in step]
    assert [each.call_id for each in box.session[ToolInvoked].all()] == [c.call_id for c in calls]


def test_the_calls_of_one_message_happen_in_their_order(play: Play):
    fs = InMemoryFilesystem()
    first = ToolCall("write_file", {"file_path": "a", "content": "0\n"}, "c0")
    edits = [
        ToolCall(
            "edit_file",
            {"file_path": "a", "old_string": f"{n}", "new_string": f"{n + 1}"},
            f"c{n + 1}",
        )
        for n in range(6)
    ]
    last = ToolCall("read_file", {"file_path": "a"}, "c7")
    told = play(Toolbox(filesystem=fs), [[first, *edits, last]])
    assert fs.read("a").content == "6\n"
    assert told[-1].endswith("\t6")


def test_a_failed_call_leaves_no_file_and_tells_the_model_why(play: Play):
    fs = InMemoryFilesystem()
    box = Toolbox([Tool("half", "Do half.", half_done)], filesystem=fs)
    told = play(box, [[ToolCall("half", {"path": "a"}, "c1")]])
    assert told == ["It went wrong half-way: try the other way"]
    assert not fs.exists("a")
    assert [each.success for each in box.session[ToolInvoked].all()] == [False]


def test_wrong_arguments_are_answered_by_us(play: Play):
    box = Toolbox(filesystem=InMemoryFilesystem())
    [told] = play(box, [[ToolCall("read_file", {"file_path": 7}, "c1")]])
    assert told.startswith("Invalid arguments for read_file: ")
    assert [each.success for each in box.session[ToolInvoked].all()] == [False]


def test_what_a_policy_forbids_is_told_and_has_not_happened(play: Play):
    fs = InMemoryFilesystem()
    box = Toolbox(filesystem=fs, policies=[AllowedPaths(["src/**"])])
    told = play(box, [[ToolCall("write_file", {"file_path": "a", "content": "x"}, "c1")]])
    assert told == ["a may not be accessed: allowed paths are src/**"]
    assert not fs.exists("a")


def test_a_spent_budget_ends_the_run(play: Play):
    fs = InMemoryFilesystem()
    box = Toolbox(filesystem=fs, budget_tracker=BudgetTracker(Budget(max_tool_calls=1)))
    steps = [[ToolCall("write_file", {"file_path": each, "content": ""}, each)] for each in "ab"]
    with pytest.raises(Exception, match="max_tool_calls"):
        play(box, steps)
    assert [each.path for each in fs.glob("**")] == ["a"]


def test_a_bug_in_a_tool_ends_the_run_and_leaves_no_file(play: Play):
    fs = InMemoryFilesystem()
    box = Toolbox([Tool("half", "Do half.", broken)], filesystem=fs)
    with pytest.raises(Exception, match="bug"):
        play(box, [[ToolCall("half", {"path": "a"}, "c1")]])
    assert not fs.exists("a")


@pytest.mark.parametrize("dialect", ["claude", "openai", "anthropic-editor"])
def test_other_dialects_work_too(play: Play, dialect: Any):
    calls = {
        "claude": ToolCall("Write", {"file_path": "a.txt", "content": "x\n"}, "c1"),
        "openai": ToolCall(
            "apply_patch",
            {"input": "*** Begin Patch\n*** Add File: a.txt\n+x\n*** End Patch\n"},
            "c1",
        ),
        "anthropic-editor": ToolCall(
            "str_replace_based_edit_tool",
            {"command": "create", "path": "a.txt", "file_text": "x\n"},
            "c1",
        ),
    }
    fs = InMemoryFilesystem()
    box = Toolbox(filesystem_tools(dialect), filesystem=fs)
    play(box, [[calls[dialect]]])
    assert fs.read("a.txt").content == "x\n"
