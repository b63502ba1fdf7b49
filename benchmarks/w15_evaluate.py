"""W15: one call of `evaluate_python`, warm and cold, beside bare interpreters and a process."""

from collections.abc import Callable, Iterator

from benchmarks.goals import at_most
from benchmarks.harness import Absent, Case, Contender, Goal, Role, Workload, expect
from benchmarks.peer_evaluators import (
    HERE,
    PROCESS,
    Interpreters,
    run_here,
    run_new_monty,
    run_process,
)
from benchmarks.stage import Stage
from weakincentives.contrib.evaluation import (
    ENGINES,
    EvalParams,
    Evaluator,
    FilesystemWorkspace,
    create_engine,
    find_problem,
)
from weakincentives.filesystem import HostFilesystem

CODE = """
counts = {}
for word in "the quick brown fox jumps over the lazy dog in the end".split():
    counts[word] = counts.get(word, 0) + 1
sorted(counts.items(), key=lambda each: (-each[1], each[0]))[0]
"""
ANSWER = "('the', 3)"
GOALS: dict[str, tuple[Goal, ...]] = {
    "python": (at_most(0.015),),
    "asteval": (at_most(0.02),),
    "monty": (at_most(0.001),),
}
LIMITS = {"python": HERE, "monty": "bare monty pool", "asteval": "asteval in this process"}


def cases(stage: Stage) -> Iterator[Case]:
    """A word count, with an engine that has run something before, and with a new one."""
    interpreters = Interpreters(stage)
    others = interpreters.warm() | {HERE: run_here, PROCESS: run_process}
    absent = tuple(interpreters.absent)
    root = str(stage.scratch())
    for name in ENGINES:
        yield _case(f"warm call in {name}", name, _warm(stage, root, name), others, absent)
    new = {"bare monty pool": run_new_monty} if "bare monty pool" in others else {}
    for name in ENGINES:
        run = _cold(stage, root, name)
        yield _case(f"first call in {name}", "", run, new | {PROCESS: run_process}, absent)


def _case(
    title: str,
    engine: str,
    ours: "Callable[[str], str | None] | Absent",
    others: dict[str, Callable[[str], str]],
    absent: tuple[Absent, ...],
) -> Case:
    limit = LIMITS.get(engine, PROCESS)
    contenders = tuple(
        _contender(name, "limit" if name == limit else "peer", run) for name, run in others.items()
    )
    if isinstance(ours, Absent):
        return Case(title, contenders, absent=(*absent, ours))
    return Case(
        title, (_contender("ours", "ours", ours), *contenders), GOALS.get(engine, ()), absent
    )


def _contender(name: str, role: Role, run: Callable[[str], str | None]) -> Contender:
    check = lambda answer: expect(answer, ANSWER, "the value")  # noqa: E731 # one line, used once
    return Contender(name, role, lambda: run(CODE), check, repeat=0)


def _warm(stage: Stage, root: str, name: str) -> "Callable[[str], str | None] | Absent":
    if (problem := find_problem(name)) is not None:
        return Absent("ours", problem)
    evaluator = Evaluator(stage.keep(create_engine(name)))
    workspace = FilesystemWorkspace(stage.keep(HostFilesystem(root)))
    return lambda code: evaluator.evaluate(EvalParams(code), workspace).value_repr


def _cold(stage: Stage, root: str, name: str) -> "Callable[[str], str | None] | Absent":
    if (problem := find_problem(name)) is not None:
        return Absent("ours", problem)
    workspace = FilesystemWorkspace(stage.keep(HostFilesystem(root)))

    def run(code: str) -> str | None:
        with Stage() as once:
            engine = once.keep(create_engine(name))
            return Evaluator(engine).evaluate(EvalParams(code), workspace).value_repr

    return run


WORKLOAD = Workload("W15", "one call of evaluate_python", cases)
