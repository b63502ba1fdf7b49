"""Small programs of the kind that models write, with what CPython makes of each.

    python -m scripts.programs    # record the expectations again

The files in `tests/contrib/evaluation/programs` have one theme each. A line that starts with
`%%` opens a part: a program with its name, its files, its code; then what CPython printed, the
value of the last expression, and the files that were written. The parts after the code are
recorded. Programs are written without a look at what an engine can do, and none is changed
because an engine cannot run it.
"""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType

from scripts.steps import ROOT

DIRECTORY = ROOT / "tests" / "contrib" / "evaluation" / "programs"
_MARK = "%% "
_NO_NEWLINE = " (no newline at the end)"


@dataclass(frozen=True, slots=True)
class Output:
    """What a program left behind.

    Args:
        stdout: What it printed.
        value: The `repr` of its last expression's value, if that is not None.
        written: The files that it created or changed, by path.
    """

    stdout: str = ""
    value: str | None = None
    written: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Program:
    """A program, its files, and what CPython makes of it."""

    name: str
    code: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    expected: Output = Output()


def read_programs() -> dict[str, list[Program]]:
    """Return the programs of each theme."""
    themes = sorted(DIRECTORY.glob("*.txt"))
    return {each.stem: list(_parse(_read(each))) for each in themes}


def run_in_cpython(programs: Sequence[Program]) -> list[Output]:
    """Return what CPython makes of the programs, all in one process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.programs", "--child"],
        input=json.dumps([asdict(each) for each in programs]),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return [Output(**each) for each in json.loads(done.stdout)]


def _parse(text: str) -> Iterator[Program]:
    for block in text.split(f"{_MARK}program ")[1:]:
        name, _, rest = block.partition("\n")
        parts = dict(_parts(rest))
        value = parts.get("value")
        yield Program(
            name,
            parts["code"],
            _named(parts, "file "),
            Output(
                parts.get("stdout", ""),
                value if value is None else value.removesuffix("\n"),
                _named(parts, "wrote "),
            ),
        )


def _parts(text: str) -> Iterator[tuple[str, str]]:
    for part in ("\n" + text.removesuffix("\n")).split(f"\n{_MARK}")[1:]:
        title, end, content = part.partition("\n")
        if title.endswith(_NO_NEWLINE):
            yield title.removesuffix(_NO_NEWLINE), content
        else:
            yield title, content + end


def _named(parts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        title.removeprefix(prefix): content
        for title, content in parts.items()
        if title.startswith(prefix)
    }


def _render(program: Program) -> Iterator[str]:
    yield f"{_MARK}program {program.name}\n"
    for path, content in program.files.items():
        yield _part(f"file {path}", content)
    yield _part("code", program.code)
    if program.expected.stdout:
        yield _part("stdout", program.expected.stdout)
    if program.expected.value is not None:
        yield _part("value", program.expected.value + "\n")
    for path, content in program.expected.written.items():
        yield _part(f"wrote {path}", content)


def _part(title: str, content: str) -> str:
    if content.endswith("\n"):
        return f"{_MARK}{title}\n{content}"
    return f"{_MARK}{title}{_NO_NEWLINE}\n{content}\n"


def _record() -> None:
    for theme, programs in read_programs().items():
        outputs = run_in_cpython(programs)
        done = (replace(each, expected=out) for each, out in zip(programs, outputs, strict=True))
        text = "".join("".join(_render(each)) for each in done)
        (DIRECTORY / f"{theme}.txt").write_bytes(text.encode())


def _run_here(program: Program) -> Output:
    """Run a program in this process, in a directory of its own."""
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for path, content in program.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(content)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _execute(program.code)
        found = (each for each in sorted(Path().rglob("*")) if each.is_file())
        after = {str(each): _read(each) for each in found}
        written = {path: text for path, text in after.items() if program.files.get(path) != text}
        os.chdir(ROOT)
        return Output(printed.getvalue(), None if value is None else repr(value), written)


def _read(path: str | Path) -> str:
    """Return a file with its line ends as they are: what `csv` writes ends in CR LF."""
    return Path(path).read_bytes().decode()


def _write(path: str, content: str) -> None:
    Path(path).write_bytes(content.encode())


def _execute(code: str) -> object:
    """Run the statements, and return the value of the last one if it is an expression."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module  # where dataclasses and enums look for their module
    names = vars(module)
    names.update(read_text=_read, write_text=_write)
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<program>", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "<program>", "eval"), names)


def _child() -> None:
    given = json.load(sys.stdin)
    outputs = [_run_here(Program(each["name"], each["code"], each["files"])) for each in given]
    json.dump([asdict(each) for each in outputs], sys.stdout)


if __name__ == "__main__":
    _child() if "--child" in sys.argv else _record()
