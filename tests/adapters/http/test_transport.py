"""Limits of time and memory for responses of any status."""

import gzip
import json
import socket
import tracemalloc
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.adapters.http.raw_server import Pieces, RawServer, endless, once, raw_server, response
from weakincentives.adapters import (
    CompletionRequest,
    InvalidRequestError,
    ProviderError,
    TransientError,
    UserMessage,
)

pytestmark = pytest.mark.usefixtures("clean_environment")

REQUEST = CompletionRequest((UserMessage("hello"),))
JSON = "content-type: application/json"
EVENTS = "content-type: text/event-stream"
GZIP = "content-encoding: gzip"
MIB = 1024**2
OK, REFUSED, MOVED = "200 OK", "400 Bad Request", "302 Found"
STATUSES = (OK, REFUSED, f"{MOVED}\r\nlocation: http://elsewhere.example/v1")

both_ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
each_adapter = pytest.mark.parametrize("kind", ["openai", "anthropic"])
each_status = pytest.mark.parametrize("status", STATUSES, ids=lambda status: status[:3])


@cache
def bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(b"a" * MIB) for _ in range(300)]) + packer.flush()


@cache
def deflate_bomb() -> bytes:
    return zlib.compress(b"a" * 100 * MIB, 9)


def endless_gzip(head: bytes) -> Pieces:
    def pieces(server: RawServer) -> Iterator[bytes]:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        yield head
        while not server.stopped.is_set():
            yield packer.compress(b"\0" * MIB)

    return pieces


def failure(pieces: Pieces, kind: str, *, streams: bool = False, timeout: float = 30) -> Any:
    with raw_server(pieces) as server, server.adapter(kind) as adapter:
        with pytest.raises(ProviderError) as caught:
            adapter.complete(REQUEST, on_text=print if streams else None, timeout=timeout)
        assert len(server.received) <= 1
    return caught.value


def peak_of(pieces: Pieces, kind: str, *, streams: bool) -> tuple[ProviderError, int]:
    tracemalloc.start()
    try:
        return failure(pieces, kind, streams=streams), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@both_ways
@each_adapter
@each_status
def test_a_small_body_that_unpacks_to_a_large_one_takes_no_memory(
    kind: str, status: str, streams: bool
):
    data = bomb()
    head = response(status, JSON, GZIP, f"content-length: {len(data)}")
    error, peak = peak_of(once(head, data), kind, streams=streams)
    assert peak < 48 * MIB
    assert isinstance(error, TransientError if status == OK else InvalidRequestError)


@both_ways
@each_adapter
@each_status
@pytest.mark.parametrize("type_", [JSON, EVENTS], ids=["json", "events"])
def test_a_body_without_end_comes_to_one(kind: str, status: str, streams: bool, type_: str):
    error, peak = peak_of(
        endless(response(status, type_), b"data: " + b"x" * 65536), kind, streams=streams
    )
    assert peak < 48 * MIB
    assert isinstance(error, TransientError if status == OK else InvalidRequestError)


@each_adapter
@each_status
def test_a_packed_body_without_end_comes_to_one(kind: str, status: str):
    _, peak = peak_of(endless_gzip(response(status, JSON, GZIP)), kind, streams=False)
    assert peak < 48 * MIB


@both_ways
@each_adapter
@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(endless(b"HTTP/1.1 200 OK\r\nx-long: ", b"a", pause=0.01), id="headers"),
        pytest.param(endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.01), id="100"),
        pytest.param(
            endless(response(OK, JSON, "content-length: 100000"), b" ", pause=0.01), id="body"
        ),
        pytest.param(endless(response(OK, EVENTS), b":\n\n", pause=0.01), id="comments"),
        pytest.param(
            endless(response(OK, JSON, GZIP), gzip.compress(b""), pause=0.01), id="empty gzip"
        ),
    ],
)
def test_what_drips_in_is_not_waited_for_longer_than_allowed(
    pieces: Pieces, kind: str, streams: bool
):
    error = failure(pieces, kind, streams=streams, timeout=0.2)
    assert isinstance(error, TransientError)
    assert "within 0.2 s" in str(error)


