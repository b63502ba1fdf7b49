import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import WinkError
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Deadline,
    DeadlineExceededError,
    Excess,
    ManualClock,
    TokenUsage,
)
from weakincentives.serde import decode, encode

# a busy machine is no fault of the code

USAGE = st.builds(TokenUsage, *[st.integers(0, 10**9)] * 3)


@given(st.lists(USAGE))
def test_usage_adds_up(usages: list[TokenUsage]):
    tracker = BudgetTracker(Budget())
    for each in usages:
        tracker.record(each)
    assert tracker.usage == sum(usages, TokenUsage())
    assert tracker.usage.total_tokens == sum(each.total_tokens for each in usages)
    tracker.check()


def test_the_cached_tokens_are_part_of_the_input():
    assert TokenUsage(10, 5, cached_tokens=8).total_tokens == 15


def test_usage_can_be_stored():
    assert decode(encode(TokenUsage(1, 2, 3)), TokenUsage) == TokenUsage(1, 2, 3)


def test_exactly_the_budget_may_be_used():
    tracker = BudgetTracker(
        Budget(max_input_tokens=10, max_output_tokens=5, max_total_tokens=15, max_tool_calls=0)
    )
    tracker.record(TokenUsage(10, 5))
    tracker.check()
    tracker.record(TokenUsage(0, 1))
    with pytest.raises(BudgetExceededError, match="max_output_tokens by 1"):
        tracker.check()


def test_the_error_names_every_limit_and_by_how_much():
    tracker = BudgetTracker(Budget(max_input_tokens=10, max_output_tokens=5, max_total_tokens=100))
    tracker.record(TokenUsage(30, 6))
    with pytest.raises(BudgetExceededError) as caught:
        tracker.check()
    assert str(caught.value) == (
        "Budget exceeded: max_input_tokens by 20, 30 of 10; "
        "Budget exceeded: max_output_tokens by 1, 6 of 5"
    )
    assert caught.value.excesses == (
        Excess("max_input_tokens", 10, 30),
        Excess("max_output_tokens", 5, 6),
    )
    assert isinstance(caught.value, WinkError)
    assert isinstance(caught.value, RuntimeError)


def test_the_total_has_a_limit_of_its_own():
    tracker = BudgetTracker(Budget(max_total_tokens=9))
    tracker.record(TokenUsage(5, 5))
    with pytest.raises(BudgetExceededError, match="max_total_tokens by 1, 10 of 9"):
        tracker.check()


def test_one_tool_call_too_many_is_refused_and_not_counted():
    tracker = BudgetTracker(Budget(max_tool_calls=2))
    tracker.count_tool_call()
    tracker.count_tool_call()
    for _ in range(2):
        with pytest.raises(BudgetExceededError, match="max_tool_calls by 1, 3 of 2"):
            tracker.count_tool_call()
    assert tracker.tool_calls == 2
    tracker.check()


def test_the_deadline_of_a_budget_is_checked_with_it():
    clock = ManualClock()
    budget = Budget(deadline=Deadline.after(1, clock=clock))
    tracker = BudgetTracker(budget)
    tracker.check()
    clock.advance(3)
    with pytest.raises(DeadlineExceededError, match=r"Turn stopped.* 2 s ago"):
        tracker.check("Turn")
    assert tracker.budget is budget


def test_nothing_is_lost_between_threads():
    tracker = BudgetTracker(Budget(max_tool_calls=16_000))
    together = Barrier(8)

    def work(_: int) -> None:
        together.wait()
        for _ in range(2_000):
            tracker.record(TokenUsage(1, 2, 1))
            tracker.count_tool_call()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # or the threads would take turns too rarely to meet
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert tracker.usage == TokenUsage(16_000, 32_000, 16_000)
    assert tracker.tool_calls == 16_000


@pytest.mark.parametrize(
    "name", ["max_input_tokens", "max_output_tokens", "max_total_tokens", "max_tool_calls"]
)
def test_a_negative_limit_is_refused(name: str):
    limits: dict[str, Any] = {name: -1}
    with pytest.raises(ValueError, match=f"{name} must not be negative: -1"):
        Budget(**limits)


@pytest.mark.parametrize("values", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_negative_usage_is_refused(values: tuple[int, int, int]):
    with pytest.raises(ValueError, match="negative"):
        TokenUsage(*values)
