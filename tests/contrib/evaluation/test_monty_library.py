"""The modules that Monty lacks behave like those of the standard library."""

import calendar
import heapq
import io
import operator
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.evaluate_programs import Bench, open_bench
from weakincentives.contrib.evaluation import EvalParams, EvalResult, FilesystemWorkspace
from weakincentives.contrib.evaluation.worker.monty.library import builtins as our_builtins
from weakincentives.contrib.evaluation.worker.monty.library import calendar as our_calendar
from weakincentives.contrib.evaluation.worker.monty.library import heapq as our_heapq
from weakincentives.contrib.evaluation.worker.monty.library import io as our_io
from weakincentives.contrib.evaluation.worker.monty.library import operator as our_operator


@given(st.lists(st.integers()), st.lists(st.integers()), st.integers(0, 5))
def test_heaps(start: list[int], more: list[int], n: int) -> None:
    def use(module: Any) -> list[Any]:
        heap = list(start)
        module.heapify(heap)
        for each in more:
            module.heappush(heap, each)
        results = [module.heappushpop(heap, 3), module.nlargest(n, heap), module.nsmallest(n, heap)]
        results += [module.heapreplace(heap, 7)] if heap else []
        results += [list(module.merge(sorted(start), sorted(more)))]
        return [*results, *(module.heappop(heap) for _ in range(len(heap)))]

    assert use(our_heapq) == use(heapq)


@given(st.integers(1, 9999), st.integers(1, 12))
def test_calendars(year: int, month: int) -> None:
    def use(module: Any) -> list[Any]:
        months = [module.monthrange(year, month), module.monthcalendar(year, month)]
        names = [list(module.month_name), list(module.day_abbr), module.SUNDAY]
        return [*months, *names, module.isleap(year), module.leapdays(year - 5, year)]

    assert use(our_calendar) == use(calendar)


@pytest.mark.parametrize("name", [name for name in vars(our_operator) if name in operator.__all__])
def test_operators(name: str) -> None:
    ours: Callable[..., Any] = getattr(our_operator, name)
    theirs: Callable[..., Any] = getattr(operator, name)
    if name == "itemgetter":
        assert (ours(1)("ab"), ours(1, 0)("ab")) == (theirs(1)("ab"), theirs(1, 0)("ab"))
    elif name in {"contains", "getitem"}:
        assert ours({3: 4}, 3) == theirs({3: 4}, 3)
    else:
        values = (6,) if name in {"neg", "not_"} else (6, 4)
        assert ours(*values) == theirs(*values)


@given(st.text("ab\n"), st.text("ab\n"), st.integers(0, 5))
def test_text_in_memory(start: str, more: str, position: int) -> None:
    def use(module: ModuleType) -> list[Any]:
        file = module.StringIO(start)
        results = [file.readline(), file.tell(), file.seek(min(position, len(start)))]
        results += [file.write(more), file.getvalue(), file.read(2), file.readlines()]
        file.seek(0)
        return [*results, list(file)]

    assert use(our_io) == use(io)


@given(st.text("ab"), st.integers(0, 3))
def test_substitution(text: str, count: int) -> None:
    for new in ("x", lambda match: match.group().upper()):
        assert our_builtins.re_subn("a+", new, text, count) == re.subn("a+", new, text, count=count)


@pytest.fixture(scope="module")
def bench():
    with open_bench("monty") as bench:
        yield bench


def run(bench: Bench, code: str) -> EvalResult:
    return bench.evaluator.evaluate(EvalParams(code), FilesystemWorkspace(bench.fs))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (
            "import heapq as h, math\nx = [3, 1]\nh.heapify(x)\n(h.heappop(x), math.floor(2.5))",
            "(1, 2)",
        ),
        (
            "from heapq import (\n heappush,\n heappop as pop,\n)\nx = []\nheappush(x, 2)\npop(x)",
            "2",
        ),
        ("def f():\n    import operator\n    return operator.add(1, 2)\nf()", "3"),
        ("from io import StringIO\ns = StringIO('é\\nb')\n[x for x in s]", "['é\\n', 'b']"),
        (
            "import io, csv\ns = io.StringIO()\ncsv.writer(s).writerow([1, 'é'])\ns.getvalue()",
            "'1,é\\r\\n'",
        ),
        ("import sys\nprint('x', file=sys.stderr)\n1", "1"),
        ("next((x for x in []), 'é')", "'é'"),
        ("sorted(['b', 'A'], key=str.lower)", "['A', 'b']"),
        ("list(map(str.strip, [' a ']))", "['a']"),
        ("import re\nre.sub('b', lambda m: re.sub('b', 'é', m[0]), 'abc')", "'aéc'"),
        ("from pathlib import Path\nsorted([Path('b'), Path('a')], reverse=True)[0].name", "'b'"),
    ],
)
def test_code_can_use_them(bench: Bench, code: str, value: str) -> None:
    result = run(bench, code)
    assert (result.error, result.value_repr) == (None, value)


def test_an_error_in_one_names_the_line_of_the_code(bench: Bench) -> None:
    error = run(bench, "import heapq\n\n\nheapq.heappop([])").error
    assert error is not None
    assert (error.type, error.line, error.source) == ("IndexError", 4, "heapq.heappop([])")
