"""Whole runs through the SDK and a server on this machine."""

import pytest

from tests.adapters.chat_server import Answer, drops, fails, never_ends, piece, says, serving
from tests.adapters.same_task import ANSWER, STEPS, expected, tree_hash, work
from tests.adapters.workers import Answer as Found
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    OutputError,
    RetryPolicy,
    ThrottledError,
    ToolCall,
    TransientError,
    partial_response,
)
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.filesystem import BaseFilesystem, InMemoryFilesystem
from weakincentives.runtime.session import Session

pytestmark = pytest.mark.usefixtures("clean_environment")

TASK: tuple[Answer, ...] = (*(says("", *calls) for calls in STEPS), says(ANSWER))


@pytest.mark.parametrize("stream", [False, True])
def test_a_task_ends_in_the_same_tree_as_by_a_script(fs: BaseFilesystem, stream: bool):
    heard: list[str] = []
    with serving(*TASK) as server:
        adapter = OpenAIAdapter("gpt-test", base_url=server.url)
        response = work(adapter, fs, on_text=heard.append if stream else None)
    tree, texts = expected()
    assert tree_hash(fs) == tree
    assert [each.text for each in response.tool_results] == texts
    assert response.text == ANSWER
    assert "".join(heard) == (ANSWER if stream else "")
    assert response.usage.total_tokens == 27 * len(TASK)
    answers = [each for each in server.last["messages"] if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in answers] == ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]


def test_a_provider_that_throttles_drops_and_talks_nonsense_does_not_change_the_end():
    fs = InMemoryFilesystem()
    unknown = ToolCall("format_disk", {}, "c8")
    broken = ToolCall("write_file", '{"file_path": "x", "cont', "c9")
    faults = (
        fails(429, retry_after="2"),
        drops(headers_first=False),
        drops(piece({"content": "I will"})),
        fails(503),
        says("", unknown, broken),
    )
    with serving(*faults, *TASK) as server:
        response = work(OpenAIAdapter("m", base_url=server.url), fs, on_text=lambda _: None)
    assert tree_hash(fs) == expected()[0]
    assert [each.result.success for each in response.tool_results[:2]] == [False, False]
    assert response.text == ANSWER


def test_a_stream_that_never_ends_leaves_what_was_done_and_nothing_half():
    fs = InMemoryFilesystem()
    endless = never_ends(b'data: {"choices": [{"delta": {"content": "la "}}]}\n\n')
    with serving(says("", *STEPS[0]), endless) as server:
        adapter = OpenAIAdapter("m", base_url=server.url)
        with pytest.raises(TransientError) as caught:
            work(
                adapter,
                fs,
                on_text=lambda _: None,
                request_timeout=5.0,  # the first answer must be in time, on a busy machine too
                retries=RetryPolicy(max_retries=0),
            )
    done = partial_response(caught.value)
    assert done is not None
    assert [each.result.success for each in done.tool_results] == [True, True]
    assert [each.path for each in fs.glob("**")] == ["a/hello.txt", "junk.txt"]


def test_throttling_without_end_is_reported_with_how_long_to_wait():
    with serving(*[fails(429, "slow down", retry_after="1")] * 6) as server:
        adapter = OpenAIAdapter("m", base_url=server.url)
        with pytest.raises(ThrottledError, match="slow down") as caught:
            work(adapter, InMemoryFilesystem())
    assert caught.value.retry_after == 1.0
    assert len(server.requests) == 6


@pytest.mark.parametrize("native", [True, False])
def test_structured_output_is_asked_for_and_repaired(native: bool):
    answers = (says('{"name": "a"}'), says('{"name": "a", "count": 3}'))
    with serving(*answers) as server:
        adapter = OpenAIAdapter("m", base_url=server.url, native_output=native)
        response = adapter.evaluate(prompt(output_type=Found), session=Session())
    assert response.output == Found("a", 3)
    assert ("response_format" in server.last) is native
    assert ("schema" in str(server.requests[0].body["messages"])) is not native


def test_an_answer_that_is_never_right_is_an_error():
    with serving(says("no"), says("no")) as server:
        adapter = OpenAIAdapter("m", base_url=server.url)
        with pytest.raises(OutputError):
            adapter.evaluate(prompt(output_type=Found), session=Session())
