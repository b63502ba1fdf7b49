"""Whole runs through the SDK and a server on this machine."""

from pathlib import Path
from typing import Any

import pytest

from tests.adapters.anthropic.server import (
    KEY,
    drops_after,
    event,
    events,
    fails,
    failure,
    pieces,
    says,
    sends,
    text,
    use,
)
from tests.adapters.chat_server import Answer, Server, never_ends, serving
from tests.adapters.same_task import ANSWER, STEPS, expected, tree_hash, work
from tests.adapters.workers import Answer as Found
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    ModelRefusedError,
    RetryPolicy,
    RunOptions,
    ToolCall,
    ToolDefinition,
    TransientError,
    partial_response,
)
from weakincentives.adapters.anthropic.adapter import AnthropicAdapter
from weakincentives.adapters.anthropic.messages import native_type
from weakincentives.contrib.tools.shell import shell_handlers
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.runtime.session import Session
from weakincentives.sandbox import LocalSandbox

pytestmark = pytest.mark.usefixtures("clean_environment")

TASK: tuple[Answer, ...] = (*(says("", *calls) for calls in STEPS), says(ANSWER))
EDITOR = "str_replace_based_edit_tool"


def adapter_at(server: Server, **given: Any) -> AnthropicAdapter:
    return AnthropicAdapter("claude-test", api_key=KEY, base_url=server.url, **given)


@pytest.mark.parametrize("stream", [False, True])
def test_a_task_ends_in_the_same_tree_as_by_a_script(fs: BaseFilesystem, stream: bool):
    heard: list[str] = []
    with serving(*TASK) as server, adapter_at(server) as adapter:
        response = work(adapter, fs, on_text=heard.append if stream else None)
    tree, texts = expected()
    assert tree_hash(fs) == tree
    assert [each.text for each in response.tool_results] == texts
    assert response.text == ANSWER
    assert "".join(heard) == (ANSWER if stream else "")
    assert response.usage.total_tokens == 27 * len(TASK)
    turns = server.last["messages"]
    assert [each["role"] for each in turns] == ["user", "assistant"] * len(STEPS) + ["user"]
    results = [block for turn in turns[2::2] for block in turn["content"]]
    assert [each["tool_use_id"] for each in results] == ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]
    assert [each.get("is_error", False) for each in results] == [False] * 6 + [True]


def test_a_provider_that_throttles_drops_and_talks_nonsense_does_not_change_the_end():
    fs = InMemoryFilesystem()
    unknown = use(ToolCall("format_disk", "{}", "c8"))
    broken = pieces(unknown, use(ToolCall("write_file", "{}", "c9")), stop="tool_use")
    cut = {"type": "input_json_delta", "partial_json": '{"file_path": "x", "cont'}
    broken.insert(-3, {"type": "content_block_delta", "index": 1, "delta": cut})
    begun = pieces(text("I will"))[:4]
    faults = (
        fails(429, kind="rate_limit_error", retry_after="2"),
        fails(529, kind="overloaded_error"),
        drops_after(headers_first=False),
        drops_after(*begun),
        events(*begun, failure("overloaded_error", "Overloaded")),
        events(*broken),
    )
    with serving(*faults, *TASK) as server, adapter_at(server) as adapter:
        response = work(adapter, fs, on_text=lambda _: None)
    assert tree_hash(fs) == expected()[0]
    assert [each.result.success for each in response.tool_results[:2]] == [False, False]
    assert response.text == ANSWER


def test_a_stream_that_never_ends_leaves_what_was_done_and_nothing_half():
    fs = InMemoryFilesystem()
    delta = {"type": "text_delta", "text": "la "}
    endless = never_ends(event({"type": "content_block_delta", "index": 0, "delta": delta}))
    patience = {"request_timeout": 0.1, "retries": RetryPolicy(max_retries=0)}
    with (
        serving(says("", *STEPS[0]), endless) as server,
        adapter_at(server) as adapter,
        pytest.raises(TransientError) as caught,
    ):
        work(adapter, fs, on_text=lambda _: None, **patience)
    done = partial_response(caught.value)
    assert done is not None
    assert [each.result.success for each in done.tool_results] == [True, True]
    assert [each.path for each in fs.glob("**")] == ["a/hello.txt", "junk.txt"]


@pytest.mark.parametrize("native", [True, False])
def test_structured_output_is_asked_for_and_repaired(native: bool):
    answers = (says('{"name": "a"}'), says('{"name": "a", "count": 3}'))
    with serving(*answers) as server, adapter_at(server, native_output=native) as adapter:
        response = adapter.evaluate(prompt(output_type=Found), session=Session())
    assert response.output == Found("a", 3)
    assert ("output_config" in server.last) is native
    assert ("schema" in str(server.requests[0].body["messages"])) is not native


