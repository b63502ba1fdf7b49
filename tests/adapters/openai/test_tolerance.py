"""Responses that deviate from the API, as real servers send them."""

from typing import Any

import pytest

from tests.adapters.chat_server import (
    REQUEST,
    completion,
    event,
    piece,
    reply,
    streams,
)
from tests.adapters.openai.server import asked
from weakincentives.adapters import Completion, ToolCall, TransientError
from weakincentives.runtime import TokenUsage

pytestmark = pytest.mark.usefixtures("clean_environment")

STOP = piece({}, finish_reason="stop")
CALLED = piece({}, finish_reason="tool_calls")


def call(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> Any:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    delta = {"function": function, "id": call_id, "index": index}
    return piece({"tool_calls": [{key: each for key, each in delta.items() if each is not None}]})


def streamed(*chunks: Any, **given: Any) -> Completion:
    with asked(streams(*chunks, **given)) as (adapter, _):
        return adapter.complete(REQUEST, on_text=lambda _: None)


def plain(body: Any) -> Completion:
    with asked(reply(body)) as (adapter, _):
        return adapter.complete(REQUEST)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "image"}, "b", {"text": "c"}], "ac"),
        (7, ""),
    ],
)
def test_content_may_be_missing_or_in_parts(content: Any, text: str):
    choice = {"message": {"content": content}, "finish_reason": "stop"}
    found = plain(completion(choice))
    assert (found.text, found.stop_reason) == (text, "end")
    assert streamed(piece({"content": content}), STOP).text == text


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [call(0, "c1", "a", ""), call(0, None, None, "{}"), call(1, "c2", "b", "[]")],
            id="numbered",
        ),
        pytest.param(
            [
                call(0, "c1", "a", "{"),
                call(1, "c2", "b", "["),
                call(0, None, None, "}"),
                call(1, None, None, "]"),
            ],
            id="numbered and mixed",
        ),
        pytest.param(
            [call(None, "c1", "a", "{"), call(None, "c1", None, "}"), call(None, "c2", "b", "[]")],
            id="by id",
        ),
        pytest.param(
            [call(None, "c1", "a", "{"), call(None, None, None, "}"), call(None, "c2", "b", "[]")],
            id="in order",
        ),
        pytest.param([call(0, "c1", "a", "{}"), call(0, "c2", "b", "[]")], id="all number 0"),
        pytest.param(
            [call(0, "c1", "a", "{"), call(0, "c1", "a", "}"), call(1, "c2", "b", "[]")],
            id="name repeated",
        ),
        pytest.param(
            [call(0, "c1", "a", "{"), call(0, "c9", None, "}"), call(1, "c2", "b", "[]")],
            id="a new id each time",
        ),
        pytest.param([call(0, "c1", "a", {}), call(1, "c2", "b", [])], id="read already"),
    ],
)
def test_calls_are_put_together_however_they_are_numbered(chunks: list[Any]):
    found = streamed(*chunks, CALLED)
    assert found.tool_calls == (ToolCall("a", "{}", "c1"), ToolCall("b", "[]", "c2"))
    assert found.stop_reason == "tool_calls"


def test_calls_without_number_and_id_are_told_apart_by_their_names():
    found = streamed(
        call(None, None, "a", "{"), call(None, None, None, "}"), call(None, None, "a", "{}")
    )
    assert found.tool_calls == (ToolCall("a", "{}"), ToolCall("a", "{}"))


def test_a_function_call_of_old_servers_is_a_tool_call():
    old = {"function_call": {"name": "a", "arguments": "{}"}}
    choice = {"message": old, "finish_reason": "function_call"}
    pieces = ({"function_call": {"name": "a"}}, {"function_call": {"arguments": "{}"}})
    expected = (ToolCall("a", "{}"),)
    assert plain(completion(choice)).tool_calls == expected
    assert streamed(*map(piece, pieces), CALLED).tool_calls == expected


@pytest.mark.parametrize(
    ("finish", "calls", "reason"),
    [
        (None, [], "end"),
        (None, [{"function": {"name": "a"}}], "tool_calls"),
        ("stop", [{"function": {"name": "a"}}], "tool_calls"),
        ("length", [], "length"),
        ("eos", [], "other"),
    ],
)
def test_reasons_to_stop_are_understood(finish: str | None, calls: list[Any], reason: str):
    message = {"content": "a", "tool_calls": calls}
    assert plain({"choices": [{"message": message, "finish_reason": finish}]}).stop_reason == reason


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, TokenUsage()),
        ({"prompt_tokens": None, "completion_tokens": -3}, TokenUsage()),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 17}, TokenUsage(5, 12)),
        ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 4}, TokenUsage(5, 0, 4)),
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
            },
            TokenUsage(9, 0, 4, 3),
        ),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, TokenUsage(5)),
    ],
)
def test_usage_is_what_can_be_made_of_it(usage: Any, expected: TokenUsage):
    body = completion({"message": {"content": "a"}}, usage=usage)
    assert plain(body).usage == expected


def test_an_answer_without_choices_is_none():
    with asked(reply(completion()), streams(completion())) as (adapter, _):
        with pytest.raises(TransientError, match="no choices"):
            adapter.complete(REQUEST)
        with pytest.raises(TransientError):
            adapter.complete(REQUEST, on_text=lambda _: None)


def test_pieces_without_choices_and_of_other_choices_are_passed_over():
    filters = {"choices": [], "prompt_filter_results": []}
    other = piece({"content": "no"}, index=1)
    assert streamed(filters, piece({"content": "a"}), other, STOP).text == "a"


def test_events_are_read_whatever_stands_between_them():
    body = [
        b"\xef\xbb\xbf: ping\r\n\r\n",
        b"event: message\r\ndata:" + event(piece({"content": "a\u2028b"}))[6:-2] + b"\r\n\r\n",
        b"id: 7\nretry: 3\n\n",
        event(piece({"content": "c"}))[:30],
        event(piece({"content": "c"}))[30:],
    ]
    assert streamed(*body, STOP).text == "a\u2028bc"


def test_characters_may_be_cut_in_half_between_pieces():
    data = b'data: {"choices": [{"delta": {"content": "\xc3\xbc"}}]}\n\n'
    assert streamed(data[:-8], data[-8:], STOP).text == "ü"
    halves = (piece({"content": "\ud83d"}), piece({"content": "\ude00"}))
    assert streamed(*halves, STOP).text == "\U0001f600"


def test_a_stream_that_was_done_needs_no_reason():
    assert streamed(piece({"content": "a"}), done=True).stop_reason == "end"
    assert streamed(piece({"content": "a"}), STOP, done=False).text == "a"


def test_a_server_that_does_not_stream_is_heard_all_the_same():
    heard: list[str] = []
    body = completion({"message": {"content": "whole"}, "finish_reason": "stop"})
    with asked(reply(body)) as (adapter, _):
        assert adapter.complete(REQUEST, on_text=heard.append).text == "whole"
    assert heard == ["whole"]
