import json
from typing import Any

import pytest
from opentelemetry import trace

from tests.adapters.anthropic.server import (
    KEY,
    REQUEST,
    asked,
    events,
    pieces,
    says,
    sends,
    text,
    use,
)
from tests.adapters.chat_server import reply, serving
from weakincentives.adapters import (
    AssistantMessage,
    AuthenticationError,
    Completion,
    CompletionRequest,
    InvalidRequestError,
    OutputFormat,
    RunOptions,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from weakincentives.adapters.anthropic.adapter import AnthropicAdapter
from weakincentives.prompt import MarkdownSection, Media, Prompt
from weakincentives.runtime import TokenUsage
from weakincentives.runtime.session import Session

pytestmark = pytest.mark.usefixtures("clean_environment")

CALLS = (ToolCall("read", '{"path": "a"}', "toolu_1"), ToolCall("list", "{}", "toolu_2"))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
READ = ToolDefinition("read", "Reads.", SCHEMA)
THOUGHT = {"type": "thinking", "thinking": "I should look.", "signature": "c2lnbmVk"}
HIDDEN = {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}
CACHED = {"type": "ephemeral"}


def after(completion: Completion) -> AssistantMessage:
    """Return the message that a run makes of an answer."""
    return AssistantMessage(completion.text, completion.tool_calls, completion.extras)


def sent_for(*messages: Any, **given: Any) -> list[dict[str, Any]]:
    """Return a conversation as the server gets it, without what the user said first."""
    with asked(says("ok"), **given) as (adapter, server):
        adapter.complete(CompletionRequest((UserMessage("hello"), *messages)))
    return server.last["messages"][1:]


def test_a_plain_answer_has_text_usage_and_names():
    with asked(says("Hello, world")) as (adapter, server):
        completion = adapter.complete(REQUEST)
    assert completion == Completion(
        "Hello, world",
        usage=TokenUsage(20, 7, 12, 3),
        model="claude-test-1",
        response_id="msg_1",
    )
    assert server.last == {
        "model": "claude-test",
        "max_tokens": 32_000,
        "messages": [{"role": "user", "content": [text("hello")]}],
    }
    assert server.requests[0].path == "/v1/messages"
    assert KEY in server.requests[0].headers["authorization"]
    assert server.requests[0].headers["user-agent"].startswith("Anthropic/Python ")


def test_a_streamed_answer_is_what_the_plain_one_is():
    with asked(says("Hello, wörld", *CALLS), says("Hello, wörld", *CALLS)) as (adapter, server):
        heard: list[str] = []
        plain = adapter.complete(REQUEST)
        assert adapter.complete(REQUEST, on_text=heard.append) == plain
    assert heard == ["Hello", ", wör", "ld"]
    assert plain.tool_calls == CALLS
    assert plain.stop_reason == "tool_calls"
    assert server.last["stream"] is True


def test_a_whole_conversation_is_sent_in_the_words_of_the_api():
    request = CompletionRequest(
        (
            SystemMessage("Be kind."),
            UserMessage("hello"),
            AssistantMessage("I look.", CALLS),
            ToolMessage("toolu_1", "read", "text"),
            ToolMessage("toolu_2", "list", "failed", success=False),
            UserMessage("Go on."),
            AssistantMessage("", (ToolCall("read", {"path": "ü"}, "toolu_3"),)),
            ToolMessage("toolu_3", "read", ""),
        ),
        (READ,),
        OutputFormat("Answer", SCHEMA),
        max_tokens=99,
        temperature=0.5,
    )
    with asked(says("ok"), cache=False) as (adapter, server):
        adapter.complete(request)
    assert server.last == {
        "model": "claude-test",
        "max_tokens": 99,
        "temperature": 0.5,
        "system": [text("Be kind.")],
        "tools": [{"name": "read", "description": "Reads.", "input_schema": SCHEMA}],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "messages": [
            {"role": "user", "content": [text("hello")]},
            {"role": "assistant", "content": [text("I look."), *map(use, CALLS)]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "text"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_2",
                        "content": "failed",
                        "is_error": True,
                    },
                    text("Go on."),
                ],
            },
            {
                "role": "assistant",
                "content": [use(ToolCall("read", '{"path": "ü"}', "toolu_3"))],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_3"}]},
        ],
    }


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_goes_back_as_it_came_and_where_it_was(stream: bool):
    more = {"type": "thinking", "thinking": "", "signature": "b3RoZXI="}
    blocks = [THOUGHT, HIDDEN, text("I look."), use(CALLS[0]), more, use(CALLS[1])]
    heard: list[str] = []
    with asked(sends(*blocks, stop="tool_use")) as (adapter, _):
        completion = adapter.complete(REQUEST, on_text=heard.append if stream else None)
    assert completion.text == "I look."
    assert completion.tool_calls == CALLS
    assert "".join(heard) == ("I look." if stream else "")
    recorded = json.loads(json.dumps(dict(completion.extras)))
    message = AssistantMessage(completion.text, completion.tool_calls, recorded)
    assert sent_for(message, ToolMessage("toolu_1", "read", "x"))[0]["content"] == blocks


