"""`python -m benchmarks`: run workloads, print tables, write JSON; `--save` keeps the tables.

Exit status: 0 when every answer was right, 1 when one of ours (or of a limit) was
wrong or failed, 2 for a wrong command line. A missed goal is printed, and
fails the run only with `--strict`: times depend on the machine.
"""

import argparse
import gc
import os
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

from rich.console import Console

from benchmarks.corpus import cache_directory, clean
from benchmarks.growth import child_processes, growth_facts, open_descriptors
from benchmarks.harness import CLOCKS, Clock, Fact, Workload, measure
from benchmarks.report import (
    Report,
    environment,
    print_agreement,
    print_overview,
    print_table,
    write_json,
)
from benchmarks.saved import RESULTS, save
from benchmarks.stage import Stage
from benchmarks.workloads import WORKLOADS


def run_workload(
    workload: Workload,
    *,
    smallest: bool,
    sizes: tuple[int, ...],
    rounds: int,
    clock: Clock = time.perf_counter,
) -> Report:
    """Measure all cases of a workload, then its facts."""
    report = Report(workload)
    resource_tracker.ensure_running()  # child processes need it, and it stays: not a leak
    before = open_descriptors(), child_processes()
    with Stage(smallest, sizes) as stage:
        report.measured.extend(measure(case, rounds, clock) for case in workload.cases(stage))
        if not smallest and workload.facts:
            report.facts.extend(workload.facts(stage))
    gc.collect()
    after = open_descriptors(), child_processes()
    report.facts.extend(growth_facts(report.measured))
    text = f"{before[0]} -> {after[0]} descriptors, {before[1]} -> {after[1]} processes"
    report.facts.append(Fact("given back at the end", text, after <= before))
    return report


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"any of {' '.join(WORKLOADS)}")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument(
        "--size", "--sizes", type=int, action="append", default=[], help="files; may repeat"
    )
    parser.add_argument("--smallest", action="store_true", help="once, smallest size, no times")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: on a busy machine")
    parser.add_argument("--json", type=Path, help="where the JSON goes")
    parser.add_argument("--save", metavar="NAME", help="write benchmarks/results/NAME.md")
    parser.add_argument("--strict", action="store_true", help="a missed goal fails the run")
    parser.add_argument("--clean", action="store_true", help="remove the kept corpora and stop")
    options = parser.parse_args(argv)
    options.workloads = [name for given in options.workloads for name in given.split(",") if name]
    if unknown := [name for name in options.workloads if name not in WORKLOADS]:
        parser.error(f"unknown workload: {', '.join(unknown)}; known: {' '.join(WORKLOADS)}")
    return options


def main(argv: list[str]) -> int:
    """Run what the command line asks for."""
    options = arguments(argv)
    if options.clean:
        clean()
        return 0
    width = None if sys.stdout.isatty() else 200
    console = Console(width=width, markup=False)  # names and notes hold brackets
    surroundings = environment(f"python -m benchmarks {' '.join(argv)}".strip())
    console.print(surroundings, highlight=False)
    if options.clock == "wall" and surroundings["load"] > surroundings["cpus"] / 2:
        console.print("the machine is busy: --clock cpu gives steadier figures", highlight=False)
    reports: list[Report] = []
    for name in options.workloads or WORKLOADS:
        report = run_workload(
            WORKLOADS[name],
            smallest=options.smallest,
            sizes=tuple(options.size),
            rounds=1 if options.smallest else options.rounds,
            clock=CLOCKS[options.clock],
        )
        reports.append(report)
        (print_agreement if options.smallest else print_table)(console, report)
    return conclude(console, reports, options, surroundings)


def conclude(
    console: Console,
    reports: list[Report],
    options: argparse.Namespace,
    surroundings: dict[str, object],
) -> int:
    """Write the JSON, name what is broken or missed, and return the exit status."""
    if not options.smallest:
        if len(reports) > 1:
            print_overview(console, reports)
        place = options.json or cache_directory() / "last.json"
        write_json(place, surroundings, reports)
        console.print(f"\nJSON: {place}", highlight=False)
        if options.save:
            save(RESULTS / f"{options.save}.md", surroundings, reports)
        for line in (line for report in reports for line in report.missed):
            console.print(f"missed: {line}", highlight=False)
        for line in (line for report in reports for line in report.doubtful):
            console.print(f"doubtful: {line}", highlight=False)
    broken = [line for report in reports for line in report.broken]
    for line in broken:
        console.print(f"broken: {line}", highlight=False)
    missed = any(report.missed for report in reports)
    return 1 if broken or (options.strict and missed) else 0


if __name__ == "__main__":
    os.environ.setdefault("LANGSMITH_TRACING", "false")
    sys.exit(main(sys.argv[1:]))
