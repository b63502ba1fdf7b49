"""ScriptedAdapter: a model that plays a script."""

import pytest

from tests.adapters.workers import prompt
from weakincentives.adapters import (
    AuthenticationError,
    Completion,
    CompletionRequest,
    ScriptedAdapter,
    ScriptError,
    ToolCall,
    UserMessage,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import TokenUsage
from weakincentives.runtime.session import Session

REQUEST = CompletionRequest((UserMessage("?"),))


def write(path: str, content: str = "x") -> ToolCall:
    return ToolCall("write_file", {"path": path, "content": content})


def read(path: str) -> ToolCall:
    return ToolCall("read_file", {"path": path})


def test_a_step_is_text_calls_a_completion_an_error_or_a_function():
    def last(request: CompletionRequest) -> str:
        return f"you said {request.messages[-1].text}"

    adapter = ScriptedAdapter(
        [
            "text",
            read("a"),
            [read("a"), read("b")],
            Completion("both", (read("a"),), usage=TokenUsage(1, 2)),
            AuthenticationError("no key"),
            last,
            lambda _: read("z"),
        ]
    )
    assert adapter.complete(REQUEST) == Completion("text")
    one = adapter.complete(REQUEST)
    assert one == Completion(
        "", (ToolCall("read_file", {"path": "a"}, "call-2-1"),), stop_reason="tool_calls"
    )
    assert [each.call_id for each in adapter.complete(REQUEST).tool_calls] == [
        "call-3-1",
        "call-3-2",
    ]
    both = adapter.complete(REQUEST)
    assert (both.text, both.usage, both.tool_calls[0].call_id) == (
        "both",
        TokenUsage(1, 2),
        "call-4-1",
    )
    with pytest.raises(AuthenticationError, match="no key"):
        adapter.complete(REQUEST)
    assert adapter.complete(REQUEST).text == "you said ?"
    assert adapter.complete(REQUEST).tool_calls[0].arguments == {"path": "z"}
    assert (adapter.remaining, len(adapter.requests)) == (0, 7)


def test_a_script_that_runs_out_says_so():
    adapter = ScriptedAdapter([write("a")])
    with pytest.raises(ScriptError, match=r"has only 1 steps.*the tool message 'wrote a'"):
        adapter.evaluate(prompt(InMemoryFilesystem()), session=Session())
    assert adapter.remaining == 0
