"""Read-only calls run in parallel; all others run in order."""

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, get_ident
from typing import Any

import pytest

from tests.adapters.workers import WRITE, ReadParams, files, prompt
from weakincentives.adapters import (
    FileSeen,
    ReadBeforeWrite,
    RunOptions,
    ScriptedAdapter,
    ToolCall,
    partial_response,
)
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import Budget, BudgetExceededError, ToolInvoked
from weakincentives.runtime.session import Session

_PATIENCE = 60.0  # seconds; only a test that fails waits so long

Handler = Callable[..., ToolResult[Any]]


def reading(handler: Handler, name: str = "look") -> Tool[Any, Any]:
    return Tool(name, "Look.", handler, read_only=True, params_type=ReadParams)


def looks(*paths: str) -> list[ToolCall]:
    return [ToolCall("look", {"path": path}, path) for path in paths]


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    made = InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)
    for path in "abc":
        made.write(path, f"content of {path}")
    return made


def test_reading_calls_of_one_message_run_at_the_same_time(fs: Filesystem):
    together = Barrier(3)

    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        together.wait(_PATIENCE)
        return ToolResult("", files(context).read(params.path).content)

    adapter = ScriptedAdapter([looks("c", "a", "b"), "done"])
    session = Session()
    response = adapter.evaluate(prompt(fs, tools=[reading(look)]), session=session)
    assert [each.text for each in response.tool_results] == [
        "content of c",
        "content of a",
        "content of b",
    ]
    assert [each.text for each in adapter.requests[1].messages[2:]] == [
        each.text for each in response.tool_results
    ]
    assert {each.call_id for each in session[ToolInvoked].all()} == {"a", "b", "c"}


def test_results_are_in_the_order_of_the_calls_whichever_ends_first(fs: Filesystem):
    last_has_ended = Event()

    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        if params.path == "b":
            last_has_ended.set()
        elif not last_has_ended.wait(_PATIENCE):
            return ToolResult.error("nobody came")
        return ToolResult(params.path)

    adapter = ScriptedAdapter([looks("a", "b"), "done"])
    response = adapter.evaluate(prompt(fs, tools=[reading(look)]), session=Session())
    assert [each.text for each in response.tool_results] == ["a", "b"]


def test_a_message_with_a_call_that_writes_runs_in_order(fs: Filesystem):
    threads: list[int] = []

    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        threads.append(get_ident())
        return ToolResult("", files(context).read(params.path).content)

    write = ToolCall("write_file", {"path": "a", "content": "new"})
    adapter = ScriptedAdapter([[*looks("a"), write, *looks("a")], "done"])
    response = adapter.evaluate(prompt(fs, tools=[reading(look), WRITE]), session=Session())
    assert [each.text for each in response.tool_results] == ["content of a", "wrote a", "new"]
    assert set(threads) == {get_ident()}


def test_no_more_run_at_once_than_allowed(fs: Filesystem):
    three = Barrier(3)

    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        try:
            three.wait(0.05)
        except BrokenBarrierError:
            return ToolResult("never three")
        return ToolResult("three at once")

    adapter = ScriptedAdapter([looks("a", "b", "c"), "done"])
    response = adapter.evaluate(
        prompt(fs, tools=[reading(look)]), session=Session(), options=RunOptions(max_parallel=2)
    )
    assert {each.text for each in response.tool_results} == {"never three"}


def test_one_that_fails_or_breaks_takes_nothing_from_the_others(fs: Filesystem):
    together = Barrier(3)

    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        together.wait(_PATIENCE)
        if params.path == "a":
            raise ZeroDivisionError("broken")
        return ToolResult("", files(context).read(params.path).content)

    adapter = ScriptedAdapter([looks("a", "gone", "c"), "done"])
    session = Session()
    response = adapter.evaluate(
        prompt(fs, tools=[reading(look), WRITE]),
        session=session,
        options=RunOptions(policies=[ReadBeforeWrite(reads=["look"])]),
    )
    broken, missing, read = response.tool_results
    assert "ZeroDivisionError: broken" in broken.text
    assert missing.text == "No such file or directory: gone"
    assert read.text == "content of c"
    assert [each.path for each in session[FileSeen].all()] == ["c"]


def test_one_that_writes_all_the_same_is_refused(fs: Filesystem):
    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        files(context).write(params.path, "changed")
        return ToolResult("changed it")

    adapter = ScriptedAdapter([looks("a", "b"), "done"])
    response = adapter.evaluate(prompt(fs, tools=[reading(look)]), session=Session())
    assert [each.result.success for each in response.tool_results] == [False, False]
    assert fs.read("a").content == "content of a"


def test_a_budget_stops_some_and_every_call_is_answered(fs: Filesystem):
    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("looked")

    adapter = ScriptedAdapter([looks("a", "b", "c"), "done"])
    with pytest.raises(BudgetExceededError) as caught:
        adapter.evaluate(
            prompt(fs, tools=[reading(look)]), session=Session(), budget=Budget(max_tool_calls=2)
        )
    partial = partial_response(caught.value)
    assert partial is not None
    assert [each.role for each in partial.messages] == ["user", "assistant", "tool", "tool", "tool"]


def test_calls_side_by_side_see_the_context_of_the_run(fs: Filesystem):
    whose: ContextVar[str] = ContextVar("whose", default="nobody's")
    whose.set("ours")
    together = Barrier(2)

    def look(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
        together.wait(_PATIENCE)
        return ToolResult(whose.get())

    adapter = ScriptedAdapter([looks("a", "b"), "done"])
    response = adapter.evaluate(prompt(fs, tools=[reading(look)]), session=Session())
    assert [each.text for each in response.tool_results] == ["ours", "ours"]