def test_reasoning_is_left_out_of_a_message_that_was_changed():
    with asked(sends(THOUGHT, text("I look."))) as (adapter, _):
        extras = adapter.complete(REQUEST).extras
    changed = AssistantMessage("I look away.", extras=extras)
    assert sent_for(changed)[0]["content"] == [text("I look away.")]
    other = AssistantMessage("I look.", CALLS[:1], extras)
    assert sent_for(other)[0]["content"] == [text("I look."), use(CALLS[0])]


def test_a_message_of_nothing_but_reasoning_is_not_sent():
    with asked(sends(THOUGHT, stop="max_tokens")) as (adapter, _):
        cut_off = adapter.complete(REQUEST)
    assert (cut_off.text, cut_off.stop_reason) == ("", "length")
    assert sent_for(after(cut_off), UserMessage("Again.")) == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_paused_goes_on_with_what_was_sent(stream: bool):
    blocks = [
        text("I search."),
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    ]
    with asked(sends(*blocks, stop="pause_turn")) as (adapter, _):
        paused = adapter.complete(REQUEST, on_text=(lambda _: None) if stream else None)
    assert (paused.stop_reason, paused.tool_calls) == ("paused", ())
    assert sent_for(after(paused)) == [{"role": "assistant", "content": blocks}]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "paused"),
        ("refusal", "refused"),
        ("something_new", "other"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_why_a_model_stopped_is_told(stop: str, reason: str, stream: bool):
    with asked(sends(text("a"), stop=stop)) as (adapter, _):
        on_text = (lambda _: None) if stream else None
        assert adapter.complete(REQUEST, on_text=on_text).stop_reason == reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_that_says_nothing_is_explained(stream: bool):
    details = {"type": "refusal", "category": "cyber", "explanation": "Not this."}
    with asked(sends(stop="refusal", stop_details=details)) as (adapter, _):
        refused = adapter.complete(REQUEST, on_text=(lambda _: None) if stream else None)
    assert (refused.stop_reason, refused.text) == ("refused", "Not this.")


@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_were_cut_off_are_never_taken_for_whole(stream: bool):
    cut = use(ToolCall("rm", "{}", "toolu_2"))
    whole = use(CALLS[0])
    with asked(sends(whole, cut, stop="max_tokens")) as (adapter, _):
        completion = adapter.complete(REQUEST, on_text=(lambda _: None) if stream else None)
    first, last = completion.tool_calls
    assert first == CALLS[0]
    assert isinstance(last.arguments, str)
    with pytest.raises(json.JSONDecodeError):
        json.loads(last.arguments)


@pytest.mark.parametrize("given", ['{"path": "a', "[1]", "nonsense", '{"x": NaN}', "[" * 99_999])
def test_invalid_arguments_are_passed_on_as_they_came_and_sent_back_as_an_object(given: str):
    begun = pieces(use(ToolCall("read", "{}", "toolu_1")), stop="tool_use")
    delta = {"type": "input_json_delta", "partial_json": given}
    begun.insert(-3, {"type": "content_block_delta", "index": 0, "delta": delta})
    with asked(events(*begun)) as (adapter, _):
        completion = adapter.complete(REQUEST, on_text=lambda _: None)
    assert completion.tool_calls == (ToolCall("read", given, "toolu_1"),)
    sent = sent_for(after(completion), ToolMessage("toolu_1", "read", "no", success=False))
    assert sent[0]["content"][0]["input"] == {"invalid_arguments": given}


def test_halves_of_characters_reach_the_server_as_text():
    call = ToolCall("write", '{"text": "\\ud83d\\ude00 \\ud800"}', "toolu_1")
    sent = sent_for(AssistantMessage("\ud83d", (call,)), ToolMessage("toolu_1", "write", "\udc00"))
    assert sent[0]["content"][0]["text"] == "\ufffd"
    assert sent[0]["content"][1]["input"] == {"text": "\U0001f600 \ufffd"}
    assert sent[1]["content"][0]["content"] == "\ufffd"


def test_what_the_api_refuses_for_its_form_is_not_sent():
    call = ToolCall("files.read", "", "call:1")
    sent = sent_for(
        AssistantMessage(" \n", (call,)),
        ToolMessage("call:1", "files.read", " ", success=False),
        AssistantMessage(""),
        UserMessage("Go on."),
    )
    used = {"type": "tool_use", "id": "call_1", "name": "files_read", "input": {}}
    failed = {"type": "tool_result", "tool_use_id": "call_1", "is_error": True}
    assert sent == [
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [{**failed, "content": "The call failed"}, text("Go on.")]},
    ]


