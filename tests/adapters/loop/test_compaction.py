"""Context compaction: what is left out, in which order, and that the rest is a conversation."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.anthropic import server as anthropic_server
from tests.adapters.chat_server import Answer, Handler
from tests.adapters.chat_server import fails as openai_fails
from tests.adapters.chat_server import says as openai_says
from tests.adapters.openai import server as openai_server
from tests.adapters.workers import prompt
from weakincentives.adapters import (
    AssistantMessage,
    Completion,
    CompletionRequest,
    ContextCompacted,
    ContextTooLongError,
    InvalidRequestError,
    Message,
    RunOptions,
    ScriptedAdapter,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    find_context_window,
)
from weakincentives.adapters.loop.compaction import (
    KEPT_TURNS,
    Compaction,
    add_summary,
    cut_results,
    estimate_tokens,
    head_length,
    shorten_results,
    summary_end,
    summary_request,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import Budget, BudgetExceededError, TokenUsage
from weakincentives.runtime.session import Session

# --- the pure part ---

TEXTS = st.sampled_from(["", "short", "line\n" * 300, "wörd " * 900, "x" * 20_000])


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    number = draw(st.integers(0, 10**9))
    names = [f"call-{number}-{at}" for at in range(draw(st.integers(0, 3)))]
    calls = tuple(ToolCall("read_file", {"path": f"{each}.py"}, each) for each in names)
    answer = AssistantMessage(draw(TEXTS), calls)
    results = [ToolMessage(each, "read_file", draw(TEXTS), draw(st.booleans())) for each in names]
    reply = [UserMessage(draw(TEXTS))] if draw(st.booleans()) else []
    return [answer, *results, *reply]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    head: list[Message] = [SystemMessage("be good")] if draw(st.booleans()) else []
    later = draw(st.lists(turns(), max_size=12))
    return [*head, UserMessage("the task"), *(each for turn in later for each in turn)]


def compact(messages: Sequence[Message], target: int) -> Compaction:
    """Do everything that a run may do."""
    found = shorten_results(messages, Compaction(), estimate_tokens, target)
    end = summary_end(messages, found)
    if end is not None and estimate_tokens(found.apply(messages)) > target:
        assert summary_request(messages, found, end, estimate_tokens, 2_000)
        found = add_summary(messages, found, end, "what happened")
    return cut_results(messages, found, estimate_tokens, target)


def check_conversation(messages: Sequence[Message]) -> None:
    """Each call has its result right after it, in order, and no result is without a call."""
    expected: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert expected
            assert message.call_id == expected.pop(0)
            continue
        assert not expected
        if isinstance(message, AssistantMessage):
            expected = [call.call_id for call in message.tool_calls]
    assert not expected


@given(conversations(), st.integers(0, 30_000))
@settings(max_examples=150)
def test_what_is_sent_is_a_conversation_that_ends_as_the_whole_does(
    messages: list[Message], target: int
) -> None:
    found = compact(messages, target)
    sent = found.apply(messages)
    check_conversation(sent)
    before = estimate_tokens(messages)
    if before <= target:
        assert sent == tuple(messages)
        return
    # the summary of nothing much may be longer than that
    assert estimate_tokens(sent) <= before + 200
    latest = [each for each in messages if isinstance(each, AssistantMessage)][-1:]
    assert [each for each in sent if isinstance(each, AssistantMessage)][-1:] == latest
    head = head_length(messages)
    assert [each.text[:8] for each in sent[:head]] == [each.text[:8] for each in messages[:head]]
    for said in messages:
        if isinstance(said, UserMessage):
            assert any(said.text[:500] in each.text for each in sent if each.role == "user")


@given(conversations(), st.integers(100, 10_000))
@settings(max_examples=100)
def test_results_go_first_the_oldest_first_and_never_those_of_the_latest_turns(
    messages: list[Message], target: int
) -> None:
    found = shorten_results(messages, Compaction(), estimate_tokens, target)
    sent = found.apply(messages)
    assert len(sent) == len(messages)
    long = [
        at
        for at, each in enumerate(messages)
        if isinstance(each, ToolMessage) and len(each.text) > 600
    ]
    assert sorted(found.shortened) == long[: len(found.shortened)]
    answers = [at for at, each in enumerate(messages) if isinstance(each, AssistantMessage)]
    kept = answers[-KEPT_TURNS] if len(answers) >= KEPT_TURNS else 0
    assert all(at < kept for at in found.shortened)
    if estimate_tokens(sent) > target:
        assert set(found.shortened) == {at for at in long if at < kept}
    # nothing more happens a second time
    assert shorten_results(messages, found, estimate_tokens, target) == found


def test_the_oldest_results_go_until_there_is_room() -> None:
    messages: list[Message] = [UserMessage("task")]
    for at in range(7):
        messages.append(AssistantMessage("", (ToolCall("read_file", {"path": "x"}, f"{at}"),)))
        messages.append(ToolMessage(f"{at}", "read_file", "x" * 3_000))
    whole = estimate_tokens(messages)
    found = shorten_results(messages, Compaction(), estimate_tokens, whole - 1_500)
    assert sorted(found.shortened) == [2, 4]
    found = shorten_results(messages, found, estimate_tokens, 0)
    assert sorted(found.shortened) == [2, 4, 6, 8]


def test_the_line_for_a_result_says_what_it_was_and_how_to_get_it_again() -> None:
    calls = (
        ToolCall("read_file", '{"file_path": "src/x.py"}', "1"),
        ToolCall("shell_execute", {"command": ["pytest", "-q"]}, "2"),
    )
    messages: list[Message] = [
        UserMessage("task"),
        AssistantMessage("", calls),
        ToolMessage("1", "read_file", "src/x.py: lines 1 to 411\n" + "line\n" * 411),
        ToolMessage("2", "shell_execute", "exit code 1 after 2 s\n" + "E\n" * 500, success=False),
        *(AssistantMessage("thinking") for _ in range(KEPT_TURNS)),
    ]
    before = Compaction(read_only={"read_file"})
    found = shorten_results(messages, before, estimate_tokens, 0).apply(messages)
    assert [each.text for each in found[2:4]] == [
        "[read_file src/x.py: 412 lines, left out to save room; call it again if you need it."
        " The first line was: src/x.py: lines 1 to 411]",
        "[shell_execute pytest -q: 501 lines, left out to save room."
        " The first line was: exit code 1 after 2 s]",
    ]
    assert isinstance(found[3], ToolMessage)
    assert not found[3].success


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("claude-sonnet-4-5", 200_000),
        ("anthropic/claude-opus-4", 200_000),
        ("gpt-4.1-mini", 1_047_576),
        ("gpt-5.1-codex", 272_000),
        ("gpt-4o", 128_000),
        ("o3-mini", 200_000),
        ("gemini/gemini-2.5-pro", 1_048_576),
        ("my-own-model", None),
    ],
)
def test_the_windows_of_known_models(model: str, tokens: int | None) -> None:
    assert find_context_window(model) == tokens


# --- a run ---

LINES = "some words of a file that is long\n" * 120


def workspace() -> InMemoryFilesystem:
    files = InMemoryFilesystem()
    for number in range(12):
        files.write(f"f{number}.txt", f"file {number}\n{LINES}")
    return files


def reading(number: int) -> Completion:
    call = ToolCall("read_file", {"path": f"f{number}.txt"}, f"c{number}")
    return Completion("", (call,))


def run(adapter: Any, window: int | None, **options: Any) -> tuple[Any, list[ContextCompacted]]:
    session = Session()
    events: list[ContextCompacted] = []
    session.bus.subscribe(ContextCompacted, events.append)
    with prompt(workspace()) as asked:
        response = adapter.evaluate(
            asked,
            session=session,
            messages=[UserMessage("read the files")],
            options=RunOptions(context_window=window),
            **options,
        )
    return response, events


def test_results_are_left_out_before_the_window_is_full_and_the_conversation_stays_whole() -> None:
    adapter = ScriptedAdapter([*map(reading, range(12)), "done"])
    response, events = run(adapter, 9_000)
    for request in adapter.requests:
        check_conversation(request.messages)
        assert estimate_tokens(request.messages) < 9_000
    assert sum(each.shortened for each in events) >= 6
    assert [each.summarized for each in events] == [0] * len(events)
    assert len(events) <= 4  # rarely, in large steps
    assert all(each.fits and each.tokens_after < each.tokens_before for each in events)
    assert "left out to save room" in adapter.requests[-1].messages[3].text
    assert "left out" not in "".join(each.text for each in response.messages)
    # between two compactions only the end of the conversation changes: the cache can be used
    changed = 0
    for before, after in zip(adapter.requests, adapter.requests[1:], strict=False):
        changed += after.messages[: len(before.messages)] != before.messages
    assert changed == len(events)


def test_old_turns_are_summarized_by_the_model_and_the_budget_counts_it() -> None:
    thought = "I think about this for long. " * 150
    calls = [ToolCall("read_file", {"path": f"f{at}.txt"}, f"c{at}") for at in range(6)]
    texts: list[CompletionRequest] = []
    steps = iter([*(Completion(thought, (call,)) for call in calls), Completion("done")])

    def play(request: CompletionRequest) -> Completion:
        if not request.tools:
            texts.append(request)
            return Completion("f0.txt was read; it is long.", usage=TokenUsage(1_000, 50))
        return next(steps)

    adapter = ScriptedAdapter([play] * 30)
    response, events = run(adapter, 8_000)
    assert response.text == "done"
    assert len(texts) == len([each for each in events if each.summarized]) > 0
    assert "first part of a conversation" in texts[0].messages[0].text
    assert response.usage == TokenUsage(1_000 * len(texts), 50 * len(texts))
    last = adapter.requests[-1].messages
    check_conversation(last)
    assert "f0.txt was read; it is long." in last[1].text
    assert last[1].text.startswith("read the files")
    assert response.steps == 7
    with pytest.raises(BudgetExceededError):
        steps = iter([*(Completion(thought, (call,)) for call in calls), Completion("done")])
        run(ScriptedAdapter([play] * 30), 8_000, budget=Budget(max_total_tokens=500))


def test_without_a_summary_an_outline_takes_its_place() -> None:
    thought = "I think about this for long. " * 150
    calls = [ToolCall("read_file", {"path": f"f{at}.txt"}, f"c{at}") for at in range(6)]
    steps = iter([*(Completion(thought, (call,)) for call in calls), Completion("done")])

    def play(request: CompletionRequest) -> Completion:
        if not request.tools:
            raise InvalidRequestError("no")
        return next(steps)

    adapter = ScriptedAdapter([play] * 30)
    response, events = run(adapter, 8_000)
    assert response.text == "done"
    assert any(each.summarized for each in events)
    assert 'Call of read_file: {"path":"f0.txt"}' in adapter.requests[-1].messages[1].text


def limited(answer: Answer, says: Any, fails: Any, max_bytes: int) -> Answer:
    """Refuse a conversation that is too long, and answer a request for a summary."""

    def check(handler: Handler) -> None:
        state = handler.server_state
        if not state.last.get("tools"):
            state.answers.insert(0, check)
            return says("A summary.")(handler)
        if len(json.dumps(state.last["messages"])) > max_bytes:
            state.answers.insert(0, check)
            return fails(400, "maximum context length exceeded, reduce the length")(handler)
        return answer(handler)

    return check


@pytest.mark.usefixtures("clean_environment")
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_refused_conversation_is_compacted_and_sent_again(provider: str) -> None:
    server: Any = openai_server if provider == "openai" else anthropic_server
    says = openai_says if provider == "openai" else anthropic_server.says
    fails = openai_fails if provider == "openai" else anthropic_server.fails
    answers = [says("", *reading(at).tool_calls) for at in range(8)]
    served = [limited(each, says, fails, 20_000) for each in (*answers, says("done"))]
    with server.asked(*served) as (adapter, state):
        response, events = run(adapter, None)
    assert response.text == "done"
    refused = [each for each in state.requests if len(json.dumps(each.body["messages"])) > 20_000]
    assert [each.reason for each in events].count("refused") == len(refused) > 0
    assert len(events) <= 4  # later ones are foreseen, or refused as well
    assert response.steps == 9
    assert [each.text for each in response.messages if isinstance(each, ToolMessage)] == [
        f"file {at}\n{LINES}" for at in range(8)
    ]


def test_what_cannot_be_shortened_is_still_an_error() -> None:
    adapter = ScriptedAdapter([ContextTooLongError("too long"), "done"])
    with pytest.raises(ContextTooLongError):
        run(adapter, None)
    with pytest.raises(ValueError, match="context_window"):
        RunOptions(context_window=0)


def test_a_summary_that_is_longer_than_what_it_replaces_is_cut() -> None:
    thought = "I think about this for long. " * 300
    calls = [ToolCall("read_file", {"path": f"f{at}.txt"}, f"c{at}") for at in range(6)]
    steps = iter([*(Completion(thought, (call,)) for call in calls), Completion("done")])

    def play(request: CompletionRequest) -> Completion:
        return next(steps) if request.tools else Completion("blah " * 200_000)

    adapter = ScriptedAdapter([play] * 30)
    response, events = run(adapter, 20_000)
    assert response.text == "done"
    assert any(each.summarized for each in events)
    assert max(estimate_tokens(each.messages) for each in adapter.requests) < 20_000


def test_a_provider_that_refuses_every_request_ends_the_run() -> None:
    requests: list[CompletionRequest] = []
    steps = iter(map(reading, range(8)))

    def play(request: CompletionRequest) -> Completion:
        requests.append(request)
        step = next(steps, None)
        if step is None:
            raise ContextTooLongError("more than the limit of ,,,")
        return step

    with pytest.raises(ContextTooLongError):
        run(ScriptedAdapter([play] * 100), None)
    assert len(requests) < 40
