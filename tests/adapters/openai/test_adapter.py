from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.adapters.chat_server import REQUEST, fails, reply, says, serving, streams
from tests.adapters.chat_server import piece as chunk
from tests.adapters.openai.server import asked
from weakincentives.adapters import (
    AssistantMessage,
    CompletionRequest,
    InvalidRequestError,
    OutputFormat,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.prompt import Media
from weakincentives.runtime import TokenUsage

pytestmark = pytest.mark.usefixtures("clean_environment")

CALLS = (ToolCall("read", '{"path": "a"}', "call_1"), ToolCall("list", "{}", "call_2"))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_plain_answer_has_text_usage_and_names():
    with asked(says("Hello, world")) as (adapter, server):
        completion = adapter.complete(REQUEST)
    assert completion.text == "Hello, world"
    assert completion.stop_reason == "end"
    assert completion.usage == TokenUsage(20, 7, 12)
    assert (completion.model, completion.response_id) == ("gpt-test-1", "chatcmpl-1")
    assert server.last == {
        "model": "gpt-test",
        "messages": [{"role": "user", "content": "hello"}],
    }
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == "Bearer sk-secret"


def test_a_streamed_answer_is_what_the_plain_one_is():
    with asked(says("Hello, wörld", *CALLS), says("Hello, wörld", *CALLS)) as (adapter, server):
        heard: list[str] = []
        plain = adapter.complete(REQUEST)
        assert adapter.complete(REQUEST, on_text=heard.append) == plain
    assert heard == ["Hello", ", wör", "ld"]
    assert plain.tool_calls == CALLS
    assert plain.stop_reason == "tool_calls"
    assert server.last["stream"] is True
    assert server.last["stream_options"] == {"include_usage": True}


def test_a_whole_conversation_is_sent_in_the_words_of_the_api():
    request = CompletionRequest(
        (
            SystemMessage("Be kind."),
            UserMessage("hello"),
            AssistantMessage("I look.", CALLS),
            ToolMessage("call_1", "read", "text"),
            ToolMessage("call_2", "list", "failed", success=False),
            AssistantMessage("", (ToolCall("read", {"path": "ü"}, "call_3"),)),
            ToolMessage("call_3", "read", ""),
        ),
        (ToolDefinition("read", "Reads.", SCHEMA),),
        OutputFormat("Answer", SCHEMA),
        max_tokens=99,
        temperature=0.5,
    )
    with asked(says("ok")) as (adapter, server):
        adapter.complete(request)
    call_1, call_2 = (
        {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": text}}
        for each, text in zip(CALLS, ('{"path": "a"}', "{}"), strict=True)
    )
    sent = server.last
    assert sent["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call_1, call_2]},
        {"role": "tool", "tool_call_id": "call_1", "content": "text"},
        {"role": "tool", "tool_call_id": "call_2", "content": "failed"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_3",
                    "type": "function",
                    "function": {"name": "read", "arguments": '{"path":"ü"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_3", "content": ""},
    ]
    function = {"name": "read", "description": "Reads.", "parameters": SCHEMA}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "Answer", "schema": SCHEMA, "strict": True},
    }
    assert (sent["max_tokens"], sent["temperature"]) == (99, 0.5)


@pytest.mark.parametrize(
    "schema",
    [
        {**SCHEMA, "required": []},
        {**SCHEMA, "properties": {"name": {"type": "object", "additionalProperties": {}}}},
        {"type": "array", "items": {**SCHEMA, "additionalProperties": True}},
    ],
)
def test_a_schema_with_something_optional_is_not_called_strict(schema: dict[str, Any]):
    with asked(says("{}")) as (adapter, server):
        adapter.complete(CompletionRequest(REQUEST.messages, output=OutputFormat("A", schema)))
    assert server.last["response_format"]["json_schema"]["strict"] is False


def test_features_that_a_server_lacks_are_left_out_when_told():
    output = OutputFormat("Answer", SCHEMA)
    request = CompletionRequest(REQUEST.messages, output=output, max_tokens=5)
    with asked(
        says("hi"),
        native_output=False,
        stream_usage=False,
        max_tokens_field="max_completion_tokens",
    ) as (adapter, server):
        completion = adapter.complete(request, on_text=lambda _: None)
    assert not adapter.native_output
    assert completion.usage == TokenUsage()
    assert set(server.last) == {"model", "messages", "stream", "max_completion_tokens"}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ("", "{}"),
        ("  ", "{}"),
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": ', '{"invalid_arguments": "{\\"a\\": "}'),
        ("[1]", '{"invalid_arguments": "[1]"}'),
    ],
)
def test_a_call_goes_back_as_json_that_every_server_can_read(arguments: str, sent: str):
    calls = (ToolCall("read", arguments, "c"),)
    messages = (*REQUEST.messages, AssistantMessage("", calls), ToolMessage("c", "read", "no"))
    with asked(says("ok")) as (adapter, server):
        adapter.complete(CompletionRequest(messages))
    assert server.last["messages"][1]["tool_calls"][0]["function"]["arguments"] == sent


def test_half_characters_are_sent_as_something_that_can_be_sent():
    with asked(says("ok")) as (adapter, server):
        adapter.complete(CompletionRequest((UserMessage("a\ud800b \ud83d\ude00"),)))
    assert server.last["messages"][0]["content"] == "a\ufffdb \U0001f600"


def test_nothing_but_the_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment\n")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Other: 1\nAuthorization: Bearer other")
    with serving(says("ok")) as server:
        headers = {"X-Title": "wink"}
        OpenAIAdapter("m", base_url=server.url, headers=headers).complete(REQUEST)
    sent = server.requests[0].headers
    assert sent["authorization"] == "Bearer sk-environment"
    assert sent["x-title"] == "wink"
    assert not {"x-other", "openai-organization", "openai-project"} & set(sent)


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin")
    with serving(says("ok")) as server:
        OpenAIAdapter("m", base_url=server.url).complete(REQUEST)
    assert "sk-" not in server.requests[0].headers["authorization"]


