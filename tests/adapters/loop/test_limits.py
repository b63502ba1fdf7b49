"""Deadlines, budgets and cancellation end a run."""

from threading import Thread

import pytest

from tests.adapters.workers import WriteParams, files, patient, prompt
from weakincentives.adapters import (
    CancellationToken,
    Completion,
    CompletionRequest,
    ProviderAdapter,
    RequestRetried,
    RunCancelledError,
    RunOptions,
    ScriptedAdapter,
    ThrottledError,
    ToolCall,
    ToolMessage,
    TransientError,
    partial_response,
)
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Deadline,
    DeadlineExceededError,
    ManualClock,
    PromptExecuted,
    TokenUsage,
)
from weakincentives.runtime.session import Session


def write(path: str) -> ToolCall:
    return ToolCall("write_file", {"path": path, "content": "x"})


class Timed(ProviderAdapter):
    """Takes so many seconds for each answer, and notes how long it would have been given."""

    def __init__(self, clock: ManualClock, seconds: float, answers: list[Completion]) -> None:
        self.timeouts: list[float | None] = []
        self._clock = clock
        self._seconds = seconds
        self._answers = answers

    def complete(self, request: CompletionRequest, *, on_text=None, timeout=None) -> Completion:
        self.timeouts.append(timeout)
        for word in ("one", "two", "three"):
            if on_text is not None:
                self._clock.advance(self._seconds / 3)
                on_text(word)
        if on_text is None:
            self._clock.advance(self._seconds)
        return self._answers[len(self.timeouts) - 1]


def test_a_request_may_take_what_is_left():
    clock = ManualClock()
    adapter = Timed(clock, 10, [Completion("", (write("a"),)), Completion("done")])
    adapter.evaluate(
        prompt(InMemoryFilesystem()), session=Session(), deadline=Deadline.after(60, clock=clock)
    )
    assert adapter.timeouts == [60, 50]


def test_a_request_is_bounded_without_a_deadline():
    adapter = Timed(ManualClock(), 1, [Completion("done")])
    adapter.evaluate(prompt(), session=Session(), options=RunOptions(request_timeout=30))
    assert adapter.timeouts == [30]


def test_a_deadline_that_passes_during_a_request_ends_the_run_before_its_tools():
    clock, fs = ManualClock(), InMemoryFilesystem()
    adapter = Timed(clock, 10, [Completion("", (write("a"), write("b")))])
    with pytest.raises(DeadlineExceededError) as caught:
        adapter.evaluate(prompt(fs), session=Session(), deadline=Deadline.after(5, clock=clock))
    assert not fs.exists("a")
    partial = partial_response(caught.value)
    assert partial is not None
    assert [type(each) for each in partial.messages[-2:]] == [ToolMessage, ToolMessage]


def test_a_deadline_that_has_passed_asks_nobody():
    clock = ManualClock()
    deadline = Deadline.after(5, clock=clock)
    clock.advance(6)
    adapter, session = ScriptedAdapter(["hello"]), Session()
    with pytest.raises(DeadlineExceededError):
        adapter.evaluate(prompt(), session=session, deadline=deadline)
    assert adapter.requests == ()
    executed = session[PromptExecuted].latest()
    assert executed is not None
    assert not executed.success


def test_a_deadline_between_two_calls_stops_the_second_and_answers_it():
    clock, fs = ManualClock(), InMemoryFilesystem()

    def slow(params: WriteParams, *, context: ToolContext) -> ToolResult[str]:
        files(context).write(params.path, params.content)
        clock.advance(10)
        return ToolResult("slowly")

    adapter = ScriptedAdapter([[ToolCall("slow", {"path": "a", "content": ""}), write("b")]])
    with pytest.raises(DeadlineExceededError) as caught:
        adapter.evaluate(
            prompt(fs, tools=[Tool("slow", "Be slow.", slow), *prompt().sections[0].tools]),
            session=Session(),
            deadline=Deadline.after(5, clock=clock),
        )
    assert (fs.exists("a"), fs.exists("b")) == (True, False)
    partial = partial_response(caught.value)
    assert partial is not None
    assert [each.text for each in partial.tool_results] == ["slowly"]
    last = partial.messages[-1]
    assert isinstance(last, ToolMessage)
    assert (last.name, last.success) == ("write_file", False)


def test_a_stream_that_never_ends_is_cut_off_at_the_deadline():
    clock = ManualClock()
    heard: list[str] = []
    adapter = Timed(clock, 9, [Completion("never")])
    with pytest.raises(DeadlineExceededError):
        adapter.evaluate(
            prompt(),
            session=Session(),
            deadline=Deadline.after(5, clock=clock),
            on_text=heard.append,
        )
    assert heard == ["one"]


def test_the_earlier_of_two_deadlines_counts():
    clock = ManualClock()
    adapter = Timed(clock, 1, [Completion("done")])
    budget = Budget(deadline=Deadline.after(20, clock=clock))
    adapter.evaluate(
        prompt(), session=Session(), deadline=Deadline.after(60, clock=clock), budget=budget
    )
    assert adapter.timeouts == [20]


