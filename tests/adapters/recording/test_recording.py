"""Recording a conversation and replaying it."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.workers import READ, TOOLS, Answer, ReadParams, patient, prompt
from weakincentives.adapters import (
    AssistantMessage,
    AuthenticationError,
    Completion,
    CompletionRequest,
    OutputFormat,
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
from weakincentives.posix import fault_hook
from weakincentives.runtime import TokenUsage
from weakincentives.runtime.session import Session

REQUEST = CompletionRequest((UserMessage("?"),))


def write(path: str, content: str = "x") -> ToolCall:
    return ToolCall("write_file", {"path": path, "content": content})


def read(path: str) -> ToolCall:
    return ToolCall("read_file", {"path": path})


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
    assert "the result of 'read_file' was 'hello', now 'HELLO'" in str(caught.value)
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
            "the description or schema of the tool 'read_file' has changed",
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
        (
            b'{"version": 2, "adapter": "a", "model": "m"}\n',
            "version 2, only version 1 is supported",
        ),
        (b'{"version": 1, "adapter": "a", "model": "m"}', "is truncated"),
        (b'{"version": 1, "adapter": "a", "model": "m"}\n{"sh', "is truncated"),
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


ASKED = CompletionRequest(
    (UserMessage("long " * 30 + "one"), AssistantMessage("two", (ToolCall("t", {"a": 1}, "1"),))),
    output=OutputFormat("Answer", {"type": "object"}),
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            replace(ASKED, messages=(UserMessage("long " * 30 + "1"), ASKED.messages[1])),
            "the user message was '...long long long long one', now '...long long long long 1'",
        ),
        (replace(ASKED, messages=ASKED.messages[:1]), "there were 2 new messages, now 1"),
        (
            replace(ASKED, messages=(ASKED.messages[0], UserMessage("two"))),
            "the role of a message was 'assistant', now 'user'",
        ),
        (
            replace(ASKED, messages=(ASKED.messages[0], AssistantMessage("two"))),
            "the assistant message has the same text, but differs otherwise",
        ),
        (replace(ASKED, output=None), "the output schema has changed"),
        (replace(ASKED, temperature=0.5, max_tokens=9), None),
    ],
)
def test_a_replay_says_the_first_difference(
    tmp_path: Path, asked: CompletionRequest, said: str | None
):
    path = tmp_path / "talk"
    RecordingAdapter(ScriptedAdapter(["yes"]), path).complete(ASKED)
    replayed = ScriptedAdapter.from_recording(path)
    if said is None:
        assert replayed.complete(asked).text == "yes"
        return
    with pytest.raises(ReplayDivergedError) as caught:
        replayed.complete(asked)
    assert said in str(caught.value)


def test_a_replay_notices_a_conversation_that_starts_over(tmp_path: Path):
    path = tmp_path / "talk"
    adapter = RecordingAdapter(ScriptedAdapter(["one", "two"]), path)
    longer = replace(ASKED, messages=(*ASKED.messages, UserMessage("three")))
    adapter.complete(ASKED)
    adapter.complete(longer)
    replayed = ScriptedAdapter.from_recording(path)
    replayed.complete(ASKED)
    with pytest.raises(ReplayDivergedError, match="2 earlier messages were unchanged, now 0 are"):
        replayed.complete(replace(longer, messages=longer.messages[2:]))


def test_a_failure_that_was_not_tried_again_is_played_back(tmp_path: Path):
    path = tmp_path / "talk"
    down = TransientError("down")
    adapter = RecordingAdapter(ScriptedAdapter([down, "two", down]), path)
    other = replace(ASKED, messages=(UserMessage("other"),))
    with pytest.raises(TransientError):
        adapter.complete(ASKED)
    adapter.complete(other)
    with pytest.raises(TransientError):
        adapter.complete(ASKED)
    replayed = ScriptedAdapter.from_recording(path)
    with pytest.raises(TransientError, match="down"):
        replayed.complete(ASKED)
    assert replayed.complete(other).text == "two"
    with pytest.raises(TransientError, match="down"):
        replayed.complete(ASKED)


def test_a_message_that_no_recorder_writes_is_a_difference(tmp_path: Path):
    path = tmp_path / "talk"
    RecordingAdapter(ScriptedAdapter(["yes"]), path).complete(REQUEST)
    path.write_text(path.read_text().replace('{"text":"?","role":"user"}', '{"a":1}'))
    with pytest.raises(ReplayDivergedError, match="was 'unknown', now 'user'"):
        ScriptedAdapter.from_recording(path).complete(REQUEST)


@pytest.mark.parametrize("point", ["store.created", "store.written", "store.closed"])
def test_a_disk_that_fails_leaves_the_recording_as_it_was(tmp_path: Path, point: str):
    path = tmp_path / "talk"
    adapter = RecordingAdapter(ScriptedAdapter(["one", "two", "three"]), path)
    adapter.complete(REQUEST)
    kept = path.read_bytes()

    def fail(reached: str) -> None:
        if reached == point:
            raise OSError(errno.ENOSPC, "No space left on device")

    with fault_hook(fail), pytest.raises(OSError, match="No space left"):
        adapter.complete(REQUEST)
    assert path.read_bytes() == kept
    adapter.complete(REQUEST)
    assert [b"two" in path.read_bytes(), b"three" in path.read_bytes()] == [False, True]
    assert [each.name for each in tmp_path.iterdir()] == ["talk"]
