"""The engine `python`: CPython, whose only disk is the workspace."""

from pathlib import Path

import pytest

from tests.contrib.evaluation.runs import Run
from weakincentives.contrib.evaluation import Engine
from weakincentives.filesystem import HostFilesystem


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("round(2.675, 2), round(2.5), round(-0.5)", "(2.67, 2, 0)"),
        ("math.sqrt(2), statistics.fmean([1, 2])", "(1.4142135623730951, 1.5)"),
        ("__name__", "'__main__'"),
        ("import calc\ncalc.double(4), calc.__name__", "(8, 'calc')"),
        ("from package.inner import value\nvalue", "7"),
        ("import sys\nsys.path.append('package')\nimport inner\ninner.value", "7"),
        ("import os\nos.path.samefile('calc.py', 'package/inner.py')", "False"),
        ("import os\nos.listdir('package'), os.path.getsize('calc.py')", "(['__init__.py'"),
        ("import os\n[(d, len(f)) for d, _, f in os.walk('package')]", "[('package', 2)]"),
        ("from pathlib import Path\nsorted(p.name for p in Path().rglob('*.py'))", "['__init__"),
        ("from zoneinfo import ZoneInfo\nfrom datetime import datetime, timedelta\n"
         "datetime(2026, 7, 1, tzinfo=ZoneInfo('Europe/Berlin')).utcoffset() / timedelta(hours=1)",
         "2.0"),
        ("import threading\nfound = []\nt = threading.Thread(target=found.append, args=(1,))\n"
         "t.start()\nt.join()\nfound", "[1]"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\n"
         "asyncio.run(f())", "3"),
        ("import sys\nsys.stdout.write('x')\nprint('y', file=sys.stderr)\nexit()", None),
        ("'naïve'.encode('cp1252')", "b'na\\xefve'"),
        ("'日本'.encode('shift_jis').decode('cp932')", "'日本'"),
        ("import cProfile, subprocess, multiprocessing, ssl, grp, dis, tarfile, venv\n1", "1"),
        ("import sqlite3\nsqlite3.connect(':memory:').execute('select 6 * 7').fetchone()", "(42,)"),
        ("from pickle import dumps, loads\nclass A: pass\ntype(loads(dumps(A()))) is A", "True"),
    ],
)  # fmt: skip
def test_the_code_runs_as_in_python(python: Run, code: str, value: str | None) -> None:
    python.filesystem.write("calc.py", "def double(n):\n    return 2 * n\n")
    python.filesystem.write("package/__init__.py", "")
    python.filesystem.write("package/inner.py", "value = 7\n")
    found = python(code).value_repr
    assert found == value or (value is not None and str(found).startswith(value))


