"""Contenders are timed in interleaved rounds, and every timed answer is checked.

A *case* is one question put to several contenders: ours, the peers, and the
physical limit. Each round asks every contender once, in a rotating order, so that
a noisy moment hurts all of them alike. A contender that answers wrongly, raises
or does not come back keeps its place in the table, with the reason.
"""

import gc
import multiprocessing
import multiprocessing.connection
import resource
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.stage import Stage

Role = Literal["ours", "peer", "limit"]
Status = Literal["ok", "unfinished", "wrong", "failed", "absent"]

# A slow contender is asked again until it has used this much time in one case.
PATIENCE_SECONDS = 20.0
# Short calls are repeated until a sample takes about this long: many slices of the scheduler.
SAMPLE_SECONDS, MOST_CALLS = 0.04, 10_000


class WrongAnswerError(AssertionError):
    """A contender gave an answer that is not the expected one."""


class UnfinishedError(Exception):
    """A contender stopped before the whole answer was there."""


class WallLimitError(UnfinishedError):
    """A contender did not come back within its wall time."""


def _nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of getting the answer; `run` is timed, `prepare` and `check` are not.

    `repeat` calls make one sample of a short operation; 0 lets the first call decide.
    `isolated` runs it in a child process, for what cannot be interrupted; `run` must
    then be picklable.
    """

    name: str
    role: Role
    run: Callable[[], object]
    check: Callable[[object], None]
    prepare: Callable[[], None] = _nothing
    repeat: int = 1
    wall: float = 60.0
    isolated: bool = False
    size: int | None = None
    threads: bool = False  # it uses several, so that processor time says nothing about waiting


@dataclass(frozen=True, slots=True)
class Absent:
    """A contender that cannot take part here, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Outcome:
    """What became of one contender in one case; samples are seconds for one call."""

    name: str
    role: Role
    status: Status = "ok"
    note: str = ""
    samples: list[float] = field(default_factory=list[float])
    repeat: int = 1
    size: int | None = None
    unfair: bool = False  # the clock adds up its threads: no goal may be judged by it

    @property
    def median(self) -> float | None:
        """The median sample; for an unfinished contender a lower bound."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def comparable(self) -> bool:
        """Whether a ratio to this contender means something."""
        return bool(self.samples) and self.status in ("ok", "unfinished")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a goal is met, and by which figure; None means it could not be judged."""

    text: str
    met: bool | None
    value: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A sentence about the figures of a case, and the function that judges it."""

    text: str
    judge: Callable[[list[Outcome]], tuple[bool | None, str]]


@dataclass(frozen=True, slots=True)
class Case:
    """One question put to several contenders."""

    name: str
    contenders: tuple[Contender, ...]
    goals: tuple[Goal, ...] = ()
    absent: tuple[Absent, ...] = ()
    size: int | None = None
    growth: str = ""
    beatable: bool = False  # ours may do less work than the limit, which is then only a scale


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure that is not a race: memory, cost of the last call, open descriptors."""

    name: str
    value: str
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A numbered workload: its cases in order, then facts about it."""

    id: str
    title: str
    cases: Callable[[Stage], Iterator[Case]]
    facts: Callable[[Stage], Iterator[Fact]] | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A case after its rounds."""

    case: Case
    outcomes: list[Outcome]
    verdicts: list[Verdict]


