"""Secrets never appear in what is raised, recorded, dumped or logged."""

import gc
import json
import logging
import traceback
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import pytest

from tests.adapters.http.raw_server import KEY, RawServer, once, raw_server, response
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    AdapterError,
    CompletionRequest,
    InvalidRequestError,
    ProviderAdapter,
    ProviderError,
    RecordingAdapter,
    RetryPolicy,
    RunOptions,
    UserMessage,
)
from weakincentives.redaction import redact
from weakincentives.runtime.session import Session, dump_session_tree

pytestmark = pytest.mark.usefixtures("clean_environment")

REQUEST = CompletionRequest((UserMessage("hello"),))
GATEWAY, PASSWORD, PARAMETER = "gw-tok-0123456789", "pass:word/9", "q-secret-77"
SECRETS = (KEY, GATEWAY, PASSWORD, PARAMETER)
JSON, TEXT = "content-type: application/json", "content-type: text/html"
EVENTS = "content-type: text/event-stream"

each_adapter = pytest.mark.parametrize("kind", ["openai", "anthropic"])
both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])

ECHO = " ".join(
    spelled
    for secret in SECRETS
    for spelled in (
        secret,
        f"Bearer {secret}",
        quote(secret, safe=""),
        quote(secret),
        b64encode(secret.encode()).decode(),
        *(b64encode(f"{'u' * length}:{secret}".encode()).decode() for length in range(3)),
        urlsafe_b64encode(f"user:{secret}".encode()).decode(),
        secret.upper(),
    )
).encode()


def chain(error: BaseException) -> Iterator[BaseException]:
    yield error
    for each in (error.__cause__, error.__context__):
        if each is not None:
            yield from chain(each)


def everything(error: BaseException) -> str:
    parts = ["".join(traceback.format_exception(error))]
    for each in chain(error):
        notes = getattr(each, "__notes__", ())
        parts += [str(each), repr(each), repr(each.args), repr(notes), repr(vars(each))]
        parts += [repr(vars(value)) for value in vars(each).values() if hasattr(value, "__dict__")]
        parts += [str(getattr(each, "request", "")), str(getattr(each, "body", ""))]
    return "\n".join(parts)


def leaks(text: str) -> list[str]:
    """Return what is secret in a text, in whatever words it is written in base64 too."""
    text = text.replace("\\", "")
    found = [
        each for each in SECRETS if each.lower() in text.lower() or quote(each, safe="") in text
    ]
    for word in text.replace("'", " ").replace('"', " ").split():
        try:
            decoded = b64decode(word + "=" * (-len(word) % 4), altchars=b"-_").decode("latin-1")
        except ValueError:
            continue
        found += [each for each in SECRETS if each in decoded]
    return found


def adapter_at(server: RawServer, kind: str) -> ProviderAdapter:
    user, query = f"user:{quote(PASSWORD, safe='')}@", f"/v1?key={PARAMETER}"
    return server.adapter(kind, user=user, query=query, headers={"X-Gateway": GATEWAY})


def raised_by(data: bytes, kind: str, *, streams: bool) -> ProviderError:
    with (
        raw_server(once(data)) as server,
        adapter_at(server, kind) as adapter,
        pytest.raises(ProviderError) as caught,
    ):
        adapter.complete(REQUEST, on_text=print if streams else None, timeout=30)
    return caught.value


ERROR = b'{"error": {"type": "x", "code": "%b", "message": "%b"}}' % (ECHO, ECHO)
RESPONSES = {
    "text": response("200 OK", TEXT, body=ECHO),
    "refused": response("400 No", TEXT, body=ECHO),
    "refused in JSON": response("401 No", JSON, body=ERROR),
    "cut off": response("400 No", JSON, body=b'{"error": "' + ECHO * 200),
    "other JSON": response("400 No", JSON, body=b'["%b"]' % ECHO),
    "an error of its own": response("200 OK", JSON, body=ERROR),
    "no JSON in an event": response("200 OK", EVENTS, body=b"data: " + ECHO + b"\n\n"),
    "an error in an event": response("200 OK", EVENTS, body=b"data: " + ERROR + b"\n\n"),
    "the status": response(f"400 {KEY}", TEXT),
    "no HTTP": ECHO + b"\r\n\r\n",
    "a bad header": b"HTTP/1.1 200 OK\r\n" + ECHO + b"\r\n\r\n",
    "nothing": b"",
    "an encoding": response("200 OK", JSON, f"content-encoding: {KEY}", body=b"x"),
    "moved": response("302 Moved", f"location: http://{KEY}@elsewhere/{GATEWAY}?{PARAMETER}"),
    "moved nowhere": response("302 Moved", f"location: http://[{GATEWAY}"),
    "many keys": response("400 No", TEXT, body=KEY.encode() * 5000),
    "escaped slashes": response("200 OK", TEXT, body=ECHO.replace(b"/", b"\\/")),
    "the status of an answer": response(f"200 {KEY}", TEXT),
    "headers": response("400 No", f"x-request-id: {KEY}", f"request-id: {GATEWAY}", body=b"no"),
    "a chunk": response("200 OK", "transfer-encoding: chunked", body=ECHO + b"\r\n"),
}


