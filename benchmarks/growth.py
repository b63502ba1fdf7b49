"""How cost grows with size, and what must stay the same: calls, descriptors, processes."""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.goals import show
from benchmarks.harness import Fact, Measured

GATE = 1.3
FIRST, LAST = 100, 10_000


def fitted_exponent(points: Sequence[tuple[float, float]]) -> float:
    """The `k` of the best `time = c * n ** k`: the slope of a least-squares line in log space.

    Raises:
        ValueError: Fewer than two sizes.
    """
    if len({n for n, _ in points}) < 2:
        raise ValueError(f"An exponent needs two sizes: {points!r}")
    slope, _ = statistics.linear_regression(
        [math.log(n) for n, _ in points], [math.log(t) for _, t in points]
    )
    return slope


def growth_facts(measured: Sequence[Measured]) -> Iterator[Fact]:
    """Fit every contender that was measured at several sizes of the same question.

    The quickest samples are compared: noise only ever adds time, and a gate must not
    depend on who else uses the machine.
    """
    series: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for result in measured:
        case = result.case
        for outcome in result.outcomes:
            if case.growth and outcome.size and outcome.comparable:
                key = (case.growth, outcome.role, outcome.name)
                series.setdefault(key, []).append((outcome.size, min(outcome.samples)))
    for (growth, role, name), points in series.items():
        if len(points) < 2:
            continue
        points.sort()
        ratio = points[-1][1] / points[0][1]
        text = (
            f"n^{fitted_exponent(points):.2f}; t({points[-1][0]})/t({points[0][0]}) = {ratio:.2f}"
        )
        gated = role == "ours" and growth.endswith("(gate)")
        yield Fact(f"growth of {growth}: {name}", text, ratio <= GATE if gated else None)


def cost_per_call(name: str, call: Callable[[], object], calls: int = LAST) -> Fact:
    """Compare call 1 and the first hundred with the last hundred of 10,000 calls.

    By the processor's time, and by the lower quartile of each hundred: the machine may be
    busier at the end than at the beginning, and noise only ever adds time.
    """
    clock = time.process_time
    samples: list[float] = []
    for _ in range(calls):
        start = clock()
        call()
        samples.append(clock() - start)
    early, late = (statistics.quantiles(part)[0] for part in (samples[:FIRST], samples[-FIRST:]))
    last = f"calls {calls - FIRST + 1:,}-{calls:,} {show(late)}"
    text = f"call 1 {show(samples[0])}, calls 1-{FIRST} {show(early)}, {last}"
    return Fact(f"cost per call, {name}", text, late <= GATE * early)


def open_descriptors() -> int:
    """How many file descriptors this process holds."""
    return len(list(Path("/dev/fd").iterdir())) - 1


def child_processes() -> int:
    """How many children this process has (0 where the kernel does not say)."""
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    return len(listing.read_text().split()) if listing.exists() else 0