def test_a_run_goes_on_after_a_pause_with_its_reasoning():
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    paused = sends(thought, search, stop="pause_turn")
    with serving(paused, says("Done.")) as server, adapter_at(server) as adapter:
        response = adapter.evaluate(prompt(tools=()), session=Session())
    assert (response.text, response.steps) == ("Done.", 2)
    assert server.last["messages"][-1] == {"role": "assistant", "content": [thought, search]}


def test_a_refusal_ends_a_run():
    details = {"type": "refusal", "category": None, "explanation": "Not this."}
    refusal = sends(stop="refusal", stop_details=details)
    with (
        serving(refusal) as server,
        adapter_at(server) as adapter,
        pytest.raises(ModelRefusedError, match="Not this"),
    ):
        adapter.evaluate(prompt(), session=Session())


def test_an_answer_that_is_cut_off_within_a_call_changes_nothing():
    fs = InMemoryFilesystem()
    fs.write("keep.txt", "precious")
    cut = sends(use(ToolCall("rm", '{"path": "keep.txt"}', "c1")), stop="max_tokens")
    with serving(cut, says("Sorry.")) as server, adapter_at(server) as adapter:
        response = work(adapter, fs)
    assert [each.result.success for each in response.tool_results] == [False]
    assert fs.read("keep.txt").content == "precious"


def editing(command: str, path: str, **more: object) -> ToolCall:
    return ToolCall(EDITOR, {"command": command, "path": path, **more}, f"{command}-1")


@pytest.mark.parametrize("native", [True, False])
def test_the_editor_and_bash_are_sent_as_the_api_knows_them(tmp_path: Path, native: bool):
    calls = (
        editing("create", "a.txt", file_text="hello\n"),
        editing("str_replace", "a.txt", old_str="hello", new_str="bye"),
        editing("insert", "a.txt", insert_line=1, insert_text="world\n"),
        ToolCall("bash", {"command": "cat a.txt > b.txt"}, "bash-1"),
        editing("delete", "a.txt"),
        editing("view", "b.txt"),
    )
    answers = (*(says("", each) for each in calls), says("Done."))
    with (
        HostFilesystem(tmp_path) as fs,
        LocalSandbox(fs) as sandbox,
        serving(*answers) as server,
        adapter_at(server, native_tools=native) as adapter,
    ):
        tools = filesystem_tools("anthropic-editor", extra_handlers=shell_handlers(sandbox))
        response = adapter.evaluate(
            prompt(fs, tools=tools), session=Session(), options=RunOptions(max_steps=9)
        )
        assert [each.result.success for each in response.tool_results] == [True] * len(calls)
        assert [each.path for each in fs.glob("**")] == ["b.txt"]
        assert fs.read("b.txt").content == "bye\nworld\n"
    sent = [
        {name: value for name, value in each.items() if name in ("type", "name")}
        for each in server.last["tools"]
    ]
    told = "".join(each["text"] for each in server.last.get("system", ()))
    own = {"bash_start", "bash_poll", "bash_stop"}
    assert {each["name"] for each in sent} == {EDITOR, "bash", *own}
    if native:
        assert {"type": "text_editor_20250728", "name": EDITOR} in sent
        assert {"type": "bash_20250124", "name": "bash"} in sent
        with_schema = {each["name"] for each in server.last["tools"] if "input_schema" in each}
        assert with_schema == own
        assert "rename moves a file" in told
    else:
        assert all("input_schema" in each for each in server.last["tools"])
        assert not told


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"command": {"type": "string"}}, "required": ["command"]},
        {"properties": {"command": {}, "restart": {}, "host": {}}, "required": ["host"]},
        {},
    ],
)
def test_a_tool_that_only_has_the_name_keeps_its_schema(schema: dict[str, Any]):
    assert native_type(ToolDefinition("bash", "Runs.", {"type": "object", **schema})) is None


def test_an_editor_that_lacks_a_command_keeps_its_schema():
    editor = next(each for each in filesystem_tools("anthropic-editor") if each.name == EDITOR)
    schema: dict[str, Any] = dict(editor.schema)
    assert native_type(ToolDefinition(EDITOR, "", schema)) == "text_editor_20250728"
    properties = {**schema["properties"], "command": {"enum": ["view", "create"]}}
    assert native_type(ToolDefinition(EDITOR, "", {**schema, "properties": properties})) is None