PICTURES = (Media("image/png", b"png"), Media("audio/wav", b"wav"))


@pytest.mark.parametrize("said", ["a chart", ""])
def test_pictures_are_in_the_result_that_they_belong_to(said: str):
    result = ToolMessage("toolu_1", "read", said, media=PICTURES)
    sent = sent_for(AssistantMessage("", CALLS[:1]), result, pictures=True)[1]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    picture = {"type": "image", "source": source}
    assert [each["tool_use_id"] for each in sent] == ["toolu_1"]
    assert sent[0]["content"] == [*([text(said)] if said else []), picture]


def test_pictures_are_left_out_of_failures_and_for_models_that_cannot_see():
    failed = ToolMessage("toolu_1", "read", "no", success=False, media=PICTURES)
    result = ToolMessage("toolu_1", "read", "a chart", media=PICTURES)
    call = AssistantMessage("", CALLS[:1])
    assert sent_for(call, failed, pictures=True)[1]["content"][0]["content"] == "no"
    assert sent_for(call, result)[1]["content"][0]["content"] == "a chart"


def test_what_comes_again_is_marked_for_the_cache():
    messages = (
        SystemMessage("Be kind."),
        UserMessage("one"),
        AssistantMessage("", CALLS),
        ToolMessage("toolu_1", "read", "a"),
        ToolMessage("toolu_2", "list", "b"),
        AssistantMessage("", (ToolCall("read", {}, "toolu_3"),)),
        ToolMessage("toolu_3", "read", "c"),
    )
    with asked(says("ok"), says("ok")) as (adapter, server):
        adapter.complete(CompletionRequest(messages, (READ, READ)))
        marked = server.last
        adapter.complete(CompletionRequest(messages))
        unmarked = server.last
    assert [each.get("cache_control") for each in marked["tools"]] == [None, CACHED]
    assert [each.get("cache_control") for each in marked["system"]] == [CACHED]
    blocks = [each for turn in marked["messages"] for each in turn["content"]]
    ends = [each["tool_use_id"] for each in blocks if "cache_control" in each]
    assert ends == ["toolu_2", "toolu_3"]
    assert str(marked).count("cache_control") == 4
    assert "cache_control" not in str(unmarked)


def test_more_can_be_sent_and_comes_together_with_what_is_sent_anyway():
    extra = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    headers = {"anthropic-beta": "new-2030"}
    with (
        serving(says("ok")) as server,
        AnthropicAdapter(
            "m", base_url=server.url, extra_body=extra, headers=headers, max_tokens=7
        ) as adapter,
    ):
        adapter.complete(CompletionRequest(REQUEST.messages, (), OutputFormat("A", SCHEMA)))
    assert server.last["thinking"] == {"type": "adaptive"}
    assert server.last["output_config"]["effort"] == "high"
    assert server.last["output_config"]["format"]["schema"] == SCHEMA
    assert server.last["max_tokens"] == 7
    assert server.requests[0].headers["anthropic-beta"] == "new-2030"


@pytest.mark.parametrize(
    "node",
    [
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {"$ref": "#/$defs/Tree"},
        {"anyOf": [{"type": "null"}, {"type": "array", "items": {}}]},
    ],
)
def test_a_schema_that_the_api_cannot_keep_to_is_told_in_words(node: dict[str, Any]):
    tree = {**SCHEMA, "properties": {"name": {"$ref": "#/$defs/Tree"}}}
    schema = {**SCHEMA, "properties": {"name": node}, "$defs": {"Tree": tree}}
    with asked(says("{}")) as (adapter, server):
        adapter.complete(CompletionRequest(REQUEST.messages, (), OutputFormat("A", schema)))
    assert "output_config" not in server.last
    assert json.dumps(schema, separators=(",", ":")) in server.last["system"][0]["text"]