@both_ways
@each_adapter
@pytest.mark.parametrize("name", RESPONSES)
def test_what_a_server_says_of_a_secret_is_neither_passed_on_nor_logged(
    name: str, kind: str, streams: bool, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.DEBUG):
        error = raised_by(RESPONSES[name], kind, streams=streams)
    assert leaks(everything(error)) == []
    assert [each for each in chain(error) if not isinstance(each, AdapterError)] == []
    assert error.__traceback__ is not None
    variables = traceback.TracebackException(
        type(error), error, error.__traceback__.tb_next, capture_locals=True
    )
    assert leaks("".join(variables.format())) == []
    assert any(each.name.startswith("httpcore2") for each in caplog.records)
    assert leaks(caplog.text + "".join(repr(vars(each)) for each in caplog.records)) == []


def texts_in(*values: object) -> Iterator[str]:
    """Yield the texts that values hold at any depth; errors are checked on their own."""
    pending, seen = list(values), set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif id(value) not in seen and not isinstance(value, ModuleType | type | BaseException):
            seen.add(id(value))
            pending += gc.get_referents(value)


@each_adapter
def test_the_variables_in_a_traceback_hold_no_part_of_an_answer(kind: str):
    block = {"type": "content_block_start", "content_block": {"type": "text", "text": KEY}}
    chunk = {"choices": [{"delta": {"content": KEY}}]} | block
    body = f"data: {json.dumps(chunk)}\n\n".encode()
    error = raised_by(response("200 OK", EVENTS, body=body), kind, streams=True)
    _, *frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    variables = [
        value for frame in frames for name, value in frame.f_locals.items() if name != "self"
    ]
    assert frames
    assert leaks(" ".join(texts_in(*variables))) == []


@each_adapter
def test_a_server_that_is_not_there_is_told_of_without_secrets(kind: str):
    adapter = RawServer(1).adapter(kind, user=f"me:{GATEWAY}@", query=f"?k={PARAMETER}")
    with adapter, pytest.raises(ProviderError, match=r"at http://127\.0\.0\.1:1") as caught:
        adapter.complete(REQUEST, timeout=30)
    assert leaks(everything(caught.value)) == []


