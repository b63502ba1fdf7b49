"""The table and the JSON."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.goals import beats_limit, best_peer, show, time_of
from benchmarks.harness import Fact, Measured, Outcome, Verdict, Workload
from benchmarks.limits import RG
from benchmarks.peer_git import GIT
from benchmarks.peers import versions
from benchmarks.second_import import uses

MET = {True: "met", False: "MISSED", None: "-"}
NO_GOAL = Verdict("", None, "")


@dataclass(frozen=True, slots=True)
class Report:
    """One workload after it ran."""

    workload: Workload
    measured: list[Measured] = field(default_factory=list[Measured])
    facts: list[Fact] = field(default_factory=list[Fact])

    @property
    def broken(self) -> list[str]:
        """What makes the run fail: a wrong answer or an error of ours or of a limit."""
        return [
            f"{self.workload.id} {result.case.name}: {outcome.name}: {outcome.note}"
            for result in self.measured
            for outcome in result.outcomes
            if outcome.role != "peer" and outcome.status != "ok"
        ]

    @property
    def doubtful(self) -> list[str]:
        """The cases in which ours beat a physical limit: something else was measured."""
        return [
            f"{self.workload.id} {result.case.name}: ours is faster than the limit"
            for result in self.measured
            if not result.case.beatable and beats_limit(result.outcomes)
        ]

    @property
    def missed(self) -> list[str]:
        """The goals and gates that were not met."""
        goals = [
            f"{self.workload.id} {result.case.name}: {verdict.text}, is {verdict.value}"
            for result in self.measured
            for verdict in result.verdicts
            if verdict.met is False
        ]
        gates = [f"{self.workload.id} {f.name}: {f.value}" for f in self.facts if f.met is False]
        return goals + gates


def environment(command: str) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "peers": versions(),
        "rg": _first_line([RG, "--version"]) if RG else "not on PATH",
        "isal": "in use" if uses("isal") else "not in use",
        "git": _first_line([GIT, "--version"]) if GIT else "not on PATH",
    }


def print_table(console: Console, report: Report) -> None:
    """Print the summary of a workload, every contender, and the facts."""
    console.print(f"\n{report.workload.id}: {report.workload.title}\n", highlight=False)
    console.print(_summary([report]))
    console.print(_contenders(report.measured))
    console.print(_facts([report]))


def print_overview(console: Console, reports: Sequence[Report]) -> None:
    """Print what was reached in all workloads: one table of cases, one of facts."""
    console.print("\nAll workloads\n", highlight=False)
    for table in tables_of(reports):
        console.print(table)


def tables_of(reports: Sequence[Report]) -> tuple[Table, Table]:
    """Return what was reached: a table of cases, and one of facts."""
    return _summary(reports), _facts(reports)


def print_agreement(console: Console, report: Report) -> None:
    """Print, without times, who agreed on the answer."""
    for result in report.measured:
        who = ", ".join(f"{o.name} {o.status}" for o in result.outcomes)
        console.print(f"{report.workload.id} {result.case.name}: {who}", highlight=False)


def write_json(path: Path, surroundings: dict[str, Any], reports: Sequence[Report]) -> None:
    """Write everything that was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    workloads = [
        {
            "id": report.workload.id,
            "title": report.workload.title,
            "cases": [_case(result) for result in report.measured],
            "facts": [asdict(fact) for fact in report.facts],
        }
        for report in reports
    ]
    path.write_text(json.dumps({"environment": surroundings, "workloads": workloads}, indent=2))


def _case(result: Measured) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "size": result.case.size,
        "contenders": [asdict(o) | {"median": o.median} for o in result.outcomes],
        "goals": [asdict(verdict) for verdict in result.verdicts],
    }


def _table(*columns: str) -> Table:
    table = Table(box=box.MARKDOWN, show_edge=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _summary(reports: Sequence[Report]) -> Table:
    table = _table(
        "", "case", "ours", "limit", "x limit", "best peer", "x faster", "goal", "is", "met"
    )
    for report in reports:
        for result in report.measured:
            cells = [report.workload.id, result.case.name, *_race(result.outcomes)]
            for number, verdict in enumerate(result.verdicts or [NO_GOAL]):
                judged = [verdict.text, verdict.value, MET[verdict.met]]
                table.add_row(*(cells if number == 0 else [""] * len(cells)), *judged)
    return table


def _race(outcomes: Sequence[Outcome]) -> list[str]:
    """Our time, the limit, the best peer, and the ratios."""
    mine, limit = time_of(outcomes, "ours"), time_of(outcomes, "limit")
    peer = best_peer(outcomes)
    fast = peer.median if peer else None
    return [show(mine), show(limit), _ratio(mine, limit), show(fast), _ratio(fast, mine)]


def _contenders(measured: Sequence[Measured]) -> Table:
    table = _table("case", "contender", "role", "median", "min - max", "n", "x ours", "remark")
    for result in measured:
        mine = time_of(result.outcomes, "ours")
        for outcome in result.outcomes:
            many = len({other.size for other in result.outcomes}) > 1
            name = (
                f"{outcome.name}, {outcome.size:,} files" if many and outcome.size else outcome.name
            )
            table.add_row(result.case.name, name, outcome.role, *_figures(outcome, mine))
    return table


def _figures(outcome: Outcome, mine: float | None) -> list[str]:
    remark = "" if outcome.status == "ok" else f"{outcome.status}: {outcome.note}"
    if outcome.status == "absent":
        remark = outcome.note
    if not outcome.samples:
        return ["-", "-", "0", "-", remark]
    more = "> " if outcome.status == "unfinished" else ""
    spread = f"{show(min(outcome.samples))} - {show(max(outcome.samples))}"
    ratio = more + _ratio(outcome.median, mine)
    return [more + show(outcome.median), spread, str(len(outcome.samples)), ratio, remark]


def _facts(reports: Sequence[Report]) -> Table:
    table = _table("", "fact", "is", "met")
    for report in reports:
        for fact in report.facts:
            table.add_row(report.workload.id, fact.name, fact.value, MET[fact.met])
    return table


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if not value or not base else f"{value / base:.3g}"


def _first_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")[
        0
    ]
