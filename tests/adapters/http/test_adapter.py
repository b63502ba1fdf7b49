"""What the adapters that share the HTTP core have in common, for each of them."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.adapters.chat_server import (
    REQUEST,
    Answer,
    Handler,
    is_silent,
    never_ends,
    reply,
    serving,
    streams,
)
from tests.adapters.http.providers import PROVIDERS, Provider
from tests.adapters.http.providers import provider_error as error_of
from weakincentives.adapters import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ThrottledError,
    TransientError,
)
from weakincentives.adapters.http.adapter import limit_pieces
from weakincentives.adapters.http.errors import Endpoint

pytestmark = pytest.mark.usefixtures("clean_environment")

ENDPOINT = Endpoint("someone", "m", "http://localhost", "the key")


@pytest.fixture(params=PROVIDERS, ids=lambda each: each.name)
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (400, InvalidRequestError, "MODEL"),
        (401, AuthenticationError, "KEY"),
        (402, AuthenticationError, "account"),
        (403, AuthenticationError, "KEY"),
        (404, InvalidRequestError, "no model 'MODEL' at http://127.0.0.1"),
        (408, TransientError, "try again"),
        (409, TransientError, "try again"),
        (413, ContextTooLongError, "shorten"),
        (422, InvalidRequestError, "MODEL"),
        (429, ThrottledError, "wait"),
        (500, TransientError, "try again"),
        (502, TransientError, "try again"),
        (503, TransientError, "try again"),
        (529, ThrottledError, "is overloaded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_status_is_an_error_that_says_what_to_do(
    provider: Provider, status: int, kind: type[ProviderError], says: str, stream: bool
):
    message = f"the reason, with the key {provider.key}"
    error = error_of(provider, provider.fails(status, message), stream=stream)
    assert type(error) is kind
    assert error.status == status
    assert says.replace("MODEL", provider.model).replace("KEY", provider.key_source) in str(error)
    assert "the reason" in str(error)


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
def test_a_provider_may_say_when_to_come_back(
    provider: Provider, headers: dict[str, str], seconds: float | None
):
    def answer(handler: Handler) -> None:
        handler.date_time_string = lambda timestamp=None: "Wed, 21 Oct 2099 07:27:00 GMT"
        provider.fails(429, "slow down", **headers)(handler)

    assert error_of(provider, answer).retry_after == seconds


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("<html>bad gateway</html>", "bad gateway"),
        ({"detail": [{"loc": "body"}]}, "loc"),
        ({"error": "just text"}, "just text"),
        ({"type": "error", "error": None}, ""),
        ("", ""),
        ([1], "1"),
    ],
)
def test_an_error_response_is_reported_whatever_its_shape(provider: Provider, body: Any, says: str):
    error = error_of(provider, reply(body, 500))
    assert isinstance(error, TransientError)
    assert says in str(error)


def test_a_long_error_response_is_cut(provider: Provider):
    assert len(str(error_of(provider, provider.fails(500, "x" * 100_000)))) < 1000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True], ids=["at once", "half-way"])
def test_a_dropped_connection_may_be_tried_again(provider: Provider, begun: bool, stream: bool):
    error = error_of(provider, provider.drops(headers_first=begun, begun=begun), stream=stream)
    assert isinstance(error, TransientError)
    assert "http://127.0.0.1" in str(error)


def test_after_a_dropped_connection_the_next_request_is_answered(provider: Provider):
    with provider.serve(provider.drops(begun=True), provider.says("whole")) as (adapter, _):
        with pytest.raises(TransientError):
            adapter.complete(REQUEST, on_text=lambda _: None)
        assert adapter.complete(REQUEST).text == "whole"


def test_a_server_that_is_not_there_may_be_tried_again(provider: Provider):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        with (
            provider.create("m", base_url=url) as adapter,
            pytest.raises(TransientError, match=r"127\.0\.0\.1.*refused") as caught,
        ):
            adapter.complete(REQUEST)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["silent", "comments", "events"])
def test_a_request_ends_in_time_whatever_trickles_in(provider: Provider, kind: str, stream: bool):
    answers: dict[str, Answer] = {
        "silent": is_silent,
        "comments": never_ends(b": ping\n\n"),
        "events": never_ends(provider.keep_alive),
    }
    error = error_of(provider, answers[kind], stream=stream, timeout=0.05)
    assert isinstance(error, TransientError)
    assert "within 0.05 s" in str(error)


def test_a_stream_that_breaks_off_is_no_answer(provider: Provider):
    error = error_of(provider, provider.breaks_off(), stream=True)
    assert isinstance(error, TransientError)
    assert "ended before the answer" in str(error)


def test_json_that_is_no_answer_may_be_tried_again(provider: Provider):
    for body in provider.without_content:
        assert isinstance(error_of(provider, reply(body)), TransientError)


def test_a_response_that_is_not_json_comes_from_another_api(provider: Provider):
    error = error_of(provider, reply("<html>Welcome</html>"))
    assert isinstance(error, InvalidRequestError)
    assert "check base_url" in str(error)


@pytest.mark.parametrize("data", [b"data: {\n\n", b"data: [1]\n\n", b"data: " + b"[" * 99_999])
def test_events_that_are_not_json_are_no_answer(provider: Provider, data: bytes):
    error = error_of(provider, streams(data, done=False), stream=True)
    assert isinstance(error, TransientError)


def test_a_response_that_is_too_large_is_not_kept(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("weakincentives.adapters.http.lenient.MAX_STREAM", 1000)
    error = error_of(provider, reply({"choices": "x" * 2000}))
    assert isinstance(error, TransientError)
    assert "longer than 1000 bytes" in str(error)


@pytest.mark.parametrize("key", [None, "", " "])
def test_without_a_key_it_says_where_to_put_one(provider: Provider, key: str | None):
    with pytest.raises(AuthenticationError, match=provider.key_source):
        provider.create("m", api_key=key)


@pytest.mark.parametrize("key", ["sk-…", "sk-\u00fc", "sk-1\nsk-2"])
def test_a_malformed_key_is_refused_and_not_shown(provider: Provider, key: str):
    with pytest.raises(AuthenticationError, match=provider.key_source) as caught:
        provider.create("m", api_key=key)
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8080/v1", "ftp://x/", "http://", "http://[::1", ""])
def test_a_base_url_that_is_none_is_refused(provider: Provider, url: str):
    with pytest.raises(InvalidRequestError, match="base_url"):
        provider.create("m", api_key="sk-1", base_url=url)


@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_what_a_listener_raises_is_passed_on_and_ends_the_request(
    provider: Provider, error: type[BaseException]
):
    def hang_up(text: str) -> None:
        raise error(text)

    with provider.serve(provider.says("Hello, world"), provider.says("again")) as (adapter, _):
        with pytest.raises(error, match="Hello"):
            adapter.complete(REQUEST, on_text=hang_up)
        assert adapter.complete(REQUEST).text == "again"


def test_several_runs_may_ask_at_once(provider: Provider):
    answers = [provider.says("a" * 100)] * 8
    with provider.serve(*answers) as (adapter, _), ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda _: adapter.complete(REQUEST, on_text=lambda _: None), range(8))
        )
    assert {each.text for each in found} == {"a" * 100}


def test_a_closed_adapter_has_closed_its_connections(provider: Provider):
    with serving(provider.says("ok")) as server:
        adapter = provider.create("m", api_key="sk-secret", base_url=server.url)
        adapter.complete(REQUEST)
        adapter.close()
        with pytest.raises(RuntimeError, match="closed"):
            adapter.complete(REQUEST)


def test_a_body_is_read_while_there_is_time():
    pieces = limit_pieces([b"a", b"b"], ENDPOINT, ends=time.monotonic() + 60, seconds=60)
    assert list(pieces) == [b"a", b"b"]


def test_a_body_that_keeps_arriving_is_given_up_when_the_time_is_over():
    pieces = limit_pieces([b"a", b"b"], ENDPOINT, ends=time.monotonic() - 1, seconds=60)
    with pytest.raises(TransientError, match="someone model 'm' did not answer within 60 s"):
        next(pieces)
