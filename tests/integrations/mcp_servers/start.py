"""Sections with the servers of this directory, and a toolbox that calls their tools."""

import json
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

import uvicorn

from weakincentives.adapters import ToolCall, ToolOutcome
from weakincentives.contrib.integrations import Toolbox
from weakincentives.contrib.integrations.mcp import McpStdioServer, McpToolsSection

HERE = Path(__file__).parent
PATIENCE = 60.0
"""Seconds that only a failing test waits."""


def raw_server(mode: str = "good", *arguments: str, **options: Any) -> McpStdioServer:
    script = str(HERE / "raw_server.py")
    return McpStdioServer(sys.executable, ["-I", "-S", script, mode, *arguments], **options)


def raw_section(mode: str = "good", *arguments: str, **options: Any) -> McpToolsSection:
    # longer than any wait of a test, so that no call ends by its time limit instead
    limits = {"start_timeout": PATIENCE, "call_timeout": 10 * PATIENCE}
    options = {"name": "raw", **limits, **options}
    return McpToolsSection(raw_server(mode, *arguments), **options)


def run(
    section: McpToolsSection, tool: str, /, *, box: Any = None, **arguments: Any
) -> ToolOutcome:
    """Call a tool of a section by its name at the server."""
    chosen = Toolbox(section.tools) if box is None else box
    return chosen.execute(ToolCall(f"{section.name}__{tool}", arguments, "call"))


def quoted(outcome: ToolOutcome) -> str:
    """Return what the server said, without the frame."""
    lines = outcome.text.split("\n")
    first = next(n for n, line in enumerate(lines) if line.startswith("<mcp-result "))
    last = next(n for n, line in enumerate(lines) if line.startswith("</mcp-result "))
    return "\n".join(lines[first + 1 : last])


def parsed(outcome: ToolOutcome) -> Any:
    assert outcome.result.success, outcome.text
    return json.loads(quoted(outcome))


@contextmanager
def serve_http(app: Any, *, port: int = 0) -> Generator[str, None, None]:
    """Serve an application on a port of the loopback interface; yield its URL."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@contextmanager
def serve_raw(mode: str, *arguments: str, as_events: bool) -> Generator[str, None, None]:
    """Serve the raw server over HTTP: each answer as JSON, or as an event; yield its URL."""
    command = [sys.executable, "-I", "-S", str(HERE / "raw_server.py"), mode, *arguments]
    kind = b"text/event-stream" if as_events else b"application/json"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        status, answer = 405, b""
        if scope["method"] == "POST":
            assert process.stdin
            assert process.stdout
            process.stdin.write(body + b"\n")
            process.stdin.flush()
            status = 202
            if "id" in json.loads(body):
                status, answer = 200, process.stdout.readline()
        if answer and as_events:
            answer = b"event: message\r\ndata: " + answer.strip() + b"\r\n\r\n"
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    with Popen(command, stdin=PIPE, stdout=PIPE) as process:
        with serve_http(app) as url:
            yield url
        process.terminate()


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition, with a bound that only a failing test reaches."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