@each_adapter
def test_a_failure_that_drips_in_is_told_by_its_status(kind: str):
    pieces = endless(response(REFUSED, "content-length: 100000"), b"no", pause=0.01)
    error = failure(pieces, kind, timeout=2.0)  # the status must be in time
    assert (type(error), error.status) == (InvalidRequestError, 400)
    assert "'no" in str(error)


@each_adapter
@pytest.mark.parametrize(
    "headers",
    [
        ["content-length: 99"],
        ["content-length: -1"],
        ["content-length: 1"] * 2 + ["content-length: 3"],
    ],
)
def test_a_length_that_is_a_lie_is_a_failure_that_may_be_tried_again(headers: list[str], kind: str):
    error = failure(once(response(OK, JSON, *headers, body=b"{}")), kind)
    assert isinstance(error, TransientError)


@each_adapter
@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "x" * 9999])
def test_only_what_was_asked_for_is_unpacked(encoding: str, kind: str):
    packed = response(OK, JSON, f"content-encoding: {encoding}", body=b"abc")
    error = failure(once(packed), kind)
    assert isinstance(error, TransientError)
    assert "which was not requested" in str(error)
    refused = response("401 No", f"content-encoding: {encoding}", body=b"abc")
    assert failure(once(refused), kind).status == 401


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
def test_an_answer_may_be_packed(encoding: str):
    body = json.dumps({"choices": [{"message": {"content": "hi"}}]}).encode()
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}.get(encoding, bytes)(body)
    head = response(OK, JSON, f"content-encoding: {encoding}", f"content-length: {len(packed)}")
    with raw_server(once(head, packed)) as server, server.adapter("openai") as adapter:
        assert adapter.complete(REQUEST).text == "hi"
        assert b"\r\naccept-encoding: gzip\r\n" in server.received[0].lower()


@each_adapter
@pytest.mark.parametrize("status", [OK, REFUSED])
def test_a_charset_unpacks_nothing(kind: str, status: str):
    head = response(status, "content-type: text/html; charset=zlib", "connection: close")
    _, peak = peak_of(once(head, deflate_bomb()), kind, streams=False)
    assert peak < 48 * MIB


@each_adapter
def test_what_follows_a_packed_body_has_an_end_too(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("weakincentives.adapters.http.transport.MAX_STREAM", 100_000)
    head = response(OK, JSON, GZIP, body=gzip.compress(b"{}"))
    error = failure(endless(head, b"x" * 10_000), kind)
    assert "longer than 100000 bytes" in str(error)


@each_adapter
def test_an_answer_of_countless_parts_is_not_parsed(kind: str):
    body = b'{"a":[' + b"[]," * 1_000_000 + b"1]}"
    error = failure(once(response(OK, JSON, f"content-length: {len(body)}", body=body)), kind)
    assert "more than 500000 objects and lists" in str(error)


def test_calls_without_end_are_no_answer():
    calls = b",".join(b'{"index":%d}' % number for number in range(2000))
    data = b'data: {"choices":[{"delta":{"tool_calls":[%s]}}]}\n\n' % calls
    error = failure(once(response(OK, EVENTS, body=data)), "openai", streams=True)
    assert "more than 1000 tool calls" in str(error)


def test_blocks_without_end_are_no_answer():
    event = b'data: {"type":"content_block_start","index":0,"content_block":{}}\n\n'
    error = failure(once(response(OK, EVENTS, body=event * 10_001)), "anthropic", streams=True)
    assert "more than 10000 blocks" in str(error)


@each_adapter
def test_a_server_that_does_not_read_is_not_waited_for(kind: str):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        adapter = RawServer(listener.getsockname()[1]).adapter(kind)
        request = CompletionRequest((UserMessage("x" * 20 * MIB),))
        with adapter, pytest.raises(TransientError, match=r"within 0\.2 s"):
            adapter.complete(request, timeout=0.2)


@each_adapter
def test_a_handshake_that_never_ends_is_not_waited_for(kind: str):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        adapter = RawServer(0).adapter(kind, base_url=url)
        with adapter, pytest.raises(TransientError, match=r"within 0\.2 s"):
            adapter.complete(REQUEST, timeout=0.2)
