import socket
from typing import Any

import pytest

from tests.adapters.anthropic.server import (
    KEY,
    REQUEST,
    asked,
    drops_after,
    event,
    events,
    fails,
    failure,
    pieces,
    text,
)
from tests.adapters.chat_server import Answer, Handler, is_silent, never_ends, reply, streams
from weakincentives.adapters import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ThrottledError,
    TransientError,
)
from weakincentives.adapters.anthropic.adapter import AnthropicAdapter

pytestmark = pytest.mark.usefixtures("clean_environment")

BEGUN = pieces(text("Hello"))[:4]


def error_of(answer: Answer, *, stream: bool = False, timeout: float = 10.0) -> ProviderError:
    with asked(answer) as (adapter, server):
        with pytest.raises(ProviderError) as caught:
            adapter.complete(REQUEST, on_text=(lambda _: None) if stream else None, timeout=timeout)
        assert len(server.requests) == 1
    error = caught.value
    assert error.provider == "anthropic"
    assert "anthropic" in str(error)
    assert KEY not in str(error)
    return error


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (400, InvalidRequestError, "claude-test"),
        (401, AuthenticationError, "ANTHROPIC_API_KEY or api_key"),
        (402, AuthenticationError, "account"),
        (403, AuthenticationError, "ANTHROPIC_API_KEY or api_key"),
        (404, InvalidRequestError, "no model 'claude-test' at http://127.0.0.1"),
        (408, TransientError, "try again"),
        (409, TransientError, "try again"),
        (413, ContextTooLongError, "shorten"),
        (429, ThrottledError, "wait"),
        (500, TransientError, "try again"),
        (503, TransientError, "try again"),
        (529, ThrottledError, "wait"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_status_is_an_error_that_says_what_to_do(
    status: int, kind: type[ProviderError], says: str, stream: bool
):
    error = error_of(fails(status, f"the reason, with the key {KEY}"), stream=stream)
    assert type(error) is kind
    assert error.status == status
    assert says in str(error)
    assert "the reason" in str(error)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", ContextTooLongError),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000",
            ContextTooLongError,
        ),
        ("Your credit balance is too low to access the API", AuthenticationError),
    ],
)
def test_what_is_said_tells_more_than_the_status(message: str, kind: type[ProviderError]):
    assert type(error_of(fails(400, message))) is kind


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("max_tokens: 32000 > 8192, which is the maximum allowed", "a smaller max_tokens"),
        ("does not support tool types: text_editor_20250728", "native_tools=False"),
        ("tools.1: unknown type bash_20250124", "native_tools=False"),
        ("output_config.format: Extra inputs are not permitted", "native_output=False"),
        ("tools.0.cache_control: Extra inputs are not permitted", "cache=False"),
        ("temperature: Extra inputs are not permitted", "omit the temperature"),
    ],
)
def test_a_feature_that_is_refused_is_named_with_what_leaves_it_out(message: str, hint: str):
    assert str(error_of(fails(400, message))).endswith(hint)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ThrottledError),
        ("rate_limit_error", ThrottledError),
        ("api_error", TransientError),
        ("timeout_error", TransientError),
        ("authentication_error", AuthenticationError),
        ("invalid_request_error", InvalidRequestError),
        ("something_new", TransientError),
    ],
)
def test_a_failure_in_the_middle_of_an_answer_is_understood(kind: str, error: type[ProviderError]):
    late = events(*BEGUN, failure(kind, "sorry"))
    found = error_of(late, stream=True)
    assert type(found) is error
    assert "sorry" in str(found)
    assert type(error_of(reply(failure(kind, "sorry")))) is error


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "Wed, 21 Oct 2099 07:28:00 GMT"}, 60.0),
        ({"retry_after": "soon"}, None),
        ({}, None),
    ],
)
def test_a_provider_may_say_when_to_come_back(headers: dict[str, str], seconds: float | None):
    def answer(handler: Handler) -> None:
        handler.date_time_string = lambda timestamp=None: "Wed, 21 Oct 2099 07:27:00 GMT"
        fails(429, "slow down", "rate_limit_error", **headers)(handler)

    assert error_of(answer).retry_after == seconds


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("<html>bad gateway</html>", "bad gateway"),
        ({"error": "just text"}, "just text"),
        ({"detail": [{"loc": "body"}]}, "loc"),
        ({"type": "error", "error": None}, ""),
        ("", ""),
        ([1], "1"),
    ],
)
def test_a_failure_is_told_whatever_its_shape(body: Any, says: str):
    error = error_of(reply(body, 500))
    assert isinstance(error, TransientError)
    assert says in str(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer", [drops_after(headers_first=False), drops_after(*BEGUN)], ids=["at once", "half-way"]
)
def test_a_dropped_connection_may_be_tried_again(answer: Answer, stream: bool):
    error = error_of(answer, stream=stream)
    assert isinstance(error, TransientError)
    assert "http://127.0.0.1" in str(error)


def test_a_server_that_is_not_there_may_be_tried_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        with (
            AnthropicAdapter("m", base_url=url) as adapter,
            pytest.raises(TransientError, match=r"127\.0\.0\.1.*refused") as caught,
        ):
            adapter.complete(REQUEST)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [is_silent, never_ends(b": ping\n\n"), never_ends(event({"type": "ping"}))],
    ids=["silent", "comments", "events"],
)
def test_a_request_ends_in_time_whatever_trickles_in(answer: Answer, stream: bool):
    error = error_of(answer, stream=stream, timeout=0.05)
    assert isinstance(error, TransientError)
    assert "within 0.05 s" in str(error)


def test_a_stream_that_ends_early_is_no_answer():
    error = error_of(events(*BEGUN), stream=True)
    assert isinstance(error, TransientError)
    assert "ended before" in str(error)


@pytest.mark.parametrize("body", [{}, {"type": "message"}, {"type": "other", "content": []}])
def test_an_answer_without_content_may_be_tried_again(body: dict[str, Any]):
    assert isinstance(error_of(reply(body)), TransientError)


def test_an_answer_that_is_no_json_is_of_something_else():
    error = error_of(reply("<html>Welcome</html>"))
    assert isinstance(error, InvalidRequestError)
    assert "check base_url" in str(error)


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b"data: " + b"[" * 99_999])
def test_events_that_are_no_json_are_no_answer(data: bytes):
    assert isinstance(error_of(streams(data, done=False), stream=True), TransientError)


def test_an_answer_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weakincentives.adapters.http.lenient.MAX_STREAM", 1000)
    error = error_of(reply({"content": "x" * 2000}))
    assert isinstance(error, TransientError)
    assert "longer than 1000 bytes" in str(error)