def cpu_clock() -> float:
    """Processor seconds of this process and of the children it has waited for.

    The figures of a machine that is shared: what others do in the meantime is left out,
    and so is waiting for the disk. All threads of a child add up.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": cpu_clock}


def measure(case: Case, rounds: int, clock: Clock = time.perf_counter) -> Measured:
    """Ask every contender `rounds` times, interleaved, and judge the goals."""
    outcomes = [
        Outcome(
            c.name,
            c.role,
            repeat=c.repeat,
            size=c.size or case.size,
            unfair=c.threads and clock is cpu_clock,
        )
        for c in case.contenders
    ]
    pairs = list(zip(case.contenders, outcomes, strict=True))
    gc.collect()
    gc.freeze()  # what one contender keeps in memory must not slow the collector for another
    try:
        for number in range(rounds):
            turn = number % len(pairs)
            for contender, outcome in pairs[turn:] + pairs[:turn]:
                _take_turn(contender, outcome, clock)
    finally:
        gc.unfreeze()
    verdicts = [Verdict(g.text, *g.judge(outcomes)) for g in case.goals]
    outcomes += [Outcome(a.name, "peer", "absent", a.reason) for a in case.absent]
    return Measured(case, outcomes, verdicts)


def _take_turn(contender: Contender, outcome: Outcome, clock: Clock) -> None:
    """Add one sample, or write down why there is none."""
    if outcome.status != "ok" or sum(outcome.samples) * outcome.repeat > PATIENCE_SECONDS:
        return
    try:
        contender.prepare()
        if outcome.repeat == 0:
            first, _ = _timed(contender, 1, clock)
            outcome.repeat = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / first)))
        seconds, answers = _timed(contender, outcome.repeat, clock)
        outcome.samples.append(seconds)
        for answer in answers:
            contender.check(answer)
    except Exception as error:  # noqa: BLE001 - a contender may raise anything; it is reported
        _write_down(error, contender, outcome)


def _write_down(error: Exception, contender: Contender, outcome: Outcome) -> None:
    """Keep the reason in the outcome; who never came back took at least its wall time."""
    outcome.note = str(error)
    if isinstance(error, WallLimitError):
        outcome.samples.append(contender.wall)
    if isinstance(error, UnfinishedError):
        outcome.status = "unfinished"
    elif isinstance(error, WrongAnswerError):
        outcome.status = "wrong"
    else:
        outcome.status = "failed"
        outcome.note = f"{type(error).__name__}: {error}"


def _timed(contender: Contender, repeat: int, clock: Clock) -> tuple[float, list[object]]:
    """Return the seconds of one call and all answers of a sample."""
    if contender.isolated:
        seconds, answer = run_in_child(contender.run, contender.wall)
        return seconds, [answer]
    run, calls = contender.run, range(repeat)
    gc.collect(1)
    with wall_limit(contender.wall):
        start = clock()
        answers = [run() for _ in calls]
        elapsed = clock() - start
    return elapsed / repeat, answers


@contextmanager
def wall_limit(seconds: float) -> Iterator[None]:
    """Interrupt Python code that runs longer than `seconds` (not a single call into C)."""

    def stop(_signal: int, _frame: object) -> None:
        raise WallLimitError(f"stopped after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_in_child(run: Callable[[], object], wall: float) -> tuple[float, object]:
    """Time `run` in a child process and stop it, whatever it does, after `wall` seconds."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(run, sender), daemon=True)
    child.start()
    sender.close()
    try:
        receiver.recv()  # it has started and imported everything: from here on the time counts
        if not receiver.poll(wall):
            raise WallLimitError(f"hangs: stopped after {wall:g} s")
        return receiver.recv()
    finally:
        child.kill()
        child.join()
        child.close()
        receiver.close()


def _child(run: Callable[[], object], sender: multiprocessing.connection.Connection) -> None:
    """Run in the child: say that it starts, then send the seconds and the answer."""
    sender.send("started")
    start = time.perf_counter()
    answer = run()
    sender.send((time.perf_counter() - start, answer))


def expect(actual: object, expected: object, what: str) -> None:
    """Raise WrongAnswerError unless the two are equal.

    Raises:
        WrongAnswerError: They differ; the message is short even for large values.
    """
    if actual != expected:
        raise WrongAnswerError(f"{what}: {_short(actual)} instead of {_short(expected)}")


def _short(value: object) -> str:
    size = f" ({len(value)} items)" if isinstance(value, list | tuple | set | dict) else ""
    return f"{value!r:.60}{size}"
