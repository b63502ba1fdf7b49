import socket
from typing import Any

import pytest

from tests.adapters.chat_server import (
    REQUEST,
    Answer,
    Handler,
    drops,
    fails,
    is_silent,
    never_ends,
    piece,
    reply,
    streams,
)
from tests.adapters.openai.server import asked
from weakincentives.adapters import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ThrottledError,
    TransientError,
)
from weakincentives.adapters.openai import OpenAIAdapter

pytestmark = pytest.mark.usefixtures("clean_environment")


def error_of(answer: Answer, *, stream: bool = False, timeout: float = 10.0) -> ProviderError:
    with asked(answer) as (adapter, server):
        with pytest.raises(ProviderError) as caught:
            adapter.complete(REQUEST, on_text=(lambda _: None) if stream else None, timeout=timeout)
        assert len(server.requests) == 1
    error = caught.value
    assert error.provider == "openai"
    assert "openai" in str(error)
    assert "sk-secret" not in str(error)
    return error


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (400, InvalidRequestError, "gpt-test"),
        (401, AuthenticationError, "OPENAI_API_KEY or api_key"),
        (402, AuthenticationError, "account"),
        (403, AuthenticationError, "OPENAI_API_KEY or api_key"),
        (404, InvalidRequestError, "no model 'gpt-test' at http://127.0.0.1"),
        (408, TransientError, "try again"),
        (409, TransientError, "try again"),
        (413, ContextTooLongError, "shorten"),
        (422, InvalidRequestError, "gpt-test"),
        (429, ThrottledError, "wait"),
        (500, TransientError, "try again"),
        (502, TransientError, "try again"),
        (503, TransientError, "try again"),
        (529, ThrottledError, "wait"),
    ],
)
def test_a_status_is_an_error_that_says_what_to_do(
    status: int, kind: type[ProviderError], says: str
):
    error = error_of(fails(status, "the reason, with the key sk-secret"))
    assert type(error) is kind
    assert error.status == status
    assert says in str(error)
    assert "the reason" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (400, "context_length_exceeded", "too long", ContextTooLongError),
        (400, None, "This model's maximum context length is 8192 tokens", ContextTooLongError),
        (400, None, "the request exceeds the available context size", ContextTooLongError),
        (429, "rate_limit_exceeded", "Request too large for gpt-test", ContextTooLongError),
        (429, "insufficient_quota", "You exceeded your current quota", AuthenticationError),
        (503, None, "The server is overloaded", ThrottledError),
    ],
)
def test_what_is_said_tells_more_than_the_status(
    status: int, code: str | None, message: str, kind: type[ProviderError]
):
    assert type(error_of(fails(status, message, code=code))) is kind


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ("'max_tokens' is not supported. Use 'max_completion_tokens'", "='max_completion_tokens'"),
        ("Unknown field: stream_options", "stream_usage=False"),
        ("'response_format' of type 'json_schema' is not supported", "native_output=False"),
        ("Cannot use custom grammar constraints with tools.", "native_output=False"),
        ("llama does not support tools", "use a model"),
        ("max_tokens is too large: 9. This model supports at most 8", "8'"),
    ],
)
def test_a_feature_that_a_server_lacks_is_named_with_the_option_that_leaves_it_out(
    message: str, hint: str
):
    assert str(error_of(fails(400, message))).endswith((hint, hint + " that can call tools"))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0.5"}, 0.5),
        ({"retry_after_ms": "250", "retry_after": "1"}, 0.25),
        ({"retry_after": "Wed, 21 Oct 2099 07:28:00 GMT"}, 60.0),
        ({"retry_after": "Wed, 21 Oct 1999 07:28:00 GMT"}, 0.0),
        ({"retry_after": "-5"}, 0.0),
        ({"retry_after": "inf"}, None),
        ({"retry_after": "soon"}, None),
        ({}, None),
    ],
)
def test_a_provider_may_say_when_to_come_back(headers: dict[str, str], seconds: float | None):
    def answer(handler: Handler) -> None:
        handler.date_time_string = lambda timestamp=None: "Wed, 21 Oct 2099 07:27:00 GMT"
        fails(429, **headers)(handler)

    assert error_of(answer).retry_after == seconds


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("<html>bad gateway</html>", "bad gateway"),
        ({"detail": [{"loc": "body"}]}, "loc"),
        ({"error": "just text"}, "just text"),
        ("", ""),
        ([1], "1"),
    ],
)
def test_a_failure_is_told_whatever_its_shape(body: Any, says: str):
    error = error_of(reply(body, 500))
    assert isinstance(error, TransientError)
    assert says in str(error)


def test_a_long_failure_is_cut():
    assert len(str(error_of(fails(500, "x" * 100_000)))) < 1000


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ({"message": "slow down", "code": 429}, ThrottledError),
        ({"message": "no", "code": 401}, AuthenticationError),
        ({"message": "The engine is overloaded", "type": "server_error"}, ThrottledError),
        ({"message": "too long", "code": "context_length_exceeded"}, ContextTooLongError),
        ({"message": "The server had an error", "type": "server_error"}, TransientError),
        ("just text", TransientError),
    ],
)
def test_a_failure_without_a_status_of_its_own_is_understood(
    failure: Any, kind: type[ProviderError]
):
    assert type(error_of(reply({"error": failure}))) is kind
    late = streams(piece({"content": "a"}), {"error": failure})
    assert type(error_of(late, stream=True)) is kind


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", [drops(headers_first=False), drops(piece({"content": "a"}))])
def test_a_dropped_connection_may_be_tried_again(answer: Answer, stream: bool):
    error = error_of(answer, stream=stream)
    assert isinstance(error, TransientError)
    assert "http://127.0.0.1" in str(error)


def test_a_server_that_is_not_there_may_be_tried_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        adapter = OpenAIAdapter(
            "m", base_url=f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        )
        with pytest.raises(TransientError, match=r"127\.0\.0\.1.*refused") as caught:
            adapter.complete(REQUEST)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [is_silent, never_ends(b": ping\n\n"), never_ends(b'data: {"choices": []}\n\n')],
    ids=["silent", "comments", "events"],
)
def test_a_request_ends_in_time_whatever_trickles_in(answer: Answer, stream: bool):
    error = error_of(answer, stream=stream, timeout=0.05)
    assert isinstance(error, TransientError)
    assert "within 0.05 s" in str(error)


def test_an_answer_that_is_no_json_is_of_something_else():
    error = error_of(reply("<html>Welcome</html>"))
    assert isinstance(error, InvalidRequestError)
    assert "check base_url" in str(error)


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b"data: " + b"[" * 99_999])
def test_events_that_are_no_json_are_no_answer(data: bytes):
    assert isinstance(error_of(streams(data, done=False), stream=True), TransientError)


def test_an_answer_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weakincentives.adapters.http.lenient.MAX_STREAM", 1000)
    error = error_of(reply({"choices": "x" * 2000}))
    assert isinstance(error, TransientError)
    assert "longer than 1000 bytes" in str(error)
