"""Whatever a provider sends becomes an answer that can be continued, or an error of ours."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters import chat_server
from tests.adapters.anthropic import server as anthropic_server
from tests.adapters.chat_server import reply, streams
from tests.adapters.openai import server as openai_server
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    AdapterError,
    AssistantMessage,
    Completion,
    CompletionRequest,
    ModelResponded,
    RecordingAdapter,
    ScriptedAdapter,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from weakincentives.adapters.anthropic.messages import build_message_request
from weakincentives.adapters.chat_completions import build_chat_request
from weakincentives.adapters.http import lenient
from weakincentives.adapters.http.lenient import distinct, whole_characters
from weakincentives.adapters.loop.request import with_call_ids
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session, dump_session_tree, load_session
from weakincentives.serde import decode, encode

pytestmark = pytest.mark.usefixtures("clean_environment")

REQUEST = CompletionRequest((UserMessage("hello"),))
CALLS = (
    ToolCall("write_file", '{"path": "a", "content": "x"}', "call_1"),
    ToolCall("nothing", "{}", "call_2"),
)
ANY_TEXT = st.text(st.characters(), max_size=6) | st.sampled_from(
    ["\ud800", "\udc00\ud83d", "a\udfff", "", "call_1", "-", "x" * 300, "\0", "[DONE]", "error"]
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([10**30, 10**400, -(10**400), 10**4299, 2**63, 1.5, -0.0, float("nan")])
    | st.sampled_from([float("inf"), 400, 429, 503])
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


def chat_whole() -> Any:
    message = {
        "role": "assistant",
        "content": "hi",
        "reasoning_content": "hm",
        "reasoning_details": [{"type": "x", "data": "y"}],
        "tool_calls": [
            {**chat_server._wire(call, number), "extra_content": {"a": "b"}}  # pyright: ignore[reportPrivateUsage]
            for number, call in enumerate(CALLS)
        ],
    }
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return chat_server.completion(choice)


def chat_stream() -> list[Any]:
    usage = {**chat_server.HEAD, "choices": [], "usage": chat_server.USAGE}
    thinks = chat_server.piece({"reasoning_content": "hm", "reasoning_details": [{"a": 1}]})
    ends = chat_server.piece({}, finish_reason="tool_calls")
    return [thinks, *chat_server.pieces("hello", CALLS), ends, usage]


BLOCKS = (
    {"type": "thinking", "thinking": "hm", "signature": "sig"},
    anthropic_server.text("hello"),
    *map(anthropic_server.use, CALLS),
)


def message_whole() -> Any:
    end = {"stop_reason": "tool_use", "usage": anthropic_server.USAGE}
    return {**anthropic_server.HEAD, "content": list(BLOCKS), **end}


def message_stream() -> list[Any]:
    return anthropic_server.pieces(*BLOCKS, stop="tool_use")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a JSON value, as what holds it and where."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    return [place for key in keys for place in ((value, key), *places(value[key]))]


@st.composite
def mutated(draw: st.DrawFn, original: Any) -> Any:
    """Return a real answer with some of its parts replaced, removed, doubled or renamed."""
    value = json.loads(json.dumps([original]))
    for _ in range(draw(st.integers(1, 4))):
        found = places(value)
        if not found:
            break
        holder, key = draw(st.sampled_from(found))
        match draw(st.integers(0, 5)):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case 2:
                holder[key] = f"<{draw(st.sampled_from([50, 95, 150, 900, 5000]))}>"
            case 3 if isinstance(holder, dict):
                holder[draw(ANY_TEXT)] = holder.pop(key)
            case _:
                holder[key] = draw(ODD)
    return value[0] if value else None


def text_of(value: Any) -> str:
    """Return JSON; `<7>` is seven lists in each other, which may be more than can be built."""
    return re.sub(r'"<(\d+)>"', lambda found: _lists(int(found[1])), json.dumps(value))


def _lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def completed(asked: Any, answer: Any, *, stream: bool) -> Completion | None:
    """Return the answer, or None if there is an error of ours."""
    heard: list[str] = []
    with asked(answer) as (adapter, _):
        try:
            completion = adapter.complete(REQUEST, on_text=heard.append if stream else None)
        except AdapterError as error:
            assert str(error).isprintable()
            return None
    for piece in heard:
        assert piece
        piece.encode()
    return completion


def check(completion: Completion | None) -> None:
    """Check that a conversation can go on with an answer, with any provider, and be recorded."""
    if completion is None:
        return
    assert decode(encode(completion), Completion) == completion
    assert 0 <= completion.usage.total_tokens < 10**17
    completion = with_call_ids(completion, 1)
    ids = [call.call_id for call in completion.tool_calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    said = AssistantMessage(completion.text, completion.tool_calls, completion.extras)
    results = [
        ToolMessage(call.call_id, call.name, f"did {call.call_id}") for call in said.tool_calls
    ]
    request = CompletionRequest((UserMessage("do"), said, *results))
    check_chat(request, ids)
    check_messages(request, ids)


def check_chat(request: CompletionRequest, ids: Sequence[str]) -> None:
    body = build_chat_request(
        request,
        max_tokens_field="max_tokens",
        native_output=True,
        with_extras=True,
        with_pictures=True,
    )
    json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    _, said, *results = body["messages"]
    assert [each["id"] for each in said.get("tool_calls", ())] == ids
    assert [(each["tool_call_id"], each["content"]) for each in results] == [
        (each, f"did {each}") for each in ids
    ]


def check_messages(request: CompletionRequest, ids: Sequence[str]) -> None:
    body = build_message_request(
        request,
        max_tokens=10,
        native_output=True,
        native_tools=True,
        cache=True,
        with_pictures=True,
    )
    json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    turns = body["messages"]
    used = [
        block["id"]
        for turn in turns
        for block in turn["content"]
        if block.get("type") == "tool_use"
    ]
    done = {
        block["tool_use_id"]: block.get("content")
        for turn in turns
        for block in turn["content"]
        if block["type"] == "tool_result"
    }
    assert list(done.values()) == [f"did {each}" for each in ids]
    assert used == list(done)


@settings(deadline=None)
@given(st.data())
def test_a_whole_answer_of_the_chat_api_is_used_or_refused(data: st.DataObject):
    body = text_of(data.draw(mutated(chat_whole())))
    check(completed(openai_server.asked, reply(body), stream=False))


@settings(deadline=None)
@given(st.data())
def test_a_streamed_answer_of_the_chat_api_is_used_or_refused(data: st.DataObject):
    chunks = data.draw(mutated(chat_stream()))
    events = [b"data: %s\n\n" % text_of(each).encode() for each in lenient.as_items(chunks)]
    check(completed(openai_server.asked, streams(*events), stream=True))


@settings(deadline=None)
@given(st.data())
def test_a_whole_answer_of_the_messages_api_is_used_or_refused(data: st.DataObject):
    body = text_of(data.draw(mutated(message_whole())))
    check(completed(anthropic_server.asked, reply(body), stream=False))


@settings(deadline=None)
@given(st.data())
def test_a_streamed_answer_of_the_messages_api_is_used_or_refused(data: st.DataObject):
    chunks = data.draw(mutated(message_stream()))
    events = [b"data: %s\n\n" % text_of(each).encode() for each in lenient.as_items(chunks)]
    check(completed(anthropic_server.asked, streams(*events, done=False), stream=True))


@settings(deadline=None)
@given(
    st.sampled_from(["openai", "anthropic"]), st.sampled_from([400, 401, 429, 500, 302]), st.data()
)
def test_a_failure_of_any_shape_is_an_error_of_ours(kind: str, status: int, data: st.DataObject):
    whole = {"error": {"message": "no", "type": "x", "code": "y", "param": None}}
    body = text_of(data.draw(mutated(whole)))
    after = data.draw(
        st.sampled_from(["1", "9" * 5000, "Wed, 21 Oct 9999999 07:28:00 GMT", "-0000"])
    )
    server = openai_server if kind == "openai" else anthropic_server
    assert completed(server.asked, reply(body, status, retry_after=after), stream=False) is None


@pytest.mark.parametrize("number", [10**400, -1, 1e300, float("inf"), float("nan"), True, "7", [7]])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_that_is_absurd_counts_nothing(number: Any, stream: bool):
    usage = {"prompt_tokens": number, "completion_tokens": 3, "total_tokens": number}
    found = completed(openai_server.asked, chat_server.says("hi", usage=usage), stream=stream)
    assert found is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (0, 3)


@pytest.mark.parametrize("index", [[0], {"a": 1}, None, "0", 0.5, True])
def test_blocks_are_put_together_whatever_their_numbers_are(index: Any):
    said = message_stream()
    for event in said:
        if event.get("index") in (1, 2):
            event["index"] = [index, event["index"]] if isinstance(index, list) else index
    found = completed(anthropic_server.asked, anthropic_server.events(*said), stream=True)
    assert found is not None
    assert found.text == "hello"
    assert [call.name for call in found.tool_calls] == ["write_file", "nothing"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_with_one_id_are_several_calls(stream: bool):
    twins = (ToolCall("a", '{"x": 1}', "same"), ToolCall("b", '{"x": 2}', "same"))
    chat = completed(openai_server.asked, chat_server.says("", *twins), stream=stream)
    message = completed(anthropic_server.asked, anthropic_server.says("", *twins), stream=stream)
    for found in (chat, message):
        assert found is not None
        assert found.tool_calls == (twins[0], ToolCall("b", '{"x": 2}', "same-2"))


@pytest.mark.parametrize("stream", [False, True])
def test_halves_of_characters_in_names_and_ids_are_replaced(stream: bool):
    odd = ToolCall("na\ud800me", "{}", "\udc00id")
    chat = completed(openai_server.asked, chat_server.says("", odd), stream=stream)
    message = completed(anthropic_server.asked, anthropic_server.says("", odd), stream=stream)
    for found in (chat, message):
        assert found is not None
        assert found.tool_calls == (ToolCall("na\ufffdme", "{}", "\ufffdid"),)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["call-2", ""], ["call-2", "call-2-2"]),
        (["", "call-1"], ["call-1-2", "call-1"]),
        (["", "", ""], ["call-1", "call-2", "call-3"]),
        (["x", "x", "call-2"], ["x", "call-2-2", "call-2"]),
        (["call-2", "call-2", "call-2-2"], ["call-2", "call-2-3", "call-2-2"]),
    ],
)
def test_an_id_that_is_made_up_is_that_of_no_other_call(ids: list[str], expected: list[str]):
    calls = tuple(ToolCall("a", "", each) for each in ids)
    found = with_call_ids(Completion("", calls), 1)
    assert [call.call_id for call in found.tool_calls] == expected
    after = with_call_ids(Completion("", (ToolCall("a"),)), 1, used=["call-1"])
    assert after.tool_calls[0].call_id == "call-1-2"


@pytest.mark.parametrize(
    "ids", [["a"], ["a", "a"], ["", "a"], ["a b", "a_b"], ["\ud800", "\udc00"]]
)
def test_no_id_comes_twice_in_a_conversation_and_extras_stay_with_their_calls(ids: list[str]):
    calls = tuple(ToolCall("read", json.dumps({"path": "a"}), each) for each in ids)
    wire_calls = [
        {**chat_server._wire(call, number), "extra_content": {"signature": number}}  # pyright: ignore[reportPrivateUsage]
        for number, call in enumerate(calls)
    ]
    chat = chat_server.says("", tool_calls=wire_calls)
    with openai_server.asked(chat, chat, chat_server.says("done")) as (adapter, server):
        adapter.evaluate(prompt(), session=Session())
    messages = server.last["messages"]
    sent = [call for each in messages for call in each.get("tool_calls", ())]
    assert len({each["id"] for each in sent}) == 2 * len(ids)
    assert [each["tool_call_id"] for each in messages if each["role"] == "tool"] == [
        each["id"] for each in sent
    ]
    assert [each["extra_content"]["signature"] for each in sent] == [*range(len(ids))] * 2

    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    message = anthropic_server.sends(thought, *map(anthropic_server.use, calls), stop="tool_use")
    with anthropic_server.asked(message, message, anthropic_server.says("done")) as asked:
        adapter, server = asked
        adapter.evaluate(prompt(), session=Session())
    blocks = [block for each in server.last["messages"] for block in each["content"]]
    used = [each["id"] for each in blocks if each["type"] == "tool_use"]
    assert len(set(used)) == 2 * len(ids)
    assert [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"] == used
    assert len([each for each in blocks if each["type"] == "thinking"]) == 2


@given(st.lists(st.sampled_from(["", "a", "a-2", "a-3", "b"])))
def test_ids_are_told_apart_and_the_first_of_each_stays(ids: list[str]):
    made = distinct(ids)
    named = [each for each in made if each]
    assert len(set(named)) == len(named)
    assert [bool(each) for each in made] == [bool(each) for each in ids]
    assert {each: made[ids.index(each)] for each in ids} == {each: each for each in ids}


@given(st.lists(st.text(st.sampled_from("a\ud83d\ude00\U0001f600"), max_size=3)))
def test_pieces_of_text_are_whole_characters(pieces: list[str]):
    heard = list(whole_characters(pieces))
    assert all(heard)
    assert "".join(heard) == lenient.sendable("".join(pieces))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=3), ANY_TEXT)
def test_a_run_with_odd_names_and_ids_is_recorded_and_dumped_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, odd: list[tuple[str, str, str]], said: str
):
    place = tmp_path_factory.mktemp("odd")
    calls = tuple(ToolCall(name, json.dumps({"path": path}), id_) for name, path, id_ in odd)
    # an answer without any text is asked for again
    answers = [said] if said.strip() else [said, "done"]
    steps = [Completion(said, calls, stop_reason="tool_calls")] * bool(calls) + answers
    session = Session()
    recorder = RecordingAdapter(ScriptedAdapter(steps), place / "talk.jsonl")
    response = recorder.evaluate(prompt(), session=session)
    results = [each.call_id for each in response.messages if isinstance(each, ToolMessage)]
    assert len(set(results)) == len(calls)
    replayed = ScriptedAdapter.from_recording(place / "talk.jsonl")
    assert replayed.evaluate(prompt(), session=Session()).messages == response.messages
    dumped = dump_session_tree(session, place)
    assert dumped is not None
    loaded = load_session(dumped)
    assert loaded[ToolInvoked].all() == session[ToolInvoked].all()
    assert loaded[ModelResponded].all() == session[ModelResponded].all()


@pytest.mark.parametrize("ids", [[""], ["", ""], ["", "call-1"], ["a", "a"]])
def test_a_recorded_run_with_calls_without_ids_is_replayed_as_it_was(
    tmp_path: Path, ids: list[str]
):
    said = chat_server.says("", *(ToolCall("read", '{"path": "a"}', each) for each in ids))
    with openai_server.asked(said, said, chat_server.says("done")) as (adapter, _):
        recorder = RecordingAdapter(adapter, tmp_path / "talk.jsonl")
        response = recorder.evaluate(prompt(), session=Session())
    replayed = ScriptedAdapter.from_recording(tmp_path / "talk.jsonl")
    assert replayed.evaluate(prompt(), session=Session()).messages == response.messages
