"""What the description of an engine says that code can use is what code can use."""

import re

import pytest

from scripts.evaluate_programs import open_bench
from scripts.programs import read_programs
from weakincentives.contrib.evaluation import EvalParams, FilesystemWorkspace

SMALL = ("asteval", "monty")
FEATURES = {
    "classes": "class A:\n    x = 1\nA().x == 1",
    "next()": "next(iter([1])) == 1",
    "generators (yield)": "def f():\n    yield 1\n    yield 2\n\nsum(f()) == 3",
    "infinite generators": ("def f():\n    while True:\n        yield 1\n\nnext(f()) == 1"),
    "next() of a generator expression": "next(x for x in [1, 2]) == 1",
    "open()": "with open('f', 'w') as f:\n    f.write('x')\nread_text('f') == 'x'",
    "print(file=...) to a file": (
        "with open('g', 'w') as f:\n    print('x', file=f)\nread_text('g') == 'x\\n'"
    ),
    "match statements": "match [1, 2]:\n    case [x, y]:\n        z = x + y\nz == 3",
    "async functions": "import asyncio\nasync def f():\n    return 1\nasyncio.run(f()) == 1",
    "class inheritance": "class A(ValueError):\n    pass\nisinstance(A('x'), ValueError)",
    "property, classmethod, staticmethod": """
class A:
    @property
    def x(self):
        return 1

    @classmethod
    def y(cls):
        return 2

A().x + A.y() == 3
""",
    "len(), bool() and operators of own classes": """
class A:
    def __len__(self):
        return 0

    def __lt__(self, other):
        return True

len(A()) == 0 and not A() and A() < A()
""",
    "decorators": "def d(f):\n    return lambda: f() + 1\n@d\ndef f():\n    return 1\nf() == 2",
    "data classes": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\nA() == A(1)"
    ),
    "with statements on own classes": """
class A:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True

with A():
    1 / 0
True
""",
    "methods as values (key=d.get)": "d = {'a': 1, 'b': 2}\nmax(d, key=d.get) == 'b'",
    "del": "x = [1, 2]\ndel x[0]\nx == [2]",
    "assignment expressions": "[y for x in [1, 2] if (y := x) > 1] == [2]",
    "starred assignment": "a, *b = [1, 2, 3]\n[*b, a] == [2, 3, 1]",
    "nonlocal": """
def f():
    n = 0
    def g():
        nonlocal n
        n += 1
        return n
    return g()

f() == 1
""",
    "re.sub with a function": ("import re\nre.sub('a', lambda m: m.group().upper(), 'ab') == 'Ab'"),
    "sorted paths": """
from pathlib import Path
write_text("d/b.txt", "")
write_text("d/a.txt", "")
[each.name for each in sorted(Path("d").glob("*.txt"))] == ["a.txt", "b.txt"]
""",
    "generator expressions": "sum(x for x in [1, 2]) == 3",
    "exec and eval": "exec('x = 1')\neval('x + 1') == 2",
}
"""What models use, as code that is true where it works."""

PARTS = {
    "infinite generators": "generators (yield)",
    "next() of a generator expression": "next()",
    "class inheritance": "classes",
    "property, classmethod, staticmethod": "classes",
    "len(), bool() and operators of own classes": "classes",
    "data classes": "classes",
    "with statements on own classes": "classes",
}
"""Features of something that may be missing altogether; then the description names only that."""

_IMPORT = re.compile(r"^(?:import|from) ([\w.]+)", re.MULTILINE)


def imported() -> set[str]:
    """Return the modules that the programs import."""
    codes = (each.code for theme in read_programs().values() for each in theme)
    return {name for code in codes for name in _IMPORT.findall(code)}


@pytest.mark.parametrize("engine", ["python", "asteval"])
def test_all_modules_that_models_use_can_be_imported(engine: str) -> None:
    code = "\n".join(f"import {name}" for name in sorted(imported() | {"asyncio", "unittest"}))
    with open_bench(engine) as bench:
        assert bench.evaluator.engine.language.modules == ()
        result = bench.evaluator.evaluate(EvalParams(code), FilesystemWorkspace(bench.fs))
    assert result.error is None


@pytest.mark.parametrize("engine", ["monty"])
def test_exactly_the_modules_of_the_description_can_be_imported(engine: str) -> None:
    with open_bench(engine) as bench:
        described = set(bench.evaluator.engine.language.modules)
        workspace = FilesystemWorkspace(bench.fs)
        tried = sorted(described | imported())
        results = {
            name: bench.evaluator.evaluate(EvalParams(f"import {name}\n1"), workspace).error
            for name in tried
        }
    assert {name for name, error in results.items() if error is None} == described


@pytest.mark.parametrize("engine", SMALL)
def test_the_functions_of_the_description_are_there(engine: str) -> None:
    with open_bench(engine) as bench:
        names = bench.evaluator.engine.language.functions
        code = f"[{', '.join(names)}]\n1"
        result = bench.evaluator.evaluate(EvalParams(code), FilesystemWorkspace(bench.fs))
    assert (result.error, result.value_repr) == (None, "1")


@pytest.mark.parametrize("engine", SMALL)
def test_exactly_the_missing_features_of_the_description_are_missing(engine: str) -> None:
    with open_bench(engine) as bench:
        language = bench.evaluator.engine.language
        workspace = FilesystemWorkspace(bench.fs)
        values = {
            name: bench.evaluator.evaluate(
                EvalParams(code), workspace, seconds=1.0 if "infinite" in name else None
            ).value_repr
            for name, code in FEATURES.items()
        }
    missing = {name for name, value in values.items() if value != "True"}
    assert missing - {part for part, whole in PARTS.items() if whole in missing} == set(
        language.missing
    )


def test_nothing_of_the_language_is_missing_in_python() -> None:
    with open_bench("python") as bench:
        workspace = FilesystemWorkspace(bench.fs)
        values = {
            name: bench.evaluator.evaluate(EvalParams(code), workspace).value_repr
            for name, code in FEATURES.items()
        }
    assert {name for name, value in values.items() if value != "True"} == set()
