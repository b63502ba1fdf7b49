"""Who may ask the debug server: safety items 57 to 62."""

import re

import pytest

from tests.debug.conftest import Client
from weakincentives.loopback import is_loopback

ROUTES = [
    "/",
    "/static/app.js",
    "/api/sessions",
    "/api/steps",
    "/api/steps/1",
    "/api/steps/1/tree",
    "/api/steps/1/file?path=app.py",
    "/api/steps/1/raw?path=app.py",
    "/api/steps/4/diff",
    "/api/steps/1/archive",
    "/api/export",
    "/api/search?q=a",
    "/api/filesystem/meta",
    "/api/filesystem/tree",
    "/api/filesystem/file?path=app.py",
    "/nothing",
]


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "Basic abc", "Bearer é"])
def test_nothing_is_served_without_the_token(client: Client, given: str | None):
    for route in ROUTES:
        answer = client.get(route, authorization=given)
        assert answer.status == 401
        assert "token" in answer.json["error"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1:{port}@evil.example",
        "192.168.0.1:{port}",
        "",
        "[",
    ],
)
def test_a_foreign_host_is_rejected_in_spite_of_the_token(client: Client, host: str):
    for route in ROUTES:
        answer = client.get(route, host=host.format(port=client.port))
        assert answer.status == 403
        assert "Host" in answer.json["error"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", ""])
def test_a_foreign_origin_is_rejected_in_spite_of_the_token(client: Client, origin: str):
    assert {client.get(route, origin=origin).status for route in ROUTES} == {403}


def test_the_own_origin_and_localhost_are_accepted(client: Client):
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{client.port}"
        assert client.get("/api/sessions", host=host, origin=f"http://{host}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("route", ["/", "/api/steps", "/api/steps/1/file?path=app.py"])
def test_only_reading_is_possible(client: Client, method: str, route: str):
    assert client.get(route, method).status == 405
    assert client.get(route, method, origin="https://evil.example").status == 403


def test_a_head_request_has_no_body(client: Client):
    answer = client.get("/api/sessions", "HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("route", [*ROUTES, "/api/steps/99", "/api/steps/1/file?path=../x"])
@pytest.mark.parametrize("authorization", ["right", None])
def test_every_answer_has_the_headers(client: Client, route: str, authorization: str | None):
    given = f"Bearer {client.token}" if authorization else None
    headers = client.get(route, authorization=given).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy or "sandbox" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_the_page_has_no_inline_script_or_style(client: Client):
    page = client.get("/").body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", page)


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/api", "/static/", "/x"])
def test_there_is_nothing_else(client: Client, path: str):
    answer = client.get(path)
    assert answer.status == 404
    assert answer.json["error"]


@pytest.mark.parametrize(
    "name", ["..%2fserver.py", "%2e%2e/server.py", "../server.py", "server.py", "%00", "app.js%00"]
)
def test_only_the_files_of_the_page_are_static(client: Client, name: str):
    assert client.get(f"/static/{name}").status == 404


def test_opening_the_url_sets_a_cookie_and_leads_to_an_address_without_token(client: Client):
    target = client.url.removeprefix(f"http://127.0.0.1:{client.port}")
    opened = client.get(target, authorization=None)
    assert opened.status == 303
    assert opened.headers["location"] == "/"
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    pair = cookie.partition(";")[0]
    assert client.get("/api/sessions", authorization=None, cookie=pair).status == 200


def test_the_cookie_does_not_count_for_requests_of_other_sites(client: Client):
    pair = f"wink-debug-{client.port}={client.token}"
    for site in ("cross-site", "same-site"):
        answer = client.get("/api/steps", authorization=None, cookie=pair, sec_fetch_site=site)
        assert answer.status == 401
    answer = client.get("/api/steps", authorization=None, cookie=pair, sec_fetch_site="same-origin")
    assert answer.status == 200


@pytest.mark.parametrize("cookie", ["", "a=b; ;;=", "wink-debug-1=x", "\x07", "x" * 5000])
def test_a_broken_cookie_is_no_token(client: Client, cookie: str):
    assert client.get("/api/steps", authorization=None, cookie=cookie).status in {400, 401}


def test_the_token_in_an_url_is_for_the_page_only(client: Client):
    assert client.get(f"/api/steps?token={client.token}", authorization=None).status == 401
    assert client.get("/?token=wrong", authorization=None).status == 401


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_recognized(host: str, expected: bool):
    assert is_loopback(host) is expected