def test_what_a_router_wants_back_goes_back_to_it():
    message = {"reasoning_content": "hm", "reasoning_details": [{"a": 1}]}
    call = {
        "id": "c",
        "function": {"name": "read", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "x"}},
    }
    parts = [{**message, "tool_calls": [{**call, "index": 0}]}, message]
    answer = streams(*(chunk(each) for each in parts), chunk({}, finish_reason="tool_calls"))
    with asked(answer, says("ok")) as (adapter, server):
        said = adapter.complete(REQUEST, on_text=lambda _: None)
        before = AssistantMessage(said.text, said.tool_calls, said.extras)
        adapter.complete(CompletionRequest((*REQUEST.messages, before)))
    sent = server.last["messages"][1]
    assert said.text == ""
    assert sent["reasoning_content"] == "hmhm"
    assert sent["reasoning_details"] == [{"a": 1}, {"a": 1}]
    assert sent["tool_calls"][0]["extra_content"] == call["extra_content"]


def test_a_refusal_of_the_model_is_not_an_answer():
    filtered = {"index": 0, "message": {"content": "half"}, "finish_reason": "content_filter"}
    with asked(says(refusal="I will not"), reply({"choices": [filtered]})) as (adapter, _):
        refused = adapter.complete(REQUEST)
        assert (refused.text, refused.stop_reason) == ("I will not", "refused")
        assert adapter.complete(REQUEST).stop_reason == "refused"


def test_openai_itself_gets_its_own_words_and_nothing_of_others(monkeypatch: pytest.MonkeyPatch):
    extras = {"reasoning_content": "of another provider"}
    before = AssistantMessage("", CALLS[:1], extras)
    request = CompletionRequest((*REQUEST.messages, before), max_tokens=5)
    with serving(says("ok")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        adapter = OpenAIAdapter("m", api_key="sk-1", base_url="http://api.openai.com/v1")
        adapter.complete(request)
    assert proxy.requests[0].path == "http://api.openai.com/v1/chat/completions"
    assert proxy.last["max_completion_tokens"] == 5
    assert "max_tokens" not in proxy.last
    assert "reasoning_content" not in proxy.last["messages"][1]


def test_several_runs_may_ask_at_once():
    with asked(*[says("a" * 100, *CALLS)] * 8) as (adapter, _), ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: adapter.complete(REQUEST, on_text=lambda _: None), range(8))
        )
    assert {(each.text, each.tool_calls) for each in found} == {("a" * 100, CALLS)}


def test_pictures_are_shown_after_the_results_of_their_message():
    request = CompletionRequest(
        (
            UserMessage("look"),
            AssistantMessage("", CALLS),
            ToolMessage("call_1", "read", "a picture", media=(Media("image/png", b"PNG"),)),
            ToolMessage("call_2", "list", "text"),
            UserMessage("and now?"),
        )
    )
    with asked(says("ok"), says("ok"), pictures=True) as (adapter, server):
        adapter.complete(request)
    roles = [each["role"] for each in server.last["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user", "user"]
    assert server.last["messages"][4]["content"] == [
        {"type": "text", "text": "From read, call_1:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
    ]
    with asked(says("ok")) as (adapter, server):
        adapter.complete(request)
    assert "image_url" not in str(server.last)


def test_an_effort_is_sent_under_the_name_of_the_api():
    with asked(says("ok")) as (adapter, server):
        adapter.complete(CompletionRequest(REQUEST.messages, effort="minimal"))
    assert server.last["reasoning_effort"] == "minimal"


def test_a_picture_of_the_user_is_sent_with_the_text_also_where_those_of_tools_are_not():
    message = UserMessage("What is this?", (Media("image/png", b"PNG"),))
    with asked(says("ok"), pictures=False) as (adapter, server):
        adapter.complete(CompletionRequest((message,)))
    assert server.last["messages"][0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}},
    ]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Unsupported parameter: 'reasoning_effort' is not supported", "omit the effort"),
        ("Unsupported value: 'temperature' does not support 0.5", "omit the temperature"),
    ],
)
def test_a_rejected_option_is_named_with_what_to_do(said: str, advice: str):
    with (
        asked(fails(400, said)) as (adapter, _),
        pytest.raises(InvalidRequestError, match=advice),
    ):
        adapter.complete(REQUEST)
