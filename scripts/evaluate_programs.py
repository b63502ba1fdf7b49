"""The share of programs that each engine of `evaluate_python` runs.

    python -m scripts.evaluate_programs [--record] [ENGINE...]

A program runs if it prints, returns and writes what it does in CPython. The programs that an
engine does not run are stored with the reason in `tests/contrib/evaluation/programs.json`, and
their total is in `docs/evaluate.md`; a test compares. `--record` writes both again.
"""

import json
import re
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from scripts.programs import DIRECTORY, Output, Program, read_programs
from scripts.steps import ROOT
from weakincentives.contrib.evaluation import (
    ENGINES,
    Evaluator,
    FilesystemWorkspace,
    create_engine,
)
from weakincentives.contrib.evaluation.engine import DEFAULT_EVAL_LIMITS, EvalLimits, EvalParams
from weakincentives.filesystem import Filesystem, HostFilesystem

STORED = DIRECTORY.with_suffix(".json")
GUIDE = ROOT / "docs" / "evaluate.md"
_TABLE = re.compile("(?<=<!-- programs -->\n).*?(?=<!-- end of programs -->)", re.DOTALL)
_MAX_REASON = 120


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine and the workspace that its code sees."""

    evaluator: Evaluator
    fs: Filesystem

    def run(self, program: Program) -> str | None:
        """Return None if the program does what it does in CPython, else the difference."""
        for entry in self.fs.list("."):
            self.fs.delete(entry.path, recursive=True)
        for path, content in program.files.items():
            self.fs.write(path, content)
        result = self.evaluator.evaluate(EvalParams(program.code), FilesystemWorkspace(self.fs))
        if result.error is not None:
            return f"{result.error.type}: {result.error.message}"[:_MAX_REASON].strip()
        written = {path: text for path, text in self._files() if program.files.get(path) != text}
        return _difference(program.expected, Output(result.stdout, result.value_repr, written))

    def _files(self) -> Iterator[tuple[str, str]]:
        for match in self.fs.glob("**"):
            if match.is_file:
                yield match.path, self.fs.read_bytes(match.path).content.decode()


@contextmanager
def open_bench(
    name: str, *, limits: EvalLimits = DEFAULT_EVAL_LIMITS
) -> Generator[Bench, None, None]:
    """Open an engine on an empty workspace."""
    with ExitStack() as exits:
        root = exits.enter_context(tempfile.TemporaryDirectory(prefix="wink-evaluate-"))
        fs = HostFilesystem(root)
        engine = create_engine(name)
        exits.callback(engine.close)
        yield Bench(Evaluator(engine, limits=limits), fs)


def find_failures(name: str) -> dict[str, str]:
    """Return the programs that an engine does not run, with the reason."""
    with open_bench(name) as bench:
        found = ((each.name, bench.run(each)) for each in _all())
        return {program: reason for program, reason in found if reason is not None}


def read_stored() -> dict[str, dict[str, str]]:
    """Return for each engine the stored programs that it does not run, with the reason."""
    return json.loads(STORED.read_text())


def render(failures: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: how many programs of each theme run."""
    yield "| programs about | " + " | ".join(f"`{name}`" for name in failures) + " |"
    yield "|---|" + "--:|" * len(failures)
    themes = {theme.replace("_", " "): programs for theme, programs in read_programs().items()}
    for theme, programs in {**themes, "**all**": _all()}.items():
        counts = (sum(each.name not in failed for each in programs) for failed in failures.values())
        cells = (f"{count} of {len(programs)}" for count in counts)
        yield f"| {theme} | " + " | ".join(cells) + " |"


def render_total(failures: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table without its themes, as the guide has it."""
    *opening, total = list(render(failures))
    return "".join(f"{line}\n" for line in (*opening[:2], total))


def read_table() -> str:
    """Return the table in the guide."""
    found = _TABLE.search(GUIDE.read_text())
    assert found is not None, "The guide has no place for the table"
    return found[0]


def _record(failures: Mapping[str, Mapping[str, str]]) -> None:
    known = {**read_stored(), **failures}
    stored = {name: known[name] for name in ENGINES}
    STORED.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    total = render_total(stored)
    GUIDE.write_text(_TABLE.sub(lambda _: total, GUIDE.read_text()))


def _all() -> list[Program]:
    return [each for programs in read_programs().values() for each in programs]


def _difference(expected: Output, found: Output) -> str | None:
    if found.stdout != expected.stdout:
        return "prints something else"
    if found.value != expected.value:
        return "returns another value"
    return None if found.written == expected.written else "writes other files"


def main(arguments: Sequence[str]) -> None:
    """Print the table, and what fails."""
    names = [each for each in arguments if not each.startswith("--")] or list(ENGINES)
    failures = {name: find_failures(name) for name in names}
    if "--record" in arguments:
        _record(failures)
    print("\n".join(render(failures)))
    for name, failed in failures.items():
        for program, reason in failed.items():
            print(f"{name}: {program}: {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