@pytest.mark.parametrize(
    ("code", "content"),
    [
        ("open('f', 'w').write('x')", "x"),
        ("f = open('f', 'w')\nf.write('x')", "x"),
        ("f = open('f', 'w')\nf.write('x')\nf.flush()\nassert open('f').read() == 'x'", "x"),
        ("with open('f', 'w') as f:\n    print('x', 1, file=f, sep='-')", "x-1\n"),
        ("open('f', 'x').write('x')", "x"),
        ("for n in '123':\n    with open('f', 'a') as f:\n        f.write(n)", "123"),
        (
            "open('data.txt', 'a').write('4')\nwrite_text('f', open('data.txt').read())",
            "3\n1\n2\n4",
        ),
        ("with open('f', 'w+') as f:\n    f.write('abc')\n    f.seek(1)\n    f.write('X')", "aXc"),
        ("write_text('f', 'abc')\nwith open('f', 'r+') as f:\n    f.truncate(1)", "a"),
        ("with open('f', 'wb') as f:\n    f.write('é'.encode())", "é"),
        ("with open('f', 'w', newline='') as f:\n    f.write('a\\r\\n')", "a\r\n"),
        (
            "from pathlib import Path\nPath('f').write_text('x')\nPath('d/e').mkdir(parents=True)",
            "x",
        ),
        ("import csv\nwith open('f', 'w') as f:\n    csv.writer(f).writerow([1, 2])", "1,2\r\n"),
        ("from pathlib import Path\nPath('f').touch()\nPath('f').touch()", ""),
        ("import shutil\nshutil.copy('data.txt', 'g')\nshutil.copy2('g', 'f')", "3\n1\n2\n"),
        ("import os\nopen('g', 'w').write('x')\nos.replace('g', 'f')", "x"),
        ("import os\nopen('g', 'w').write('x')\nos.remove('g')\nwrite_text('f', '')", ""),
        ("import os\nos.mkdir('d')\nos.chdir('d')\nopen('../f', 'w').write(os.getcwd())", "/d"),
        ("import linecache\nwrite_text('f', linecache.getline('data.txt', 1))", "3\n"),
        ("import gzip, io\nwrite_text('f', str(len(gzip.compress(b'x')) > 9))", "True"),
        ("import logging\nlogging.basicConfig(filename='f')\nlogging.error('x')", "ERROR:root:x\n"),
    ],
)
def test_files_are_those_of_the_workspace(python: Run, code: str, content: str) -> None:
    result = python(code)
    assert python.filesystem.read("f").content == content
    assert "f" in [each.path for each in result.writes]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("open('missing')", "FileNotFoundError: [Errno 2] No such file or directory: 'missing'"),
        ("open('data.txt', 'x')", "FileExistsError: [Errno 17] File exists: 'data.txt'"),
        ("import os\nos.mkdir('data.txt')", "FileExistsError: [Errno 17] File exists: 'data.txt'"),
        ("open('')", "FileNotFoundError"),
        ("open('a', 'rw')", "ValueError: invalid mode: 'rw'"),
        ("open('data.txt').write('x')", "UnsupportedOperation: not writable"),
        ("open('f', 'w').read()", "UnsupportedOperation: not readable"),
        ("open('f', 'wb').write(b'\\xff')\nx = 1", "Only UTF-8 text can be written: 'f'"),
        ("open('f', 'w').write('x' * 48_001)", "one write can have 48,000"),
        ("open('../outside', 'w')", "Path escapes root"),
        ("open('/etc/hosts')", "FileNotFoundError"),
        ("import os\nos.remove('data.txt')", "created itself, not 'data.txt'; use a file tool"),
        ("import os\nos.remove('none')", "FileNotFoundError"),
        ("from pathlib import Path\nPath('data.txt').rename('x')", "use a file tool for that"),
        ("import os\nos.symlink('data.txt', 'x')", "Code can read and write files, nothing else"),
        ("import os\nos.chmod('data.txt', 0o755)", "Code can read and write files, nothing else"),
        ("import os\nos.chdir('..')", "PermissionError"),
        ("import subprocess\nsubprocess.run(['ls'])", "Operation not permitted"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "Address family"),
        ("import pandas", "ModuleNotFoundError: No module named 'pandas'"),
        ("import os\nos._exit(3)", "ended before the code was done: it exited"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth"),
        ("input('name? ')", "EOFError"),
    ],
)
def test_what_cannot_be_done_is_said(python: Run, code: str, message: str) -> None:
    assert message in python.fail(code).message
    assert [each.path for each in python.filesystem.list()] == ["data.txt"]


def test_nothing_of_a_process_is_left_for_the_next_call(python: Run) -> None:
    python("import builtins, json, os\nbuiltins.x = json.x = os.environ['X'] = '1'\nmath.pi = 3")
    assert python("import json, os\n'x' in dir(json), 'X' in os.environ, math.pi").value_repr == (
        "(False, False, 3.141592653589793)"
    )
    assert "NameError" in python.fail("x").message
    randoms = {python("import random\nrandom.random()").value_repr for _ in range(3)}
    assert len(randoms) == 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from os import nosuch", "cannot import name 'nosuch' from 'os' (os.py)"),
        ("import os\nraise ValueError(f'{os.getcwd()}, {os.getcwd()}/a')", "., a"),
        ("raise ValueError('/etc/x')", "/etc/x"),
    ],
)
def test_the_text_of_an_error_names_no_directory_of_the_machine(
    python_engine: Engine, tmp_path: Path, code: str, message: str
) -> None:
    assert f"Error: {message}\n" in Run(python_engine, HostFilesystem(tmp_path)).fail(code).message


@pytest.mark.parametrize("end", ["", "\n1/0"])
def test_what_a_thread_prints_at_the_end_is_there(python: Run, end: str) -> None:
    code = (
        "import threading\nended = threading.Event()\n"
        "def work():\n    ended.wait()\n    print('done')\n"
        f"threading.Thread(target=work).start()\nended.set(){end}"
    )
    assert "done" in python.result(code).message
