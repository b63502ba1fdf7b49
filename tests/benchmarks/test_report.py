"""What is printed and written."""

import io
import json
import subprocess
import sys

from rich.console import Console

from benchmarks.harness import Absent, Case, Contender, Workload, expect, measure
from benchmarks.peers import NOT_INSTALLED
from benchmarks.report import Report, print_table, write_json
from scripts.steps import ROOT


def _report() -> Report:
    four = Contender("us", "ours", lambda: 4, lambda answer: expect(answer, 4, "sum"))
    case = Case("sum", (four,), absent=(Absent("them", NOT_INSTALLED),))
    workload = Workload("W0", "nothing", lambda _stage: iter(()))
    return Report(workload, [measure(case, rounds=3)])


def test_the_json_holds_every_sample_and_everybody_absent(tmp_path) -> None:
    write_json(tmp_path / "new/bench.json", {"python": "3"}, [_report()])
    written = json.loads((tmp_path / "new/bench.json").read_text())
    us, them = written["workloads"][0]["cases"][0]["contenders"]
    assert (len(us["samples"]), us["status"]) == (3, "ok")
    assert (them["status"], them["note"]) == ("absent", NOT_INSTALLED)


def test_the_command_prints_brackets_as_they_are(tmp_path) -> None:
    blocked = tmp_path / "fsspec.py"
    blocked.write_text("raise ImportError('gone')\n")
    command = [sys.executable, "-m", "benchmarks", "W2c", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "bench.json")],
        cwd=ROOT,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}", "TMPDIR": str(tmp_path), "USER": "any"},
        capture_output=True,
        text=True,
        check=True,
    )
    [row] = [line for line in done.stdout.splitlines() if "| fsspec LocalFileSystem" in line]
    assert NOT_INSTALLED in row


def test_who_has_no_size_takes_part_among_those_that_have() -> None:
    sized = Contender("us", "ours", lambda: 4, lambda _: None, size=1_000)
    limit = Contender("them", "limit", lambda: 4, lambda _: None)
    workload = Workload("W0", "nothing", lambda _stage: iter(()))
    report = Report(workload, [measure(Case("sum", (sized, limit)), rounds=1)])
    output = io.StringIO()
    print_table(Console(file=output, width=200, markup=False), report)
    assert "us, 1,000 files" in output.getvalue()
    assert "| them " in output.getvalue()


def test_an_unknown_workload_is_refused_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "W99"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "unknown workload: W99" in done.stderr
    assert "W6m" in done.stderr