def test_a_budget_ends_the_run_as_soon_as_it_is_passed():
    fs = InMemoryFilesystem()
    adapter = ScriptedAdapter(
        [
            Completion("", (write("a"),), usage=TokenUsage(40, 10)),
            Completion("more", (write("b"),), usage=TokenUsage(60, 10)),
            "never asked",
        ]
    )
    with pytest.raises(BudgetExceededError, match="max_total_tokens by 20") as caught:
        adapter.evaluate(prompt(fs), session=Session(), budget=Budget(max_total_tokens=100))
    assert (fs.exists("a"), fs.exists("b")) == (True, False)
    assert adapter.remaining == 1
    partial = partial_response(caught.value)
    assert partial is not None
    assert (partial.text, partial.usage) == ("more", TokenUsage(100, 20))


def test_a_budget_of_tool_calls_ends_the_run():
    fs = InMemoryFilesystem()
    adapter = ScriptedAdapter([[write("a"), write("b"), write("c")], "done"])
    with pytest.raises(BudgetExceededError, match="max_tool_calls"):
        adapter.evaluate(prompt(fs), session=Session(), budget=Budget(max_tool_calls=2))
    assert [fs.exists(path) for path in "abc"] == [True, True, False]


def test_several_runs_share_a_tracker():
    tracker = BudgetTracker(Budget(max_output_tokens=100))
    script = [Completion("hi", usage=TokenUsage(1, 60))] * 2
    adapter, session = ScriptedAdapter(script), Session()
    adapter.evaluate(prompt(), session=session, budget_tracker=tracker)
    with pytest.raises(BudgetExceededError):
        adapter.evaluate(prompt(), session=session, budget_tracker=tracker)
    assert tracker.usage == TokenUsage(2, 120)


def test_an_answer_may_be_no_longer_than_the_budget():
    adapter = ScriptedAdapter(
        [Completion("", (write("a"),), usage=TokenUsage(1, 80)), "done", "more"]
    )
    adapter.evaluate(
        prompt(InMemoryFilesystem()),
        session=Session(),
        budget=Budget(max_output_tokens=100),
        options=RunOptions(max_tokens=50),
    )
    assert [each.max_tokens for each in adapter.requests] == [50, 20]


def test_a_budget_and_a_tracker_are_one_too_many():
    with pytest.raises(ValueError, match="budget or budget_tracker, not both"):
        ScriptedAdapter([]).evaluate(
            prompt(), session=Session(), budget=Budget(), budget_tracker=BudgetTracker(Budget())
        )


def test_a_cancelled_run_asks_nobody():
    token, adapter = CancellationToken(), ScriptedAdapter(["hello"])
    token.cancel("enough")
    token.cancel("more than enough")
    with pytest.raises(RunCancelledError, match="the run was cancelled: enough"):
        adapter.evaluate(prompt(), session=Session(), cancellation=token)
    assert adapter.requests == ()


def test_cancelling_during_a_call_keeps_that_call_whole_and_runs_no_other():
    token, fs = CancellationToken(), InMemoryFilesystem()

    def cancel(params: WriteParams, *, context: ToolContext) -> ToolResult[str]:
        files(context).write(params.path, "one")
        thread = Thread(target=token.cancel)
        thread.start()
        thread.join()
        files(context).write(params.path, "two")
        return ToolResult("done")

    call = ToolCall("cancel", {"path": "a", "content": ""})
    adapter = ScriptedAdapter([[call, write("b")], "never"])
    tools = [Tool("cancel", "Cancel.", cancel), *prompt().sections[0].tools]
    with pytest.raises(RunCancelledError) as caught:
        adapter.evaluate(prompt(fs, tools=tools), session=Session(), cancellation=token)
    assert fs.read("a").content == "two"
    assert not fs.exists("b")
    assert adapter.remaining == 1
    partial = partial_response(caught.value)
    assert partial is not None
    assert [each.call.name for each in partial.tool_results] == ["cancel"]


def test_cancelling_ends_a_stream():
    token = CancellationToken()
    adapter = ScriptedAdapter(["one two three"])
    heard: list[str] = []

    def listen(text: str) -> None:
        heard.append(text)
        token.cancel()

    with pytest.raises(RunCancelledError):
        adapter.evaluate(prompt(), session=Session(), cancellation=token, on_text=listen)
    assert heard == ["one "]


def test_cancelling_ends_a_wait():
    token, session = CancellationToken(), Session()
    # it waits for minutes, unless the cancellation ends it
    session.bus.subscribe(RequestRetried, lambda _: Thread(target=token.cancel).start())
    adapter = ScriptedAdapter([ThrottledError("slow down", retry_after=290.0), "never"])
    with pytest.raises(RunCancelledError):
        adapter.evaluate(prompt(), session=session, cancellation=token)
    assert adapter.remaining == 1


def test_no_wait_goes_past_the_deadline():
    clock = ManualClock()
    adapter = ScriptedAdapter([ThrottledError("slow down", retry_after=30.0), "never"])
    with pytest.raises(ThrottledError) as caught:
        adapter.evaluate(
            prompt(),
            session=Session(),
            deadline=Deadline.after(20, clock=clock),
            options=patient(clock.advance),
        )
    assert clock.monotonic() == 0
    assert caught.value.__notes__ == ["Not retried: the wait of 30.0 s exceeds the 20.0 s left"]


def test_a_request_that_times_out_at_the_deadline_is_the_deadlines_error():
    clock = ManualClock()

    class Slow(ProviderAdapter):
        def complete(self, request: CompletionRequest, *, on_text=None, timeout=None) -> Completion:
            clock.advance(timeout or 0)
            raise TransientError("took too long")

    with pytest.raises(DeadlineExceededError):
        Slow().evaluate(prompt(), session=Session(), deadline=Deadline.after(20, clock=clock))
