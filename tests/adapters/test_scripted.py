"""A model that plays a script, and a conversation that is recorded and played back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.workers import READ, TOOLS, Answer, ReadParams, patient, prompt
from weakincentives.adapters import (
    AuthenticationError,
    Completion,
    CompletionRequest,
    ProviderAdapter,
    RecordingAdapter,
    ReplayDivergedError,
    ScriptedAdapter,
    ScriptError,
    ThrottledError,
    ToolCall,
    TransientError,
    UserMessage,
)
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import TokenUsage
from weakincentives.runtime.session import Session

REQUEST = CompletionRequest((UserMessage("?"),))


def write(path: str, content: str = "x") -> ToolCall:
    return ToolCall("write_file", {"path": path, "content": content})


def read(path: str) -> ToolCall:
    return ToolCall("read_file", {"path": path})


def test_a_step_is_text_calls_a_completion_an_error_or_a_function():
    def last(request: CompletionRequest) -> str:
        return f"you said {request.messages[-1].text}"

    adapter = ScriptedAdapter(
        [
            "text",
            read("a"),
            [read("a"), read("b")],
            Completion("both", (read("a"),), usage=TokenUsage(1, 2)),
            AuthenticationError("no key"),
            last,
            lambda _: read("z"),
        ]
    )
    assert adapter.complete(REQUEST) == Completion("text")
    one = adapter.complete(REQUEST)
    assert one == Completion(
        "", (ToolCall("read_file", {"path": "a"}, "call-2-1"),), stop_reason="tool_calls"
    )
    assert [each.call_id for each in adapter.complete(REQUEST).tool_calls] == [
        "call-3-1",
        "call-3-2",
    ]
    both = adapter.complete(REQUEST)
    assert (both.text, both.usage, both.tool_calls[0].call_id) == (
        "both",
        TokenUsage(1, 2),
        "call-4-1",
    )
    with pytest.raises(AuthenticationError, match="no key"):
        adapter.complete(REQUEST)
    assert adapter.complete(REQUEST).text == "you said ?"
    assert adapter.complete(REQUEST).tool_calls[0].arguments == {"path": "z"}
    assert (adapter.remaining, len(adapter.requests)) == (0, 7)


def test_a_script_that_runs_out_says_so():
    adapter = ScriptedAdapter([write("a")])
    with pytest.raises(ScriptError, match=r"has 1 steps.*after the tool message 'wrote a'"):
        adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert adapter.remaining == 0


def recorded(path: Path, script: list[Any], **more: Any) -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    adapter = RecordingAdapter(ScriptedAdapter(script, name="openai", model="m"), path)
    adapter.evaluate(prompt(fs, **more), session=Session(), options=patient(lambda _: None))
    return fs


def test_a_recorded_conversation_is_played_back_to_the_same_end(tmp_path: Path):
    path = tmp_path / "talk.jsonl"
    script = [
        Completion("half \ud800", (write("a", "é"),), usage=TokenUsage(5, 6, 1), extras={"k": [1]}),
        [read("a"), read("gone")],
        '{"name": "cats", "count": 3}',
    ]
    before = recorded(path, script, output_type=Answer)
    adapter = ScriptedAdapter.from_recording(path)
    assert (adapter.name, adapter.model) == ("openai", "m")
    (tmp_path / "work").mkdir()
    fs = HostFilesystem(tmp_path / "work")
    response = adapter.evaluate(prompt(fs, output_type=Answer), session=Session())
    assert response.output == Answer("cats", 3)
    assert fs.read_bytes("a").content == before.read_bytes("a").content
    assert response.usage == TokenUsage(5, 6, 1)
    assert adapter.remaining == 0
    said = adapter.requests[1].messages[1]
    assert getattr(said, "extras", None) == {"k": [1]}


def test_a_replay_is_recorded_as_the_same_bytes(tmp_path: Path):
    first, second = tmp_path / "1", tmp_path / "2"
    recorded(first, [write("a"), [read("a"), read("b")], "done"])
    again = RecordingAdapter(ScriptedAdapter.from_recording(first), second)
    again.evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert second.read_bytes() == first.read_bytes()


def test_a_replay_that_finds_another_result_says_where_and_what(tmp_path: Path):
    path = tmp_path / "talk"
    recorded(path, [write("a", "hello"), read("a"), "done"])
    fs = InMemoryFilesystem()
    fs.write("a", "hello")
    adapter = ScriptedAdapter.from_recording(path)
    real = READ.handler

    def shouting(params: Any, *, context: Any) -> Any:
        assert real is not None
        found = real(params, context=context)
        return replace(found, value=str(found.value).upper())

    tools = [replace(READ, handler=shouting, params_type=ReadParams), *TOOLS[1:]]
    with pytest.raises(ReplayDivergedError) as caught:
        adapter.evaluate(prompt(fs, tools=tools), session=Session())
    assert caught.value.step == 3
    assert "the result of 'read_file' was 'hello', and is 'HELLO'" in str(caught.value)
    relaxed = ScriptedAdapter.from_recording(path, strict=False)
    assert relaxed.evaluate(prompt(fs, tools=tools), session=Session()).text == "done"


def test_a_replay_with_other_tools_or_another_prompt_diverges_at_once(tmp_path: Path):
    path = tmp_path / "talk"
    recorded(path, ["done"])
    fs = InMemoryFilesystem()
    for task, said in (
        (prompt(fs, tools=TOOLS[:2]), "the tool 'break' is missing"),
        (prompt(fs, output_type=Answer), "the user message was"),
        (prompt(fs, tools=[replace(READ, name="look"), *TOOLS]), "the tool 'look' is new"),
        (
            prompt(fs, tools=[READ.with_description("Else."), *TOOLS[1:]]),
            "the tool 'read_file' has another description or schema",
        ),
    ):
        with pytest.raises(ReplayDivergedError, match=said) as caught:
            ScriptedAdapter.from_recording(path).evaluate(task, session=Session())
        assert caught.value.step == 1


def test_failures_that_passed_are_not_played_back(tmp_path: Path):
    path = tmp_path / "talk"
    down = TransientError("down")
    throttled = ThrottledError("slow", retry_after=9.0, status=429)
    recorded(path, [throttled, down, write("a"), down, "done"])
    adapter = ScriptedAdapter.from_recording(path)
    assert adapter.remaining == 2
    response = adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert response.text == "done"


def test_a_failure_that_ended_the_run_is_played_back(tmp_path: Path):
    path = tmp_path / "talk"
    with pytest.raises(AuthenticationError):
        recorded(path, [write("a"), AuthenticationError("no key", provider="x", status=401)])
    adapter = ScriptedAdapter.from_recording(path)
    with pytest.raises(AuthenticationError, match="no key") as caught:
        adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert (caught.value.provider, caught.value.status) == ("x", 401)


def test_a_recording_is_whole_after_every_step_and_private(tmp_path: Path):
    path = tmp_path / "talk"
    seen: list[int] = []

    class Looks(ProviderAdapter):
        def complete(self, request: CompletionRequest, *, on_text=None, timeout=None) -> Completion:
            seen.append(ScriptedAdapter.from_recording(path).remaining)
            return Completion("", (read("a"),)) if len(seen) < 3 else Completion("done")

    RecordingAdapter(Looks(), path).evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert seen == [0, 1, 2]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["talk"]


def test_a_recording_keeps_each_message_once(tmp_path: Path):
    path = tmp_path / "talk"
    recorded(path, [write("a", "unmistakable"), read("a"), "done"])
    assert path.read_text().count("unmistakable") <= 3  # the answer, its echo, the result
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"version": 1, "adapter": "openai", "model": "m", "native_output": False}
    assert [line["shared"] for line in lines[1:]] == [0, 1, 3]


def test_a_file_that_is_there_is_not_replaced_unless_asked(tmp_path: Path):
    path = tmp_path / "talk"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        RecordingAdapter(ScriptedAdapter([]), path)
    assert path.read_text() == "precious"
    RecordingAdapter(ScriptedAdapter([]), path, overwrite=True)
    assert ScriptedAdapter.from_recording(path).remaining == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "Not a recording"),
        (b"hello\n", "Not a recording"),
        (b'{"a": 1}\n', "Not a recording"),
        (b"[]\n", "Not a recording"),
        (b"\xff\xfe\n", "Not a recording"),
        (b'{"version": 2, "adapter": "a", "model": "m"}\n', "version 2, and version 1 is known"),
        (b'{"version": 1, "adapter": "a", "model": "m"}', "ends in the middle of a line"),
        (b'{"version": 1, "adapter": "a", "model": "m"}\n{"sh', "ends in the middle of a line"),
        (b'{"version": 1, "adapter": "a", "model": "m"}\n{"sh\n', "Line 2 .* is damaged: Not JSON"),
        (b'{"version": 1, "adapter": "a", "model": "m"}\n{}\n', "Line 2 .* Missing field 'shared'"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_path(tmp_path: Path, data: bytes, said: str):
    path = tmp_path / "talk"
    path.write_bytes(data)
    with pytest.raises(ScriptError, match=said) as caught:
        ScriptedAdapter.from_recording(path)
    assert str(path) in str(caught.value)


def test_several_runs_are_one_recording(tmp_path: Path):
    path = tmp_path / "talk"
    adapter = RecordingAdapter(ScriptedAdapter(["one", "two"]), path)
    task = prompt()
    for _ in range(2):
        adapter.evaluate(task, session=Session())
    replayed = ScriptedAdapter.from_recording(path)
    texts = [replayed.evaluate(task, session=Session()).text for _ in range(2)]
    assert texts == ["one", "two"]


def test_a_recording_adapter_closes_the_one_that_it_records(tmp_path: Path):
    closed: list[str] = []

    class Connected(ScriptedAdapter):
        def close(self) -> None:
            closed.append("connection")

    with RecordingAdapter(Connected(["hi"]), tmp_path / "talk") as adapter:
        adapter.evaluate(prompt(), session=Session())
        assert closed == []
    assert closed == ["connection"]