@each_adapter
def test_secrets_of_a_url_are_sent_and_not_logged(kind: str, caplog: pytest.LogCaptureFixture):
    with (
        caplog.at_level(logging.INFO),
        raw_server(once(RESPONSES["refused"])) as server,
        adapter_at(server, kind) as adapter,
        pytest.raises(ProviderError),
    ):
        adapter.complete(REQUEST)
    line, *headers = server.received[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert line.endswith(f"?key={PARAMETER} HTTP/1.1")
    basic = b64encode(f"user:{PASSWORD}".encode()).decode()
    assert f"authorization: Basic {basic}" in [
        each if "Basic" not in each else f"authorization:{each.partition(':')[2]}"
        for each in headers
    ]
    assert caplog.records
    assert leaks(caplog.text) == []


@each_adapter
def test_a_query_that_is_a_secret_by_itself_is_not_passed_on(kind: str):
    refused = response("400 No", TEXT, body=b"no " + PARAMETER.encode())
    with (
        raw_server(once(refused)) as server,
        server.adapter(kind, query=f"/v1?{PARAMETER}") as adapter,
        pytest.raises(ProviderError) as caught,
    ):
        adapter.complete(REQUEST)
    assert leaks(everything(caught.value)) == []


@each_adapter
@pytest.mark.parametrize(
    "url",
    [f"ftp://me:{PASSWORD}@host/", f"me:{PASSWORD}@host", f"http://?key={PARAMETER}", f"://{KEY}@"],
)
def test_a_url_that_cannot_be_used_is_shown_without_secrets(url: str, kind: str):
    with pytest.raises(InvalidRequestError, match="base_url must be a URL") as caught:
        RawServer(1).adapter(kind, base_url=url)
    assert leaks(everything(caught.value)) == []


@each_adapter
@pytest.mark.parametrize("header", [{"X-Gateway": f"{GATEWAY}\nX: y"}, {"X-Gatew\xe4y": GATEWAY}])
def test_a_header_that_cannot_be_sent_is_shown_without_its_value(header: dict[str, str], kind: str):
    with pytest.raises(InvalidRequestError, match="'X-Gatew") as caught:
        RawServer(1).adapter(kind, headers=header)
    assert leaks(everything(caught.value)) == []


@each_adapter
@pytest.mark.parametrize("name", ["text", "refused in JSON", "an error of its own", "nothing"])
def test_neither_recordings_nor_dumps_have_secrets(name: str, kind: str, tmp_path: Path):
    heard: list[str] = []
    session = Session()
    with (
        raw_server(once(RESPONSES[name])) as server,
        adapter_at(server, kind) as adapter,
    ):
        recorder = RecordingAdapter(adapter, tmp_path / "talk.jsonl")
        retries = RetryPolicy(max_retries=1, sleep=lambda _: None)
        with pytest.raises(ProviderError) as caught:
            recorder.evaluate(
                prompt(), session=session, options=RunOptions(retries=retries), on_text=heard.append
            )
    dumped = dump_session_tree(session, tmp_path)
    written = "".join(each.read_text() for each in (tmp_path / "talk.jsonl", dumped) if each)
    assert leaks(everything(caught.value) + written + "".join(heard)) == []


@pytest.mark.parametrize("place", ["other host", "other port", "other scheme"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@each_adapter
def test_nothing_is_sent_on_to_another_server(kind: str, status: int, place: str):
    with raw_server(once(response("200 OK", JSON, body=b"{}"))) as other:
        target = {
            "other host": f"http://localhost:{other.port}/v1",
            "other port": f"http://127.0.0.1:{other.port}/v1",
            "other scheme": "https://127.0.0.1:{port}/v1",
        }[place]
        answer = lambda server: [  # noqa: E731
            response(f"{status} Moved", f"location: {target.format(port=server.port)}")
        ]
        with raw_server(answer) as server, server.adapter(kind) as adapter:
            with pytest.raises(InvalidRequestError, match="base_url") as caught:
                adapter.complete(REQUEST)
            assert f"127.0.0.1:{server.port}" in str(caught.value)
            assert target.format(port=server.port) in str(caught.value)
            assert len(server.received) == 1
        assert other.received == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_server_may_move_a_request_within_itself(status: int):
    body = b'{"choices": [{"message": {"content": "hi"}}]}'

    def answer(server: RawServer) -> list[bytes]:
        if len(server.received) == 1:
            return [response(f"{status} Moved", "location: /other/place?a=b")]
        return [response("200 OK", JSON, f"content-length: {len(body)}", body=body)]

    with raw_server(answer) as server, server.adapter("openai") as adapter:
        assert adapter.complete(REQUEST).text == "hi"
    first, second = server.received
    assert second.startswith(b"POST /other/place?a=b HTTP/1.1")
    assert first.partition(b"\r\n\r\n")[2] == second.partition(b"\r\n\r\n")[2] != b""


@each_adapter
def test_a_server_that_moves_a_request_in_circles_is_not_followed(kind: str):
    with (
        raw_server(once(response("307 Moved", "location: /again"))) as server,
        server.adapter(kind) as adapter,
        pytest.raises(InvalidRequestError, match="redirects to '/again'"),
    ):
        adapter.complete(REQUEST)
    assert len(server.received) == 6


def test_words_that_anybody_says_are_no_secrets():
    said = "The model none of ollama has no key: 401"
    assert redact(said, ("none", "ollama", "", "401"), max_length=500) == said
    assert redact("it is (a1b2), not xa1b2", ("a1b2",), max_length=500) == "it is (***), not xa1b2"
