"""The real Claude Code, with a scripted model server."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from tests.adapters.anthropic.server import HEAD, KEY, USAGE, event, pieces, text, use
from tests.adapters.chat_server import Answer, Handler, Server, begin_stream, reply, serving
from weakincentives.adapters import RetryPolicy, RunOptions, ToolCall
from weakincentives.adapters.claude_code.adapter import ClaudeAgentAdapter
from weakincentives.contrib.tools import ClaudeAgentWorkspaceSection
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import MarkdownSection, Prompt, Tool
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session

T = TypeVar("T")

_numbers = count(1)


def ours(call: ToolCall) -> ToolCall:
    """Return a call of one of our tools, by the name that the model knows it by."""
    return ToolCall(f"mcp__wink__{call.name}", call.arguments, call.call_id)


def says(said: str = "", *calls: ToolCall, cut: str = "") -> Answer:
    """Answer as the model would; every message has an id of its own, as Claude Code expects.

    Args:
        said: The text.
        calls: Of tools.
        cut: The id of a call whose arguments are cut off, so that they are no JSON.
    """
    blocks = [*([text(said)] if said else []), *map(use, calls)]
    reason = "tool_use" if calls else "end_turn"

    def answer(handler: Handler) -> None:
        named = {**HEAD, "id": f"msg_{next(_numbers)}"}
        if not handler.streams:
            end = {"stop_reason": reason, "stop_sequence": None, "usage": USAGE}
            return reply({**named, "content": blocks, **end})(handler)
        begin_stream(handler)
        for piece in _cut(pieces(*blocks, stop=reason), cut):
            if "message" in piece:
                piece["message"] |= {"id": named["id"]}
            handler.chunk(event(piece))
        handler.chunk(b"")
        return None

    return answer


def _cut(sent: list[dict[str, Any]], call_id: str) -> list[dict[str, Any]]:
    """Leave out the last piece of the arguments of a call."""
    index = next((e["index"] for e in sent if e.get("content_block", {}).get("id") == call_id), -1)
    places = [place for place, each in enumerate(sent) if each.get("index") == index]
    return [each for place, each in enumerate(sent) if not places or place != places[-2]]


@contextmanager
def asked(*answers: Answer, **given: Any) -> Iterator[tuple[ClaudeAgentAdapter, Server]]:
    """Serve these answers to Claude Code."""
    with serving(*answers) as server:
        made = ClaudeAgentAdapter("claude-test", api_key=KEY, base_url=server.url, **given)
        with made as adapter:
            yield adapter, server


class Desk:
    """A workspace on the host, a session, and a prompt about them."""

    def __init__(
        self, root: Path, tools: Sequence[Tool[Any, Any]] = (), output: Any = None
    ) -> None:
        self.root = Path(os.path.realpath(root))
        self.section = ClaudeAgentWorkspaceSection(root=root)
        self.session = Session()
        self._events: list[object] = []
        self.session.bus.subscribe(object, self._events.append)
        self.prompt = Prompt(
            ns="tests",
            key="agent",
            sections=[
                self.section,
                *(
                    [MarkdownSection(title="Tools", template="Use them.", tools=tools)]
                    if tools
                    else []
                ),
            ],
            output_type=output,
        )

    @property
    def fs(self) -> HostFilesystem:
        return self.section.filesystem

    def call(self, name: str, path: str, call_id: str, **more: Any) -> ToolCall:
        """Return a call of one of Claude Code's own tools, on a file of the workspace."""
        return ToolCall(name, {"file_path": str(self.root / path), **more}, call_id)

    def invoked(self) -> list[ToolInvoked]:
        return list(self.session[ToolInvoked].all())

    def told(self, kind: type[T]) -> list[T]:
        """Return the events of a kind that the session's bus has brought."""
        return [each for each in self._events if isinstance(each, kind)]

    def work(self, adapter: ClaudeAgentAdapter, **more: Any) -> Any:
        given: dict[str, Any] = {"options": impatient()} | more
        return adapter.evaluate(self.prompt, session=self.session, **given)


def impatient(**more: Any) -> RunOptions:
    """Return options without retries: Claude Code's own waits are real."""
    return RunOptions(retries=RetryPolicy(max_retries=0), **more)
