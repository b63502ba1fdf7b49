"""The harness: medians, wrong answers, contenders that hang or fail."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import pytest

from benchmarks.harness import (
    Absent,
    Case,
    Clock,
    Contender,
    Outcome,
    Role,
    UnfinishedError,
    WallLimitError,
    WrongAnswerError,
    cpu_clock,
    expect,
    measure,
    run_in_child,
    wall_limit,
)
from benchmarks.report import Report, Workload


def _contender(name: str = "us", role: Role = "ours", run=lambda: 4, **options) -> Contender:
    return Contender(name, role, run, lambda answer: expect(answer, 4, "two and two"), **options)


def _forever() -> None:
    while True:
        time.sleep(0.01)


def _report(*contenders: Contender) -> Report:
    workload = Workload("W0", "nothing", lambda _stage: iter(()))
    return Report(workload, [measure(Case("sum", contenders), rounds=3)])


def test_the_median_is_the_middle_sample() -> None:
    assert Outcome("us", "ours", samples=[5.0, 1.0, 2.0]).median == 2.0


def test_the_median_of_an_even_number_lies_between_the_middle_two() -> None:
    assert Outcome("us", "ours", samples=[4.0, 1.0, 2.0, 3.0]).median == 2.5


def test_without_samples_there_is_no_median() -> None:
    assert Outcome("us", "ours").median is None


def test_every_round_asks_every_contender_once_in_a_rotating_order() -> None:
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return 4

    case = Case("sum", tuple(_contender(name, run=partial(run, name)) for name in "abc"))
    measured = measure(case, rounds=3)
    assert order == list("abc" + "bca" + "cab")
    assert [len(outcome.samples) for outcome in measured.outcomes] == [3, 3, 3]


def test_every_repeated_answer_is_checked() -> None:
    answers: Iterator[int] = iter([4, 5, 4])
    [outcome] = measure(Case("sum", (_contender(run=lambda: next(answers), repeat=3),)), 1).outcomes
    assert outcome.status == "wrong"


def test_a_wrong_answer_of_ours_fails_the_run_and_is_no_figure() -> None:
    report = _report(_contender(run=lambda: 5))
    [outcome] = report.measured[0].outcomes
    assert (outcome.status, outcome.comparable) == ("wrong", False)
    assert report.broken == ["W0 sum: us: two and two: 5 instead of 4"]


def test_an_error_of_ours_fails_the_run() -> None:
    report = _report(_contender(run=lambda: 1 // 0))
    assert report.broken == ["W0 sum: us: ZeroDivisionError: integer division or modulo by zero"]


def test_a_wrong_peer_is_reported_and_does_not_fail_the_run() -> None:
    report = _report(_contender(), _contender("them", "peer", run=lambda: 5))
    assert report.broken == []
    assert report.measured[0].outcomes[1].status == "wrong"


def test_an_absent_peer_stays_in_the_table() -> None:
    case = Case("sum", (_contender(),), absent=(Absent("them", "not installed"),))
    last = measure(case, rounds=1).outcomes[-1]
    assert (last.name, last.status, last.note) == ("them", "absent", "not installed")


def test_a_contender_that_never_comes_back_is_stopped_and_reported() -> None:
    calls: list[int] = []

    def hang() -> None:
        calls.append(1)
        _forever()

    case = Case("sum", (_contender(), _contender("them", "peer", run=hang, wall=0.05)))
    ours, them = measure(case, rounds=3).outcomes
    assert ours.status == "ok"
    assert (them.status, them.note) == ("unfinished", "stopped after 0.05 s")
    assert them.median == 0.05
    assert calls == [1]


def test_a_child_process_that_hangs_is_stopped_and_reported() -> None:
    with pytest.raises(WallLimitError, match=r"hangs: stopped after 0\.2 s"):
        run_in_child(_forever_in_child, 0.2)


def test_a_child_process_that_answers_is_timed() -> None:
    seconds, answer = run_in_child(partial(sum, [2, 2]), 60)
    assert isinstance(seconds, float)
    assert answer == 4


def test_a_partial_answer_counts_as_a_lower_bound() -> None:
    def check(_answer: object) -> None:
        raise UnfinishedError("returned a part")

    [outcome] = measure(Case("sum", (Contender("them", "peer", lambda: 4, check),)), 3).outcomes
    assert (outcome.status, len(outcome.samples), outcome.comparable) == ("unfinished", 1, True)


def test_code_within_its_wall_time_is_left_alone_and_the_alarm_is_off_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with wall_limit(60):
        armed = signal.getitimer(signal.ITIMER_REAL)[0]
    assert armed > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) == before


def test_expect_is_silent_about_equals_and_short_about_differences() -> None:
    expect([1], [1], "list")
    with pytest.raises(WrongAnswerError) as caught:
        expect(list(range(1_000)), [1], "list")
    assert "(1000 items)" in str(caught.value)
    assert len(str(caught.value)) < 200


_forever_in_child = partial(time.sleep, 3_600)


def test_samples_are_read_from_the_clock_that_is_given() -> None:
    ticks = itertools.count()
    case = Case("sum", (_contender(repeat=2),))
    [outcome] = measure(case, rounds=2, clock=lambda: float(next(ticks))).outcomes
    assert outcome.samples == [0.5, 0.5]


def test_the_cpu_clock_counts_work_in_children() -> None:
    before = cpu_clock()
    subprocess.run([sys.executable, "-c", "sum(range(1_000_000))"], check=True)
    assert cpu_clock() > before


@pytest.mark.parametrize(("clock", "unfair"), [(time.perf_counter, False), (cpu_clock, True)])
def test_only_processor_time_is_unfair_to_threads(clock: Clock, unfair: bool) -> None:
    [outcome] = measure(Case("sum", (_contender(threads=True),)), 1, clock).outcomes
    assert outcome.unfair is unfair
