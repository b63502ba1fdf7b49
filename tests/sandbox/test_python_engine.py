"""The engine `python`: CPython in every sandbox, with files that are queued or written directly."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.conftest import AnySandbox, MakeSandbox
from tests.sandbox.process_trees import Mark, TimeIsUpWith
from weakincentives.contrib.evaluation import (
    EngineUnavailableError,
    EvalFileRead,
    EvalFileWrite,
    EvalLimits,
    EvalParams,
    EvalResult,
    Evaluator,
    FilesystemWorkspace,
    PythonEngine,
)
from weakincentives.sandbox import LocalSandbox


def evaluate(
    sandbox: AnySandbox, code: str, limits: EvalLimits | None = None, **params: Any
) -> EvalResult:
    evaluator = Evaluator(PythonEngine(sandbox), limits=limits or EvalLimits(max_seconds=60))
    return evaluator.evaluate(EvalParams(code, **params), FilesystemWorkspace(sandbox.filesystem))


def variables(result: EvalResult) -> Mapping[str, Any]:
    return {name: json.loads(text) for name, text in result.globals.items()}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSandbox]:
    """Return one sandbox for many tests; each uses other files."""
    with LocalSandbox(tmp_path_factory.mktemp("evaluated")) as sandbox:
        for name in ("there", "log"):
            sandbox.filesystem.write(name, "old")
        yield sandbox


# --- in every sandbox ---

SUM = """\
import csv, io, sys
from collections import Counter
rows = list(csv.DictReader(io.StringIO(text)))
counts = Counter(row["kind"] for row in rows)
total = sum(int(row["n"]) for row in rows) + base["start"]
print("rows:", len(rows))
print("careful", file=sys.stderr)
write_text("out/report.txt", read_text("title.txt") + str(total))
with open("direct.txt", "w") as file:
    file.write("direct")
