"""Parts of Python that the engines lack and we supply: the values are those of CPython."""

import ast

import pytest

from tests.contrib.evaluation.runs import Run

SNIPPETS = (
    "import heapq\nh = [5, 1, 4]\nheapq.heapify(h)\nheapq.heappush(h, 2)\n"
    "[heapq.heappop(h) for _ in range(4)]",
    "from heapq import nlargest, nsmallest as low\n(nlargest(2, [3, 1, 2]), low(1, [3, 1]))",
    "import operator as op\nsorted([(2, 'a'), (1, 'b')], key=op.itemgetter(0)), op.add(1, 2)",
    "from operator import itemgetter\nitemgetter('a', 'b')({'a': 1, 'b': 2})",
    "import io\nf = io.StringIO()\nf.write('a\\n')\nf.write('b')\nf.seek(0)\n"
    "(f.readline(), f.getvalue())",
    "import csv, io\nlist(csv.reader(io.StringIO('a,b\\n1,2\\n')))",
    "import csv\nfrom io import StringIO\nf = StringIO()\n"
    "csv.writer(f).writerow([1, 'x'])\nf.getvalue()",
    "import re\nre.sub(r'\\d+', lambda m: str(int(m.group()) + 1), 'a1 b22')",
    "import re\nre.sub('a', 'b', 'aaa', count=2), re.subn('a', 'b', 'aaa')",
    "from re import sub, findall\n(sub('a', 'b', 'aa'), findall('b', 'abb'))",
    "import statistics\nd = {'a': 1.0, 'b': 3.0}\n"
    "statistics.mean(d.values()), statistics.median([1, 5, 2]), statistics.pstdev(d.values())",
    "from statistics import quantiles\nquantiles([1, 2, 3, 4], n=4)",
    "import string\nstring.digits + string.punctuation",
    "from string import ascii_lowercase as letters\nletters[:3]",
    "import textwrap\ntextwrap.fill('aa bb cc', width=5), textwrap.dedent('  a\\n  b')",
    "import html\nhtml.escape('<a>'), html.unescape('&lt;')",
    "import calendar\n[*map(int, calendar.monthrange(2024, 2)), calendar.month_name[2]]",
    "import difflib\nlist(difflib.unified_diff(['a'], ['b'], 'x', 'y', lineterm=''))",
    "from difflib import get_close_matches\nget_close_matches('appel', ['apple', 'pear'])",
    "next(x for x in [1, 2, 3] if x > 1), next((x for x in [] if x), None)",
    "d = {'a': 2, 'b': 1}\nsorted(d, key=d.get), max(d, key=d.get)",
    "import os, heapq\nos.path.join('a', 'b'), heapq.nsmallest(1, [2, 1])",
    "try:\n    assert 1 == 2, 'no'\nexcept AssertionError as e:\n    s = str(e)\ns",
    "from io import (\n    StringIO,\n)\nStringIO('é').read() + 'ü'",
)


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_value_is_that_of_cpython(run: Run, code: str) -> None:
    assert run(code).value_repr == repr(_evaluate(code))


def _evaluate(code: str) -> object:
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(tree, "<code>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<code>", "eval"), names)


def test_files_of_the_workspace_by_any_name(run: Run) -> None:
    result = run(
        "import glob\nfrom pathlib import Path\n"
        "with open('out/b.txt', 'w') as f:\n    print('x', 1, file=f, sep='-')\n"
        "Path('out/a.txt').write_text('y')\n"
        "names = [p.name for p in sorted(Path('out').glob('*.txt'))]\n"
        "(names, sorted(glob.glob('out/*.txt')), open('out/b.txt').read())"
    )
    assert result.value_repr == "(['a.txt', 'b.txt'], ['out/a.txt', 'out/b.txt'], 'x-1\\n')"
    assert run.filesystem.read("out/b.txt").content == "x-1\n"


def test_an_error_in_a_supplement_names_the_line_of_the_code(run: Run) -> None:
    result = run.fail("import heapq\n\nx = heapq.heappop([])\n").value
    assert result is not None
    assert result.error is not None
    assert (result.error.type, result.error.line) == ("IndexError", 3)


@pytest.mark.parametrize(
    "code",
    [
        "open('../outside', 'w')",
        "open('/etc/hosts')",
        "read_text('../outside')",
        "write_text('../outside', '')",
        "from pathlib import Path\nPath('../outside').write_text('x')",
        "import os\nos.remove('data.txt')",
    ],
)
def test_files_outside_cannot_be_used_and_none_deleted(run: Run, code: str) -> None:
    assert run.fail(code).value is not None
    assert [each.path for each in run.filesystem.list()] == ["data.txt"]
