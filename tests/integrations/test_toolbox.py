import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass

import pytest

from weakincentives.adapters import AllowedPaths, ToolCall
from weakincentives.contrib.integrations import Toolbox
from weakincentives.extras import describe_missing
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import PromptError, Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session

WAIT = 60  # for what comes at once


@dataclass(frozen=True)
class Name:
    name: str


class Gate:
    """A tool that writes a file, and stops there until it is let through."""

    def __init__(self) -> None:
        self.is_in = threading.Event()
        self.is_open = threading.Event()
        self.tool = Tool("pass", "Go through the gate.", self.handle)

    def handle(self, params: Name, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        context.filesystem.write(params.name, "in")
        self.is_in.set()
        assert self.is_open.wait(WAIT)
        return ToolResult("through")


async def inside(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.is_in.wait, WAIT)


def call(name: str) -> ToolCall:
    return ToolCall("pass", {"name": name}, name)


def test_a_call_is_told_to_the_session_that_was_given():
    session = Session()
    box = Toolbox(filesystem=InMemoryFilesystem(), session=session)
    box.execute(ToolCall("write_file", {"file_path": "a", "content": "x"}, "c1"))
    assert [each.paths for each in session[ToolInvoked].all()] == [("a",)]
    assert box.session is session


def test_without_a_session_there_is_one_all_the_same():
    box = Toolbox(filesystem=InMemoryFilesystem())
    box.execute(ToolCall("ls", {}, "c1"))
    assert [each.call_id for each in box.session[ToolInvoked].all()] == ["c1"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(PromptError, match="Two tools have the same name: 'pass'"):
        Toolbox([Gate().tool, Gate().tool])


def test_a_policy_is_asked():
    fs = InMemoryFilesystem()
    box = Toolbox(filesystem=fs, policies=[AllowedPaths(["src/**"])])
    outcome = box.execute(ToolCall("write_file", {"file_path": "a", "content": "x"}))
    assert outcome.text == "a may not be accessed: allowed paths are src/**"
    assert not fs.exists("a")


def test_the_event_loop_goes_on_while_a_call_runs():
    gate = Gate()
    box = Toolbox([gate.tool], filesystem=InMemoryFilesystem())

    async def run() -> str:
        running = asyncio.create_task(box.execute_async(call("a")))
        await inside(gate)
        gate.is_open.set()  # which nobody could do if the loop stood still
        return (await running).text

    assert asyncio.run(run()) == "through"


def test_calls_run_in_the_order_in_which_they_come():
    order: list[str] = []

    def note(params: Name, *, context: ToolContext) -> ToolResult[None]:
        order.append(params.name)
        return ToolResult("noted")

    box = Toolbox([Tool("pass", "Note it.", note, read_only=True)])
    names = [str(number) for number in range(50)]

    async def run() -> None:
        await asyncio.gather(*(box.execute_async(call(name)) for name in names))

    asyncio.run(run())
    assert order == names


def test_a_call_that_is_cancelled_while_it_runs_is_waited_for():
    gate, fs = Gate(), InMemoryFilesystem()
    box = Toolbox([gate.tool], filesystem=fs)

    async def run() -> bool:
        running = asyncio.create_task(box.execute_async(call("a")))
        await inside(gate)
        running.cancel()
        for _ in range(10):  # it has every chance to end
            await asyncio.sleep(0)
        was_over = running.done()
        gate.is_open.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return was_over

    assert not asyncio.run(run())
    assert [each.success for each in box.session[ToolInvoked].all()] == [True]
    assert fs.read("a").content == "in"


def test_a_call_that_is_cancelled_before_its_turn_does_not_run():
    gate, fs = Gate(), InMemoryFilesystem()
    box = Toolbox([gate.tool], filesystem=fs)

    async def run() -> None:
        first = asyncio.create_task(box.execute_async(call("first")))
        await inside(gate)
        second = asyncio.create_task(box.execute_async(call("second")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.is_open.set()
        await first

    asyncio.run(run())
    assert [each.call_id for each in box.session[ToolInvoked].all()] == ["first"]
    assert not fs.exists("second")


def test_a_bug_in_a_tool_is_raised_after_everything_is_as_it_was():
    def broken(params: Name, *, context: ToolContext) -> ToolResult[None]:
        assert context.filesystem is not None
        context.filesystem.write(params.name, "half")
        raise KeyError("bug")

    fs = InMemoryFilesystem()
    box = Toolbox([Tool("pass", "Fail.", broken)], filesystem=fs)
    with pytest.raises(KeyError, match="bug"):
        asyncio.run(box.execute_async(call("a")))
    assert not fs.exists("a")
    assert [each.error for each in box.session[ToolInvoked].all()] == ["KeyError: 'bug'"]


def test_a_tool_may_call_another_one_of_its_box():
    def nested(params: Name, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(box.execute(ToolCall("inner", {"name": params.name})).text)

    def inner(params: Name, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(f"inner {params.name}")

    box = Toolbox([Tool("pass", "Ask.", nested), Tool("inner", "Answer.", inner)])
    assert box.execute(call("a")).text == "inner a"


def test_what_is_known_in_the_context_of_the_caller_is_known_to_the_tool():
    who = ContextVar("who", default="nobody")
    box = Toolbox(
        [
            Tool(
                "pass",
                "Say who.",
                lambda params, *, context: ToolResult(who.get()),
                params_type=Name,
            )
        ]
    )

    async def run() -> str:
        who.set("me")
        return (await box.execute_async(call("a"))).text

    assert asyncio.run(run()) == "me"


def test_a_missing_extra_is_named_in_one_sentence():
    code = """
import importlib
import sys
for package in ("langchain_core", "agents", "pydantic_ai"):
    sys.modules[package] = None
for module in ("langchain", "openai_agents", "pydantic_ai"):
    try:
        importlib.import_module(f"weakincentives.contrib.integrations.{module}")
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        describe_missing("the tools for LangChain", "langchain"),
        describe_missing("the tools for OpenAI Agents", "openai-agents"),
        describe_missing("the tools for Pydantic AI", "pydantic-ai"),
    ]
