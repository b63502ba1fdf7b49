"""Goals are judged by ratios within one run."""

import pytest

from benchmarks.goals import (
    at_most,
    beats_limit,
    best_peer,
    faster_than,
    faster_than_peers,
    not_slower_than_peers,
    show,
    within_limit,
)
from benchmarks.harness import Outcome, Role, Status


def _outcome(name: str, role: Role, seconds: float, status: Status = "ok") -> Outcome:
    return Outcome(name, role, status, samples=[seconds])


RACE = [
    _outcome("us", "ours", 2.0),
    _outcome("read", "limit", 1.0),
    _outcome("slow", "peer", 20.0),
    _outcome("quick", "peer", 6.0),
]


@pytest.mark.parametrize(
    ("goal", "met", "value"),
    [
        (within_limit(2), True, "2.00 x"),
        (within_limit(1.9), False, "2.00 x"),
        (faster_than_peers(3), True, "3.0 x"),
        (faster_than_peers(3.1), False, "3.0 x"),
        (faster_than("slow", 10), True, "10.0 x"),
        (not_slower_than_peers(0.5), True, "0.33 x"),
        (not_slower_than_peers(0.3), False, "0.33 x"),
        (at_most(2.0), True, "2 s"),
        (at_most(1.9), False, "2 s"),
    ],
)
def test_a_goal_is_judged_by_the_medians(goal, met: bool, value: str) -> None:
    assert goal.judge(RACE) == (met, value)


def test_a_time_must_be_kept_at_every_size() -> None:
    sizes = [_outcome("us", "ours", 1.0), _outcome("us", "ours", 3.0)]
    assert at_most(2.0).judge(sizes) == (False, "3 s")
    assert at_most(3.0).judge(sizes) == (True, "3 s")


def test_the_best_peer_is_the_fastest_with_a_right_answer() -> None:
    wrong = _outcome("wrong", "peer", 0.1, "wrong")
    peer = best_peer([*RACE, wrong])
    assert peer is not None
    assert peer.name == "quick"


def test_a_peer_that_gave_up_counts_only_when_no_other_finished() -> None:
    gave_up = _outcome("gave up", "peer", 5.0, "unfinished")
    peer = best_peer([*RACE, gave_up])
    assert peer is not None
    assert peer.name == "quick"
    assert faster_than_peers(2).judge([RACE[0], gave_up]) == (True, "> 2.5 x")


@pytest.mark.parametrize("goal", [within_limit(2), faster_than_peers(2), at_most(1)])
def test_without_figures_a_goal_is_not_judged(goal) -> None:
    broken = _outcome("us", "ours", 1.0, "failed")
    met, _ = goal.judge([broken])
    assert met is None


def test_beating_a_physical_limit_is_noticed() -> None:
    limit = _outcome("read", "limit", 1.0)
    assert beats_limit([_outcome("us", "ours", 0.5), limit])
    assert not beats_limit([_outcome("us", "ours", 0.95), limit])
    assert not beats_limit([_outcome("us", "ours", 0.5)])


def test_a_limit_whose_threads_are_added_up_is_no_measure() -> None:
    limit = Outcome("rg", "limit", samples=[1.0], unfair=True)
    met, reason = within_limit(2).judge([RACE[0], limit])
    assert met is None
    assert "several threads" in reason


@pytest.mark.parametrize("goal", [within_limit(2), faster_than_peers(2), not_slower_than_peers(2)])
def test_threads_of_ours_that_are_added_up_are_no_measure(goal) -> None:
    ours = Outcome("us", "ours", samples=[1.0], unfair=True)
    met, reason = goal.judge([ours, *RACE[1:]])
    assert met is None
    assert "several threads" in reason


def test_a_peer_whose_threads_are_added_up_is_no_measure() -> None:
    git = Outcome("git", "peer", samples=[9.0], unfair=True)
    assert faster_than("git", 2).judge([*RACE, git])[0] is None
    assert faster_than("quick", 2).judge([*RACE, git])[0] is True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.5e-6, "4.5 us"), (3e-8, "30 ns"), (None, "-")],
)
def test_times_are_shown_in_the_unit_that_suits(seconds: float | None, text: str) -> None:
    assert show(seconds) == text
