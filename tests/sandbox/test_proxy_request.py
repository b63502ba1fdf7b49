"""Requests to the proxy: what is passed on, and what is rejected."""

import pytest

from weakincentives.sandbox.proxy_connection import ProxyError, ProxyRequest, parse_request


def test_connect_asks_for_a_tunnel() -> None:
    request = parse_request(b"CONNECT Example.com:443 HTTP/1.1\r\nHost: other.example")
    assert request == ProxyRequest("example.com", 443)
    assert request.is_tunnel
    assert parse_request(b"CONNECT [::1]:8443 HTTP/1.0") == ProxyRequest("::1", 8443)


def test_a_plain_request_is_rewritten_for_the_server() -> None:
    request = parse_request(
        b"POST http://Example.com:8080/path?q=1 HTTP/1.1\r\n"
        b"Host: other.example\r\n"
        b"Proxy-Authorization: Basic c2VjcmV0\r\n"
        b"Proxy-Connection: keep-alive\r\n"
        b"Connection: keep-alive, X-Drop\r\n"
        b"X-Drop: 1\r\n"
        b"X-Keep: \t two words \r\n"
        b"Content-Length: 3"
    )
    assert (request.host, request.port, request.body_length) == ("example.com", 8080, 3)
    assert request.head == (
        b"POST /path?q=1 HTTP/1.1\r\n"
        b"Host: example.com:8080\r\n"
        b"X-Keep: two words\r\n"
        b"Content-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("url", "first", "host"),
    [
        ("http://example.com", "GET / HTTP/1.1", "Host: example.com"),
        ("HTTP://EXAMPLE.com?x", "GET /?x HTTP/1.1", "Host: example.com"),
        ("http://[::1]/", "GET / HTTP/1.1", "Host: [::1]"),
    ],
)
def test_the_path_alone_is_sent_to_the_server(url: str, first: str, host: str) -> None:
    request = parse_request(f"GET {url} HTTP/1.1".encode())
    assert request.head.decode().split("\r\n")[:2] == [first, host]
    assert (request.port, request.body_length) == (80, 0)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/1.1\r\nHost: example.com",
        b"GET http://example.com/ HTTP/2.0",
        b"GET  http://example.com/ HTTP/1.1",
        b"GET http://example.com/ HTTP/1.1 ",
        b"GET http://user@example.com/ HTTP/1.1",
        b"GET http://example.com:80:80/ HTTP/1.1",
        b"GET http://exa mple.com/ HTTP/1.1",
        b"GET http://ex\xc3\xa4mple.com/ HTTP/1.1",
        b"GET https://example.com/ HTTP/1.1",
        b"GET ftp://example.com/ HTTP/1.1",
        b"GET http:/// HTTP/1.1",
        b"GET http://127.1/ HTTP/1.1",
        b"CONNECT example.com HTTP/1.1",
        b"CONNECT http://example.com:443 HTTP/1.1",
        b"CONNECT example.com:443/ HTTP/1.1",
        b"CONNECT fe80::1%1:443 HTTP/1.1",
        # two ways to read the same bytes
        b"GET http://example.com/ HTTP/1.1\nHost: example.com",
        b"GET http://example.com/ HTTP/1.1\r\nX: a\nY: b",
        b"GET http://example.com/ HTTP/1.1\r\nX: a\rY: b",
        b"GET http://example.com/ HTTP/1.1\r\nX: a\x00b",
        b"GET http://example.com/ HTTP/1.1\r\nX : a",
        b"GET http://example.com/ HTTP/1.1\r\nX: a\r\n folded",
        b"GET http://example.com/ HTTP/1.1\r\nno colon",
        b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1",
        b"POST http://example.com/ HTTP/1.1\r\nContent-Length: +1",
        b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 1, 1",
        b"POST http://example.com/ HTTP/1.1\r\nContent-Length: ",
        b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 0x1",
    ],
)
def test_a_request_that_is_not_clear_is_rejected(head: bytes) -> None:
    with pytest.raises(ProxyError, match=r"^wink: ") as caught:
        parse_request(head)
    assert caught.value.status == 400


@pytest.mark.parametrize("coding", [b"chunked", b"identity", b"gzip, chunked", b""])
def test_a_body_of_unknown_length_is_rejected(coding: bytes) -> None:
    head = b"POST http://example.com/ HTTP/1.1\r\nContent-Length: 3\r\ntransfer-encoding: " + coding
    with pytest.raises(ProxyError, match="send a Content-Length") as caught:
        parse_request(head)
    assert caught.value.status == 411


def test_a_connection_field_cannot_drop_the_length_of_the_body() -> None:
    head = b"POST http://e.com/ HTTP/1.1\r\nConnection: content-length\r\nContent-Length: 3"
    assert b"Content-Length: 3\r\n" in parse_request(head).head
