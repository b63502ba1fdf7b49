import base64
import json
from pathlib import Path

import pytest

from tests.adapters.anthropic.server import KEY
from tests.adapters.claude_code.server import Desk, asked, impatient, ours, says
from tests.adapters.same_task import ANSWER, STEPS, expected, tree_hash, work
from tests.adapters.workers import TOOLS, Answer
from weakincentives.adapters import (
    AllowedPaths,
    Approval,
    AssistantMessage,
    InvalidRequestError,
    ModelResponded,
    RunOptions,
    ToolCall,
    ToolMessage,
    UserMessage,
    create_adapter,
)
from weakincentives.adapters.claude_code.adapter import FILE_TOOLS, ClaudeAgentAdapter
from weakincentives.contrib.tools import ClaudeAgentWorkspaceSection
from weakincentives.filesystem import FileDeleted, FileWritten, InMemoryFilesystem
from weakincentives.prompt import Media, Prompt
from weakincentives.runtime import PromptExecuted, PromptRendered, TokenUsage
from weakincentives.runtime.session import Session

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    root = tmp_path / "workspace"
    root.mkdir()
    return Desk(root, TOOLS)


def test_the_same_task_ends_in_the_same_tree() -> None:
    fs = InMemoryFilesystem()
    with asked(*(says("", *map(ours, step)) for step in STEPS), says(ANSWER)) as (adapter, server):
        response = work(adapter, fs)
    assert (tree_hash(fs), [each.text for each in response.tool_results]) == expected()
    assert response.text == ANSWER
    assert {each["name"] for each in server.last["tools"]} >= {"mcp__wink__read_file"}
    assert not {each["name"] for each in server.last["tools"]} & set(FILE_TOOLS)


def test_its_own_tools_work_in_the_workspace_and_are_told_of(desk: Desk) -> None:
    text: list[str] = []
    first = desk.call("Write", "a.txt", "c1", content="hello\n")
    second = desk.call("Edit", "a.txt", "c2", old_string="hello", new_string="bye")
    last = ours(ToolCall("write_file", {"path": "b.txt", "content": "x"}, "c3"))
    answers = (says("Let me write.", first), says("", second, last), says("Done."))
    with asked(*answers) as (adapter, server):
        response = desk.work(adapter, on_text=text.append)

    assert (desk.root / "a.txt").read_text() == "bye\n"
    assert desk.fs.read("b.txt").content == "x"
    assert "".join(text) == "Let me write.Done." == f"Let me write.{response.text}"
    assert [type(each) for each in response.messages] == [
        UserMessage,
        AssistantMessage,
        ToolMessage,
        AssistantMessage,
        ToolMessage,
        ToolMessage,
        AssistantMessage,
    ]
    assert response.usage == TokenUsage(60, 21, 36, 9)
    assert (response.steps, response.stop_reason) == (3, "end")
    told = [(each.tool, each.success, each.paths) for each in desk.invoked()]
    assert told == [
        ("Write", True, ("a.txt",)),
        ("Edit", True, ("a.txt",)),
        ("write_file", True, ("b.txt",)),
    ]
    before_edit = desk.invoked()[1].snapshot_ref
    assert before_edit is not None
    assert before_edit != desk.invoked()[0].snapshot_ref
    [rendered] = desk.session[PromptRendered].all()
    assert rendered.adapter == "claude-agent"
    [executed] = desk.session[PromptExecuted].all()
    assert (executed.success, executed.tool_calls, executed.text) == (True, 3, "Done.")
    assert [each.tool_calls for each in desk.told(ModelResponded)] == [
        ("Write",),
        ("Edit", "write_file"),
        (),
    ]
    assert server.requests[0].headers["x-api-key"] == KEY


