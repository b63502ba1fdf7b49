"""The results that are kept: tables in `benchmarks/results/NAME.md`.

The words of a person stand above a mark, and every run with `--save NAME` replaces what is below.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.report import Report, tables_of

RESULTS = Path(__file__).parent / "results"
MARK = "<!-- measured: python -m benchmarks --save writes what follows -->"
_MACHINE = ("system", "cpus", "load", "python", "git", "rg", "isal")


def save(path: Path, surroundings: Mapping[str, Any], reports: Sequence[Report]) -> None:
    """Write the tables of a run into its file, below the words that are there."""
    words = path.read_text().partition(MARK)[0] if path.exists() else f"# {path.stem}\n\n"
    measured = [_machine(surroundings), *map(_as_markdown, tables_of(reports))]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n\n".join([f"{words}{MARK}", *measured]) + "\n")


def _machine(surroundings: Mapping[str, Any]) -> str:
    """Name the command, the day and the machine, and the versions of what is compared."""
    facts = [f"{name} {surroundings[name]}" for name in _MACHINE]
    facts += [f"{name} {version}" for name, version in surroundings["peers"].items()]
    return f"`{surroundings['command']}`, {surroundings['date'][:10]}: {', '.join(facts)}."


def _as_markdown(table: Table) -> str:
    """Return a table without the blanks that align its columns, so that a diff shows figures."""
    columns = [[column.header, "---", *column.cells] for column in table.columns]
    rows = zip(*columns, strict=True)
    return "\n".join(f"| {' | '.join(_cell(str(each)) for each in row)} |" for row in rows)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
