"""Whatever a model does, every call gets a result and the files match the calls."""

import json
import tempfile
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.workers import patient, prompt
from weakincentives.adapters import (
    AdapterError,
    AssistantMessage,
    CancellationToken,
    Completion,
    Message,
    PromptResponse,
    ScriptedAdapter,
    ThrottledError,
    ToolCall,
    ToolMessage,
    TransientError,
    partial_response,
)
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    PromptExecuted,
    TokenUsage,
    ToolInvoked,
)
from weakincentives.runtime.session import Session

PATHS = st.sampled_from(["a", "b", "d/c", "../out", ""])
CONTENTS = st.sampled_from(["", "x", "y\n"])
IDS = st.sampled_from(["", "1", "2"])


def call(name: str, arguments: Any, call_id: str) -> ToolCall:
    return ToolCall(name, arguments, call_id)


WRITES = st.builds(
    lambda path, content, call_id: call(
        "write_file", json.dumps({"path": path, "content": content}), call_id
    ),
    PATHS,
    CONTENTS,
    IDS,
)
BREAKS = st.builds(
    lambda path, call_id: call("break", {"path": path, "content": "broken"}, call_id), PATHS, IDS
)
READS = st.builds(lambda path, call_id: call("read_file", {"path": path}, call_id), PATHS, IDS)
WRONG = st.builds(
    call,
    st.sampled_from(["fly", "read_file", "write_file"]),
    st.sampled_from(["", "{", "[]", "null", '{"path": 1}', '{"more": 1}']),
    IDS,
)
CALLS = st.lists(st.one_of(WRITES, BREAKS, READS, WRONG), min_size=1, max_size=4)
STEPS = st.lists(
    st.one_of(
        CALLS.map(lambda calls: Completion("", tuple(calls), usage=TokenUsage(1, 1))),
        st.lists(READS, min_size=2, max_size=4).map(tuple).map(lambda calls: Completion("", calls)),
        st.just(TransientError("down")),
        st.just(ThrottledError("slow", retry_after=1.0)),
        st.just(Completion("hm", stop_reason="paused")),
    ),
    max_size=8,
)


def check_conversation(messages: Sequence[Message]) -> None:
    """Check what every provider demands: each call is answered, at once and in order."""
    wanted: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert wanted
            assert message.call_id == wanted.pop(0)
            continue
        assert not wanted
        if isinstance(message, AssistantMessage):
            wanted = [each.call_id for each in message.tool_calls]
            assert all(wanted)
            assert len(set(wanted)) == len(wanted)
    assert not wanted


def check_files(fs: Filesystem, response: PromptResponse[Any]) -> None:
    expected: dict[str, str] = {}
    for outcome in response.tool_results:
        if outcome.call.name == "write_file" and outcome.result.success:
            assert isinstance(outcome.call.arguments, str)
            said = json.loads(outcome.call.arguments)
            expected[said["path"]] = said["content"]
    found = {
        each.path: fs.read(each.path).content
        for each in fs.glob("**")
        if fs.stat(each.path).is_file
    }
    assert found == expected


def run(
    fs: Filesystem, steps: list[Any], budget: Budget | None, cancel_at: int | None
) -> tuple[str, PromptResponse[Any], Session]:
    session, token = Session(), CancellationToken()
    invoked: list[ToolInvoked] = []

    def count(event: ToolInvoked) -> None:
        invoked.append(event)
        if len(invoked) == cancel_at:
            token.cancel()

    session.bus.subscribe(ToolInvoked, count)
    adapter = ScriptedAdapter([*steps, "done"])
    options = patient(lambda _: None, max_parallel=1)
    try:
        response = adapter.evaluate(
            prompt(fs), session=session, budget=budget, cancellation=token, options=options
        )
    except (AdapterError, BudgetExceededError) as error:
        partial = partial_response(error)
        assert partial is not None
        return type(error).__name__, partial, session
    return "", response, session


@given(
    steps=STEPS,
    budget=st.none() | st.builds(Budget, max_tool_calls=st.integers(0, 9)),
    cancel_at=st.none() | st.integers(1, 9),
)
@settings(max_examples=60)
def test_a_run_ends_with_every_call_answered_and_only_kept_calls_in_the_files(
    steps: list[Any], budget: Budget | None, cancel_at: int | None
):
    ends: list[tuple[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory, HostFilesystem(directory) as host:
        for fs in (InMemoryFilesystem(), host):
            ended, response, session = run(fs, steps, budget, cancel_at)
            check_conversation(response.messages)
            check_files(fs, response)
            executed = session[PromptExecuted].latest()
            assert executed is not None
            assert executed.success is (ended == "")
            assert executed.tool_calls == len(response.tool_results)
            ends.append((ended, [each.text for each in response.tool_results]))
    assert ends[0] == ends[1]
