"""The loop: a prompt, real tools, and a model that plays a script."""

from pathlib import Path

import pytest

from tests.adapters.workers import READ, TOOLS, WRITE, Answer, prompt
from weakincentives.adapters import (
    AssistantMessage,
    Completion,
    ModelRefusedError,
    ModelResponded,
    RunOptions,
    ScriptedAdapter,
    StepLimitError,
    StopReason,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    partial_response,
)
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    Budget,
    Deadline,
    PromptExecuted,
    PromptRendered,
    TokenUsage,
    ToolInvoked,
)
from weakincentives.runtime.session import Session


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    return InMemoryFilesystem() if request.param == "memory" else HostFilesystem(tmp_path)


def write(path: str, content: str = "x") -> ToolCall:
    return ToolCall("write_file", {"path": path, "content": content})


def read(path: str) -> ToolCall:
    return ToolCall("read_file", {"path": path})


def test_tools_run_on_the_prompts_workspace_until_there_is_an_answer(fs: Filesystem):
    adapter = ScriptedAdapter([write("a.txt", "hello"), read("a.txt"), "It says hello."])
    response = adapter.evaluate(prompt(fs), session=Session())
    assert fs.read("a.txt").content == "hello"
    assert (response.text, response.output, response.steps) == ("It says hello.", None, 3)
    assert [each.text for each in response.tool_results] == ["wrote a.txt", "hello"]
    assert [each.role for each in response.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


def test_the_model_is_asked_with_all_that_was_said_and_with_the_tools():
    adapter = ScriptedAdapter([write("a"), "done"])
    task = prompt(InMemoryFilesystem())
    adapter.evaluate(
        task, session=Session(), options=RunOptions(max_tokens=77, temperature=0.5, max_steps=3)
    )
    first, second = adapter.requests
    assert first.messages == (UserMessage(task.render().text),)
    assert [tool.name for tool in first.tools] == [tool.name for tool in TOOLS]
    assert first.tools[0].schema == READ.schema
    assert (first.output, first.max_tokens, first.temperature) == (None, 77, 0.5)
    assert second.messages[1] == AssistantMessage(
        "", (ToolCall("write_file", {"path": "a", "content": "x"}, "call-1-1"),)
    )
    assert second.messages[2] == ToolMessage("call-1-1", "write_file", "wrote a")


def test_the_extras_of_a_provider_go_back_as_they_came():
    extras = {"signature": "abc"}
    adapter = ScriptedAdapter([Completion("", (read("gone"),), extras=extras), "done"])
    adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    said = adapter.requests[1].messages[1]
    assert isinstance(said, AssistantMessage)
    assert said.extras == extras


def test_usage_is_added_up():
    adapter = ScriptedAdapter(
        [
            Completion("", (write("a"),), usage=TokenUsage(10, 5, 2)),
            Completion("done", usage=TokenUsage(20, 7, 8)),
        ]
    )
    response = adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert response.usage == TokenUsage(30, 12, 10)


def test_everything_is_told_on_the_bus():
    session = Session()
    told: list[object] = []
    session.bus.subscribe(object, told.append)
    adapter = ScriptedAdapter(
        [Completion("I write.", (write("a"),), usage=TokenUsage(3, 4)), "done"],
        name="openai",
        model="m",
    )
    adapter.evaluate(prompt(InMemoryFilesystem()), session=session)
    kinds = [type(each).__name__ for each in told]
    assert kinds == [
        "ConversationStarted",
        "PromptRendered",
        "MessageAdded",
        "ModelResponded",
        "ToolStarted",
        "FileWritten",
        "MessageAdded",
        "ToolInvoked",
        "MessageAdded",
        "ModelResponded",
        "PromptExecuted",
    ]
    rendered = session[PromptRendered].latest()
    assert rendered is not None
    assert (rendered.adapter, rendered.tools) == ("openai", ("read_file", "write_file", "break"))
    responded = told[3]
    assert isinstance(responded, ModelResponded)
    assert (responded.step, responded.text, responded.tool_calls) == (
        1,
        "I write.",
        ("write_file",),
    )
    assert responded.usage == TokenUsage(3, 4)
    executed = session[PromptExecuted].latest()
    assert executed is not None
    assert (executed.success, executed.text, executed.tool_calls) == (True, "done", 1)
    assert (executed.adapter, executed.model, executed.usage) == ("openai", "m", TokenUsage(3, 4))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            ToolCall("fly", {}),
            "Unknown tool: 'fly'; available tools: break, read_file, write_file",
        ),
        (ToolCall("read_file", "{path"), "Invalid arguments for read_file: Not JSON"),
        (ToolCall("read_file", {"pth": "a"}), "Unknown field 'pth', did you mean 'path'?"),
        (ToolCall("read_file", '{"path": 5}'), "Field 'path': expected str, got int"),
        (ToolCall("read_file", "[]"), "Invalid arguments for read_file"),
        (ToolCall("read_file", {"path": "gone"}), "No such file or directory: gone"),
    ],
)
def test_a_wrong_call_is_answered_so_that_the_model_can_mend_it(call: ToolCall, said: str):
    fs = InMemoryFilesystem()
    fs.write("there", "content")
    adapter = ScriptedAdapter([call, read("there"), "done"])
    response = adapter.evaluate(prompt(fs), session=Session())
    wrong, right = response.tool_results
    assert (wrong.result.success, right.text) == (False, "content")
    answer = adapter.requests[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert not answer.success
    assert said in answer.text


def test_a_tool_that_breaks_is_undone_and_answered_and_later_calls_run(fs: Filesystem):
    session = Session()
    broken = ToolCall("break", {"path": "b", "content": "x"})
    adapter = ScriptedAdapter([[write("a"), broken, write("c")], "done"])
    response = adapter.evaluate(prompt(fs), session=session)
    assert [each.result.success for each in response.tool_results] == [True, False, True]
    assert "ZeroDivisionError: broken" in response.tool_results[1].text
    assert [fs.exists(path) for path in "abc"] == [True, False, True]
    invoked = session[ToolInvoked].all()[1]
    assert invoked.error == "ZeroDivisionError: broken"


def test_a_model_that_never_ends_is_stopped_and_what_it_did_is_told(fs: Filesystem):
    session = Session()
    adapter = ScriptedAdapter([write(f"{number}") for number in range(9)])
    with pytest.raises(StepLimitError, match="no answer in 3 steps and 3 tool calls") as caught:
        adapter.evaluate(prompt(fs), session=session, options=RunOptions(max_steps=3))
    partial = partial_response(caught.value)
    assert partial is not None
    assert (partial.steps, len(partial.tool_results)) == (3, 3)
    assert partial.messages[-1] == ToolMessage("call-3-1", "write_file", "wrote 2")
    assert sorted(each.path for each in fs.list()) == ["0", "1", "2"]
    executed = session[PromptExecuted].latest()
    assert executed is not None
    assert (executed.success, executed.tool_calls) == (False, 3)
    assert (executed.error or "").startswith("StepLimitError: ")


def test_a_model_that_calls_only_unknown_tools_is_stopped():
    adapter = ScriptedAdapter([ToolCall("fly", {})] * 5)
    with pytest.raises(StepLimitError):
        adapter.evaluate(prompt(), session=Session(), options=RunOptions(max_steps=5))
    assert adapter.remaining == 0


def test_a_refusal_is_no_answer():
    adapter = ScriptedAdapter([Completion("I will not.", stop_reason="refused")])
    with pytest.raises(ModelRefusedError, match=r"refused to answer: 'I will not\.'"):
        adapter.evaluate(prompt(), session=Session())


def test_a_refusal_runs_no_tools():
    fs = InMemoryFilesystem()
    adapter = ScriptedAdapter([Completion("No.", (write("a"),), stop_reason="refused")])
    with pytest.raises(ModelRefusedError) as caught:
        adapter.evaluate(prompt(fs), session=Session())
    assert not fs.exists("a")
    partial = partial_response(caught.value)
    assert partial is not None
    assert isinstance(partial.messages[-1], ToolMessage)


def test_a_pause_is_gone_on_with():
    adapter = ScriptedAdapter([Completion("wait", stop_reason="paused"), "done"])
    assert adapter.evaluate(prompt(), session=Session()).text == "done"
    assert adapter.requests[1].messages[-1] == AssistantMessage("wait")


def test_an_answer_that_is_cut_off_is_continued_and_comes_in_one_piece(fs: Filesystem):
    parts = (Completion(each, stop_reason="length") for each in ("once ", "upon "))
    adapter = ScriptedAdapter([*parts, "a time"])
    response = adapter.evaluate(prompt(fs), session=Session())
    assert (response.text, response.stop_reason, response.steps) == ("once upon a time", "end", 3)
    asked = [each.text for each in response.messages if isinstance(each, UserMessage)]
    assert len(asked) == 3
    assert "cut off at the output limit" in asked[1]


def test_an_answer_without_end_is_given_up_and_a_limit_of_the_caller_is_kept(fs: Filesystem):
    cut = Completion("more ", stop_reason="length")
    response = ScriptedAdapter([cut] * 9).evaluate(prompt(fs), session=Session())
    assert (response.text, response.stop_reason, response.steps) == ("more " * 4, "length", 4)
    options = RunOptions(max_tokens=5)
    response = ScriptedAdapter([cut]).evaluate(prompt(fs), session=Session(), options=options)
    assert (response.text, response.stop_reason) == ("more ", "length")


@pytest.mark.parametrize("stop", ["end", "other", "tool_calls"])
def test_an_empty_answer_is_asked_for_again(fs: Filesystem, stop: StopReason):
    empty = Completion(" \n", stop_reason=stop)
    response = ScriptedAdapter([empty, write("a"), empty, "Done."]).evaluate(
        prompt(fs), session=Session()
    )
    assert response.text.strip() == "Done."
    assert fs.exists("a")
    response = ScriptedAdapter([empty] * 9).evaluate(prompt(fs), session=Session())
    assert (response.text.strip(), response.steps) == ("", 4)


def test_text_is_passed_on_as_it_arrives():
    pieces: list[str] = []
    adapter = ScriptedAdapter([Completion("I read. ", (read("a"),)), "It is\nnot there."])
    adapter.evaluate(prompt(InMemoryFilesystem()), session=Session(), on_text=pieces.append)
    assert pieces == ["I ", "read. ", "It ", "is\n", "not ", "there."]


def test_what_the_callback_raises_ends_the_run():
    def broken(_: str) -> None:
        raise BrokenPipeError("nobody reads")

    adapter = ScriptedAdapter(["hello", "again"])
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        adapter.evaluate(prompt(), session=Session(), on_text=broken)
    assert adapter.remaining == 1


def test_a_conversation_goes_on_where_it_ended():
    adapter = ScriptedAdapter(["one", "two"])
    task, session = prompt(), Session()
    first = adapter.evaluate(task, session=session)
    second = adapter.evaluate(
        task, session=session, messages=(*first.messages, UserMessage("and then?"))
    )
    assert [each.text for each in second.messages[1:]] == ["one", "and then?", "two"]
    assert adapter.requests[1].messages[0] == UserMessage(task.render().text)


def test_with_messages_of_its_own_the_prompt_is_the_system_message():
    adapter = ScriptedAdapter(["hi"])
    task = prompt()
    response = adapter.evaluate(task, session=Session(), messages=[UserMessage("hello")])
    assert adapter.requests[0].messages == (
        SystemMessage(task.render().text),
        UserMessage("hello"),
    )
    assert [each.role for each in response.messages] == ["user", "assistant"]


def test_a_system_message_beside_the_prompt_is_refused():
    with pytest.raises(ValueError, match="the prompt is the system message"):
        ScriptedAdapter(["hi"]).evaluate(
            prompt(), session=Session(), messages=[SystemMessage("obey"), UserMessage("hello")]
        )


def test_calls_without_an_id_or_with_the_same_one_get_one_of_their_own():
    calls = (ToolCall("read_file", {}, "same"), ToolCall("read_file", {}, "same"))

    class Forgetful(ScriptedAdapter):
        def complete(self, request, *, on_text=None, timeout=None):
            completion = super().complete(request, on_text=on_text, timeout=timeout)
            return Completion(completion.text, completion.tool_calls and (*calls, ToolCall("x")))

    adapter = Forgetful([ToolCall("x"), "done"])
    response = adapter.evaluate(prompt(), session=Session())
    ids = [each.call_id for each in response.messages if isinstance(each, ToolMessage)]
    assert ids == ["same", "call-2", "call-3"]


def test_tools_see_the_run_that_they_are_part_of():
    seen: list[ToolContext] = []

    def look(params: Answer, *, context: ToolContext) -> ToolResult[str]:
        seen.append(context)
        return ToolResult("looked")

    fs, session = InMemoryFilesystem(), Session()
    task = prompt(fs, tools=[Tool("look", "Look.", look), WRITE])
    adapter = ScriptedAdapter([ToolCall("look", {"name": "a", "count": 1}, "id-1"), "done"])
    deadline = Deadline.after(3600)
    adapter.evaluate(task, session=session, deadline=deadline, budget=Budget(max_tool_calls=1))
    (context,) = seen
    assert context.deadline is deadline
    assert context.budget_tracker is not None
    assert context.budget_tracker.tool_calls == 1
    assert context.filesystem is fs
    assert context.session is session
    assert context.adapter is adapter
    assert context.prompt is task
    assert context.rendered_prompt is not None
    assert context.rendered_prompt.text == task.render().text
    assert getattr(context.rendered_prompt, "deadline", None) is deadline
    assert context.call_id == "id-1"


def test_parameters_are_bound_before_or_given_with_the_run():
    section = MarkdownSection[Answer](title="Task", template="Find ${count} ${name}.")
    task = Prompt(ns="tests", key="params", sections=[section])
    adapter = ScriptedAdapter(["one", "two"])
    adapter.evaluate(task.bind(Answer("cats", 3)), session=Session())
    adapter.evaluate(task, Answer("dogs", 2), session=Session())
    texts = [each.messages[0].text for each in adapter.requests]
    assert ("Find 3 cats." in texts[0], "Find 2 dogs." in texts[1]) == (True, True)


def test_an_interrupt_in_the_model_is_told_and_raised():
    session = Session()
    adapter = ScriptedAdapter([write("a"), KeyboardInterrupt()])
    fs = InMemoryFilesystem()
    with pytest.raises(KeyboardInterrupt) as caught:
        adapter.evaluate(prompt(fs), session=session)
    assert fs.exists("a")
    partial = partial_response(caught.value)
    assert partial is not None
    assert partial.steps == 1
    executed = session[PromptExecuted].latest()
    assert executed is not None
    assert not executed.success


def test_an_error_that_ended_no_run_has_no_partial_response():
    assert partial_response(ValueError("x")) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_steps": 0},
        {"output_retries": -1},
        {"max_parallel": 0},
        {"max_tokens": 0},
        {"request_timeout": 0},
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RunOptions(**wrong)  # pyright: ignore[reportArgumentType]  # numbers are numbers


@pytest.mark.parametrize("fails", [False, True])
def test_a_tool_may_run_an_agent_of_its_own_and_is_undone_with_it(fs: Filesystem, fails: bool):
    inner = ScriptedAdapter([write("inner", "x"), [read("inner"), read("inner")], "inner done"])

    def delegate(params: Answer, *, context: ToolContext) -> ToolResult[str]:
        response = inner.evaluate(
            prompt(fs), session=context.session, budget_tracker=context.budget_tracker
        )
        result = ToolResult(response.text)
        return ToolResult.error("not good enough") if fails else result

    adapter = ScriptedAdapter([ToolCall("delegate", {"name": "a", "count": 1}), "done"])
    session = Session()
    response = adapter.evaluate(
        prompt(fs, tools=[Tool("delegate", "Delegate.", delegate)]),
        session=session,
        budget=Budget(max_tool_calls=4),
    )
    assert fs.exists("inner") is not fails
    assert response.tool_results[0].text == ("not good enough" if fails else "inner done")
    assert [each.text for each in inner.requests[-1].messages[-2:]] == ["x", "x"]
    assert [each.tool for each in session[ToolInvoked].all()][-1] == "delegate"