def test_a_schema_is_sent_as_the_api_can_keep_to_it():
    inner = {**SCHEMA, "properties": {"name": {"type": "integer", "minimum": 1}}}
    either = {"anyOf": [{"$ref": "#/$defs/Inner"}, {"enum": ["x"]}], "default": "x"}
    schema = {**SCHEMA, "properties": {"name": either}, "$defs": {"Inner": inner}}
    with asked(says("{}")) as (adapter, server):
        adapter.complete(CompletionRequest(REQUEST.messages, (), OutputFormat("A", schema)))
    sent = server.last["output_config"]["format"]["schema"]
    assert sent["$defs"]["Inner"]["additionalProperties"] is False
    assert "minimum" not in sent["$defs"]["Inner"]["properties"]["name"]
    assert "system" not in server.last


def test_a_server_that_does_not_stream_is_heard_all_the_same():
    whole = {"type": "message", "content": [text("Hi")], "stop_reason": "end_turn"}
    heard: list[str] = []
    with asked(reply(whole)) as (adapter, _):
        assert adapter.complete(REQUEST, on_text=heard.append).text == "Hi"
    assert heard == ["Hi"]


def test_a_stream_may_lack_what_is_not_needed():
    said = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "x": 1}},
        {"type": "something_new"},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        {"type": "message_delta", "usage": {"output_tokens": 3}},
    ]
    with asked(events(*said)) as (adapter, _):
        completion = adapter.complete(REQUEST, on_text=lambda _: None)
    assert completion == Completion("Hi", usage=TokenUsage(0, 3), stop_reason="length")


def test_spans_are_made_by_who_asks_and_not_told_to_the_provider():
    context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1))
    with asked(says("ok")) as (adapter, server), trace.use_span(trace.NonRecordingSpan(context)):
        adapter.complete(REQUEST)
    assert "traceparent" not in server.requests[0].headers


@pytest.mark.parametrize("suffix", ["", "/", "/v1/"])
def test_the_version_may_stand_in_the_url(suffix: str):
    with serving(says("hi")) as server:
        url = server.url.removesuffix("/v1") + "/proxy" + suffix
        with AnthropicAdapter("m", base_url=url) as adapter:
            adapter.complete(REQUEST)
    assert server.requests[0].path == "/proxy/v1/messages"


def test_of_the_environment_only_the_key_is_read(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "API_KEY": "sk-env",
        "AUTH_TOKEN": "token-env",
        "BASE_URL": "http://127.0.0.1:1",
        "CUSTOM_HEADERS": "x-odd: yes",
        "PROFILE": "nobody",
        "WORKSPACE_ID": "wrkspc_env",
    }.items():
        monkeypatch.setenv(f"ANTHROPIC_{name}", value)
    assert AnthropicAdapter("m")._endpoint.url == "https://api.anthropic.com"
    with serving(says("a"), says("b")) as server:
        for key in (None, "sk-given"):
            with AnthropicAdapter("m", api_key=key, base_url=server.url) as adapter:
                adapter.complete(REQUEST)
    from_environment, given = (each.headers for each in server.requests)
    assert from_environment["authorization"] == "Bearer sk-env"
    assert given["authorization"] == "Bearer sk-given"
    assert not {"x-odd", "anthropic-workspace-id", "traceparent"} & {*from_environment, *given}
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(AuthenticationError, match="ANTHROPIC_API_KEY or api_key"):
        AnthropicAdapter("m")


def test_max_tokens_must_be_positive():
    with pytest.raises(ValueError, match="max_tokens must be more than 0: 0"):
        AnthropicAdapter("m", api_key="sk-1", max_tokens=0)


def test_an_effort_is_sent_beside_the_format_of_the_answer_and_what_is_always_sent():
    request = CompletionRequest(
        REQUEST.messages, output=OutputFormat("Answer", SCHEMA), effort="xhigh"
    )
    body = {"output_config": {"effort": "low", "x": 1}}
    with serving(says("ok")) as server:
        AnthropicAdapter("claude-test", api_key=KEY, base_url=server.url, extra_body=body).complete(
            request
        )
    config = server.last["output_config"]
    assert (config["effort"], config["x"], config["format"]["type"]) == ("xhigh", 1, "json_schema")


def test_an_effort_that_the_provider_does_not_have_is_refused_before_anything_is_sent():
    prompt = Prompt(ns="a", key="b", sections=[MarkdownSection[None](title="A", template="b")])
    with (
        asked() as (adapter, server),
        pytest.raises(InvalidRequestError, match=r"choose one of low, .* max: 'minimal'"),
    ):
        adapter.evaluate(prompt, session=Session(), options=RunOptions(effort="minimal"))
    assert server.requests == []


def test_a_picture_of_the_user_comes_before_the_text():
    message = UserMessage("What is this?", (Media("image/png", b"png"),))
    sent = sent_for(AssistantMessage("Yes?"), message, pictures=False)
    source = {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    assert sent[1]["content"] == [{"type": "image", "source": source}, text("What is this?")]