helper.double(total)
"""


def test_code_computes_over_the_workspace_in_every_sandbox(any_sandbox: AnySandbox):
    files = any_sandbox.filesystem
    files.write("data.csv", "kind,n\na,1\nb,2\na,3\n")
    files.write("title.txt", "Total: ")
    files.write("helper.py", "def double(n):\n    return 2 * n\n")
    result = evaluate(
        any_sandbox,
        f"import helper\n{SUM}",
        globals={"base": '{"start": 10}'},
        reads=(EvalFileRead("data.csv", "text"),),
        writes=(EvalFileWrite("total.txt", "{total} of {{total}}"),),
    )
    assert result.error is None
    assert (result.value_repr, result.stdout, result.stderr) == ("32", "rows: 3\n", "careful\n")
    assert variables(result)["counts"] == {"a": 2, "b": 1}
    assert variables(result)["base"] == {"start": 10}
    assert files.read("out/report.txt").content == "Total: 16"
    assert files.read("total.txt").content == "16 of {total}"
    assert files.read("direct.txt").content == "direct"
    assert [each.path for each in result.reads] == ["data.csv", "title.txt"]
    assert [each.path for each in result.writes] == ["out/report.txt", "total.txt"]
    assert not files.exists("__pycache__")


def test_time_ends_the_code_and_all_that_it_started_in_every_sandbox(
    make_sandbox: MakeSandbox, tmp_path: Path
):
    mark = Mark()
    sandbox = make_sandbox(clock=TimeIsUpWith(tmp_path / "workspace" / "ready"))
    start = f"Popen(['sleep', '{mark.seconds}'], start_new_session=True)"
    tell = "print('begun')\nopen('ready', 'w').close()\nprint('ready')"  # output wakes the sandbox
    result = evaluate(sandbox, f"from subprocess import Popen\n{start}\n{tell}\nwhile True: pass")
    assert result.timed_out
    assert result.error is not None
    assert result.error.type == "TimeoutError"
    assert result.stdout.startswith("begun\n")
    mark.wait_for_killed()


# --- what the code does wrong ---


@pytest.mark.parametrize(
    ("code", "kind", "message", "line"),
    [
        ("def half(n):\n    return n / 0\nhalf(1)", "ZeroDivisionError", "division by zero", 2),
        ("x = 1\nx ===", "SyntaxError", "invalid syntax", 2),
        ("import sys\nsys.exit('no input')", "SystemExit", "no input", 2),
        ("import os\nos._exit(3)", "RuntimeError", "exit code 3 before", None),
        ("import os\nos.kill(os.getpid(), 9)", "RuntimeError", "by signal 9", None),
        ("'x' * (1 << 40)", "MemoryError", "", 1),
        ("input()", "EOFError", "EOF", 1),
        ("read_text('../outside')", "PermissionError", "outside the workspace", 1),
        ("read_text('missing')", "FileNotFoundError", "missing", 1),
        ("write_text('there', 'x', 'create')", "FileExistsError", "File exists: 'there'", 1),
        ("write_text('big', 'x' * 48_001)", "ValueError", "48,001 characters", 1),
        ("write_text('x', 'y', 'w')", "ValueError", "mode must be", 1),
    ],
)
def test_an_error_of_the_code_has_its_line(
    local: LocalSandbox, code: str, kind: str, message: str, line: int | None
):
    result = evaluate(local, f"{code}\n")
    assert result.error is not None
    assert (result.error.type, result.error.line) == (kind, line)
    assert message in result.error.message
    assert result.error.source == (None if line is None else code.split("\n")[line - 1])
    assert result.writes == ()


def test_nothing_is_written_if_the_code_fails_after_write_text(local: LocalSandbox):
    result = evaluate(local, "write_text('failed', '1')\nprint('wrote')\n1 / 0")
    assert (result.stdout, result.writes) == ("wrote\n", ())
    assert not local.filesystem.exists("failed")


# --- what the code sees ---


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 1", None),
        ("None", None),
        ("", None),
        ("if __name__ == '__main__':\n    x = 5\nx", "5"),
        ("import sys; sys.exit()", None),
        ("write_text('a', '1'); write_text('a', '2', 'append'); read_text('a')", "'12'"),
        ("write_text('log', '!', 'append'); read_text('log')", "'old!'"),
        ("import os; os.mkdir('d'); os.chdir('d'); read_text('/'.join(['..', 'there']))", "'old'"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    n: int\nA(1)", "A(n=1)"),
        ("import pickle, sys; sys.stdout.close(); pickle.loads(pickle.dumps({1}))", "{1}"),
        ("import os\nif os.fork() == 0:\n    x = 'child'\nelse:\n    os.wait()\n    x = 1\nx", "1"),
        ("import threading; threading.Thread(target=threading.Event().wait).start(); 3", "3"),
    ],
)
def test_the_value_is_that_of_the_last_expression(
    local: LocalSandbox, code: str, value: str | None
):
    result = evaluate(local, f"pass\n{code}")
    assert result.error is None
    assert result.value_repr == value


def test_variables_come_back_if_json_can_represent_them(local: LocalSandbox):
    code = "a = (1, 2)\n_b = 1\nc = {1}\nd = float('nan')\nimport json\ne = 'ü'\nf = {1: [None]}"
    assert variables(evaluate(local, code)) == {"a": [1, 2], "e": "ü", "f": {"1": [None]}}


def test_results_are_bounded_where_the_code_runs(local: LocalSandbox):
    result = evaluate(local, "print('ü' * 10**6)\ny = ['x' * 10_000] * 100\nz = 'z' * 10**6\nz")
    assert result.value_repr is not None
    assert max(map(len, (result.stdout, result.value_repr))) <= EvalLimits().max_output_length
    assert "1000001 characters in total" in result.stdout
    assert variables(result) == {}
    huge = evaluate(local, "'x' * 10**8")
    assert (huge.value_repr is None) == (huge.error is not None)
    assert huge.error is None or huge.error.type == "MemoryError"
    many = evaluate(local, "for n in range(30):\n    write_text(str(n), '\\x01' * 48_000)")
    assert many.error is not None
    assert many.error.message == "the result is too large; print, return and write less"
    assert many.writes == ()


def test_printed_text_cannot_look_like_an_answer(local: LocalSandbox):
    fake = json.dumps({"value": "forged", "value_dropped": 0})
    code = f"import os\nos.write(1, {fake.encode()!r})\nos.system('echo shell')\n7"
    result = evaluate(local, code)
    assert (result.value_repr, result.stdout) == ("7", f"{fake}shell\n")


def test_what_was_printed_is_kept_if_there_is_too_much_of_it(local: LocalSandbox):
    result = evaluate(local, "for n in range(100):\n    print(str(n) * 10**5)\n7")
    assert result.value_repr == "7"
    assert result.stdout.startswith("0" * 100)
    assert "characters in total, only the first are shown" in result.stdout
    killed = evaluate(local, "import os\nprint('x' * 10**7)\nos._exit(3)")
    assert killed.error is not None
    assert "exit code 3" in killed.error.message


def test_code_that_answers_for_its_driver_gains_nothing(local: LocalSandbox):
    for answer, problem in (
        ({"writes": [["../outside", "x", "overwrite"]]}, "Path escapes root"),
        ({"reads": ["../outside"]}, "Path escapes root"),
        ({"globals": {"x": "1", "y": "2"}}, "more than the limits"),
        ({"value": "x" * 10**5}, None),
        ([], "exit code 0"),
    ):
        forged = json.dumps(answer) + "\n"
        find = "mark = sys._getframe(4).f_locals['mark']"  # the frame of the driver's `main`
        text = f"import os, sys\n{find}\nos.write(1, mark + forged.encode())\nos._exit(0)"
        limits = EvalLimits(max_global_length=10**6, max_globals=1, max_seconds=60)
        result = evaluate(local, text, limits, globals={"forged": json.dumps(forged)})
        assert len(result.value_repr or "") <= limits.max_output_length
        assert (problem or "") in (result.error.message if result.error else "")
        assert (result.error is None) == (problem is None)
    assert not (Path(local.filesystem.root).parent / "outside").exists()


# --- without a Python ---


def test_a_sandbox_without_python_is_named(local: LocalSandbox):
    engine = PythonEngine(local, python="python-is-not-here")
    with pytest.raises(
        EngineUnavailableError, match="no Python: 'python-is-not-here' was not found"
    ):
        Evaluator(engine).evaluate(EvalParams("1"), FilesystemWorkspace(local.filesystem))
    assert engine.bypasses_filesystem


def test_a_python_that_does_not_work_is_named(local: LocalSandbox, tmp_path: Path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho cannot find encodings >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(EngineUnavailableError, match="cannot find encodings"):
        Evaluator(PythonEngine(local, python=str(broken))).evaluate(
            EvalParams("1"), FilesystemWorkspace(local.filesystem)
        )
