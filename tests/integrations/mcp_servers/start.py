"""Sections with the servers of this directory, and a toolbox that calls their tools."""

import json
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
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


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll a condition, with a bound that only a failing test reaches."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)