def test_events_of_files_are_told_as_for_our_tools(desk: Desk) -> None:
    seen: list[object] = []
    for kind in (FileWritten, FileDeleted):
        desk.session.bus.subscribe(kind, seen.append)
    command = f"mv {desk.root}/a.txt {desk.root}/c.txt"
    with asked(
        says("", desk.call("Write", "a.txt", "c1", content="hello\n")),
        says("", ToolCall("Bash", {"command": command}, "c2")),
        says("Done."),
        native_tools=(*FILE_TOOLS, "Bash"),
    ) as (adapter, _):
        desk.work(adapter)
    assert [(type(each), each.path) for each in seen] == [  # pyright: ignore[reportAttributeAccessIssue] # both have one
        (FileWritten, "a.txt"),
        (FileDeleted, "a.txt"),
        (FileWritten, "c.txt"),
    ]
    assert desk.invoked()[1].paths == ("a.txt", "c.txt")


def test_what_is_wrong_with_a_call_is_told_and_nothing_outside_is_reached(
    desk: Desk, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("top secret")
    (desk.root / "link").symlink_to(tmp_path / "secret")
    calls = (
        desk.call("Read", "../secret", "c1"),
        desk.call("Read", "link", "c2"),
        desk.call("Write", "../new", "c3", content="x"),
        ToolCall("Bash", {"command": "touch run"}, "c4"),
        ours(ToolCall("read_file", {"wrong": 1}, "c5")),
        ToolCall("Grep", {"pattern": "secret", "path": str(tmp_path)}, "c6"),
        ours(ToolCall("read_file", {"path": "x"}, "c7")),
    )
    with asked(says("", *calls, cut="c7"), says("I give up.")) as (adapter, server):
        response = desk.work(adapter)
    results = [each.text for each in response.messages if isinstance(each, ToolMessage)]
    assert len(results) == 7
    assert not any("top secret" in each for each in results)
    assert "No such tool" in results[3]
    assert "Invalid arguments for read_file" in results[4]
    assert "could not be parsed as JSON" in results[6]
    assert "top secret" not in json.dumps(server.last)
    assert [each.success for each in desk.invoked()] == [False] * 7
    assert sorted(each.name for each in tmp_path.iterdir()) == ["secret", "workspace"]


def test_policies_bind_its_own_tools_too(desk: Desk) -> None:
    shown: list[object] = []

    def refuse(request: object) -> bool:
        shown.append(request)
        return "keep" in str(request)

    policies = [AllowedPaths(deny=["**/*.lock"]), Approval(refuse)]
    with asked(
        says("", desk.call("Write", "a.lock", "c1", content="1")),
        says("", desk.call("Write", "bad.txt", "c2", content="2")),
        says("", desk.call("Write", "keep.txt", "c3", content="3")),
        says("Done."),
    ) as (adapter, _):
        response = desk.work(adapter, options=impatient(policies=policies))
    assert [each.name for each in desk.root.iterdir()] == ["keep.txt"]
    assert [each.success for each in desk.invoked()] == [False, False, True]
    assert "a.lock may not be accessed" in response.tool_results[0].text
    assert response.tool_results[1].text == "The change was not approved"
    assert len(shown) == 2
    assert len(desk.told(ModelResponded)) == 4


def test_nothing_of_the_machine_changes_a_request(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither settings and memories in the workspace, nor variables that Claude Code heeds."""
    (desk.root / "CLAUDE.md").write_text("Always say moo.")
    (desk.root / ".claude").mkdir()
    hook = {"type": "command", "command": f"touch {desk.root}/ran"}
    settings = {"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}, "model": "other"}
    (desk.root / ".claude" / "settings.json").write_text(json.dumps(settings))
    (desk.root / ".mcp.json").write_text('{"mcpServers": {"bad": {"command": "false"}}}')
    for name, value in {
        "ANTHROPIC_MODEL": "other",
        "ANTHROPIC_AUTH_TOKEN": "other",
        "ANTHROPIC_CUSTOM_HEADERS": "x-other: 1",
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "CLAUDE_CODE_EXTRA_BODY": '{"other": 1}',
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "17",
        "MAX_THINKING_TOKENS": "1234",
    }.items():
        monkeypatch.setenv(name, value)
    with asked(says("Done.")) as (adapter, server):
        desk.work(adapter)
    [request] = server.requests
    assert request.body["model"] == "claude-test"
    assert request.body["max_tokens"] > 17
    assert "other" not in request.body
    assert "x-other" not in request.headers
    assert "authorization" not in request.headers
    assert "moo" not in json.dumps(request.body)
    assert "1234" not in json.dumps(request.body)
    assert not (desk.root / "ran").exists()


def test_an_answer_is_what_the_prompt_asks_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path, output=Answer)
    wrong = ToolCall("StructuredOutput", {"name": "x", "count": "many"}, "c1")
    right = ToolCall("StructuredOutput", {"name": "x", "count": 3}, "c2")
    with asked(says("", wrong), says("", right)) as (adapter, _):
        response = desk.work(adapter)
    assert response.output == Answer("x", 3)
    assert json.loads(response.text) == {"name": "x", "count": 3}
    assert response.tool_results == ()


def test_a_conversation_goes_on(desk: Desk) -> None:
    with asked(says("It is blue."), says("Green."), says("Red.")) as (adapter, server):
        first = desk.work(adapter, messages=[UserMessage("What colour?")])
        asked_again = (*first.messages, UserMessage("And now?"))
        second = desk.work(adapter, messages=asked_again)
        foreign = [UserMessage("A"), AssistantMessage("B"), UserMessage("C")]
        desk.work(adapter, messages=foreign)
    assert second.text == "Green."
    assert [each.text for each in second.messages] == [
        "What colour?",
        "It is blue.",
        "And now?",
        "Green.",
    ]
    assert "## 1. Workspace" in json.dumps(server.requests[0].body["system"])
    roles = [each["role"] for each in server.requests[1].body["messages"]]
    assert [each for each in roles if each != "system"] == ["user", "assistant", "user"]
    assert "assistant: B" in json.dumps(server.requests[2].body["messages"])


def test_what_may_not_be_written_is_only_read_and_closing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = tmp_path / "workspace"
    root.mkdir()
    section = ClaudeAgentWorkspaceSection(root=root, read_only=True)
    prompt = Prompt(ns="tests", key="look", sections=[section])
    with asked(says("Done.")) as (adapter, server):
        adapter.evaluate(prompt, session=Session(), options=impatient(max_tokens=99))
        assert len(list(tmp_path.glob("wink-claude-*"))) == 1
    assert not list(tmp_path.glob("wink-claude-*"))
    assert {each["name"] for each in server.last["tools"]} == {"Read", "Glob", "Grep"}
    assert server.last["max_tokens"] == 99


def test_a_temperature_and_single_steps_are_refused(desk: Desk) -> None:
    with create_adapter("claude-agent:claude-test", api_key=KEY) as adapter:
        assert isinstance(adapter, ClaudeAgentAdapter)
        with pytest.raises(InvalidRequestError, match="does not support a temperature"):
            desk.work(adapter, options=RunOptions(temperature=0.5))
        with pytest.raises(InvalidRequestError, match="use evaluate"):
            adapter.complete(None)  # pyright: ignore[reportArgumentType] # whatever it is


def test_a_picture_of_the_user_and_an_effort_reach_the_model(desk: Desk) -> None:
    # the smallest picture that Claude Code takes as it is: 1 x 1
    picture = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    message = UserMessage("What is this?", (Media("image/png", picture),))
    with asked(says("A pixel.")) as (adapter, server):
        response = desk.work(adapter, messages=[message], options=RunOptions(effort="low"))
    assert response.text == "A pixel."
    assert server.last["output_config"]["effort"] == "low"
    content = [block for each in server.last["messages"] for block in each["content"]]
    pictures = [each for each in content if each["type"] == "image"]
    assert [each["source"]["media_type"] for each in pictures] == ["image/png"]
    assert any("What is this?" in each.get("text", "") for each in content), content
