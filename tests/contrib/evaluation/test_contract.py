"""The contract of `evaluate_python`, with every engine that runs in workers."""

import contextlib
import json
import threading

import pytest

from tests.contrib.evaluation.runs import Run
from weakincentives.contrib.evaluation import (
    ENGINES,
    EngineUnavailableError,
    EvalFileRead,
    EvalFileWrite,
    EvalLimits,
    Evaluator,
    choose_engine,
    create_engine,
    find_problem,
    registry,
)
from weakincentives.errors import ToolValidationError


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 2\nx * 3", "6"),
        ("'a'", "'a'"),
        ("x = 1", None),
        ("None", None),
        ("[i * 2 for i in range(3)]", "[0, 2, 4]"),
        ("(1,\n 2)", "(1, 2)"),
        ("x = 1; x + 1", "2"),
        ("'é' * 2", "'éé'"),
        ("if True:\n    x = 5\nx", "5"),
        ("total = 0\nfor i in range(5):\n    if i % 2: continue\n    total += i\ntotal", "6"),
        ("n = 0\nwhile True:\n    n += 1\n    if n > 3: break\nn", "4"),
        ("def f(x, y=2): return x ** y\nf(3)", "9"),
        ("f = lambda x: x + 1\nsorted([3, 1, 2], key=lambda x: -x), f(1)", "([3, 2, 1], 2)"),
        ("name = 'Ada'\nf'{name:>5}|{3.14159:.2f}|{name!r}'", "\"  Ada|3.14|'Ada'\""),
        ("{k: v for k, v in zip('ab', [1, 2])}", "{'a': 1, 'b': 2}"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    x = 'caught'\nx", "'caught'"),
        ("import math\nmath.floor(math.sqrt(17))", "4"),
    ],
)
def test_the_value_of_the_last_expression(run: Run, code: str, value: str | None) -> None:
    assert run(code).value_repr == value


def test_output_is_returned(run: Run) -> None:
    result = run("print('a', 1)\nprint(1, 2, sep='-')")
    assert result.stdout == "a 1\n1-2\n"
    assert result.value_repr is None


def test_globals_go_in_and_come_out(run: Run) -> None:
    result = run("y = [n + 1 for n in x]\nz = {'a': name}", globals={"x": "[1, 2]", "name": '"é"'})
    assert {name: json.loads(text) for name, text in result.globals.items()} == {
        "x": [1, 2],
        "name": "é",
        "y": [2, 3],
        "z": {"a": "é"},
    }


def test_variables_that_json_cannot_represent_are_left_out(run: Run) -> None:
    result = run("def f(): return 1\nimport math\ns = {1, 2}\n_private = 1\nx = 1")
    assert result.globals == {"x": "1"}


def test_nothing_remains_for_the_next_call(run: Run) -> None:
    run("secret = 1\nimport math")
    assert "NameError" in run.fail("secret").message


def test_files_are_read_and_written(run: Run) -> None:
    result = run(
        "lines = sorted(read_text('data.txt').split())\n"
        "write_text('out/sorted.txt', '\\n'.join(lines))\n"
        "write_text('data.txt', '4\\n', 'append')\n"
        "read_text('data.txt')"
    )
    assert result.value_repr == repr("3\n1\n2\n4\n")
    assert [(each.path, each.mode) for each in result.writes] == [
        ("out/sorted.txt", "create"),
        ("data.txt", "append"),
    ]
    assert result.reads == (EvalFileRead("data.txt"),)
    assert run.filesystem.read("out/sorted.txt").content == "1\n2\n3"
    assert run.filesystem.read("data.txt").content == "3\n1\n2\n4\n"


def test_declared_files(run: Run) -> None:
    result = run(
        "numbers = [int(line) for line in text.split()]\ntotal = sum(numbers)",
        reads=(EvalFileRead("data.txt", "text"),),
        writes=(EvalFileWrite("total.txt", "{total} of {numbers}"),),
    )
    assert result.reads == (EvalFileRead("data.txt", "text"),)
    assert result.writes == (EvalFileWrite("total.txt", "6 of [3, 1, 2]"),)
    assert run.filesystem.read("total.txt").content == "6 of [3, 1, 2]"


def test_a_file_can_be_read_and_replaced(run: Run) -> None:
    run(
        "text = text.upper() + 'x'",
        reads=(EvalFileRead("data.txt", "text"),),
        writes=(EvalFileWrite("data.txt", "{text}", "overwrite"),),
    )
    assert run.filesystem.read("data.txt").content == "3\n1\n2\nx"


@pytest.mark.parametrize(
    ("code", "writes"),
    [
        ("write_text('new.txt', 'x')\n1 / 0", ()),
        ("write_text('new.txt', 'x')", (EvalFileWrite("b.txt", "{unknown}"),)),
        ("write_text('new.txt', 'x')", (EvalFileWrite("data.txt", "exists"),)),
        ("write_text('new.txt', 'x')", (EvalFileWrite("../b.txt", "x"),)),
        ("write_text('new.txt', 'x')", (EvalFileWrite("new.txt", "x", "overwrite"),)),
        ("write_text('new.txt', 'x')\nwrite_text('data.txt/below', 'x')", ()),
        ("write_text('new.txt', 'x')\nwrite_text('large.txt', 'x' * 48_001)", ()),
        ("write_text('new.txt', 'x')\nwrite_text('data.txt', 'x', 'create')", ()),
        ("write_text('new.txt', 'x')\nwrite_text('../out.txt', 'x')", ()),
        ("write_text('new.txt', 1)", ()),
    ],
)
def test_all_files_are_written_or_none(
    run: Run, code: str, writes: tuple[EvalFileWrite, ...]
) -> None:
    result = run.fail(code, writes=writes)
    assert "Nothing was written" in result.message
    assert result.value is not None
    assert result.value.writes == ()
    assert [each.path for each in run.filesystem.list()] == ["data.txt"]
    assert run.filesystem.read("data.txt").content == "3\n1\n2\n"


def test_a_file_error_can_be_caught(run: Run) -> None:
    code = "try:\n    read_text('missing')\nexcept FileNotFoundError:\n    x = 1\nx"
    assert run(code).value_repr == "1"


def test_a_failure_names_the_line_and_shows_what_was_printed(run: Run) -> None:
    result = run.fail("print('before')\nx = 0\ny = 1 / x\n")
    assert result.value is not None
    error = result.value.error
    assert error is not None
    assert (error.type, error.line, error.source) == ("ZeroDivisionError", 3, "y = 1 / x")
    assert "at line 3: ZeroDivisionError: division by zero" in result.message
    assert "before" in result.message


def test_a_failure_in_a_function_names_its_line(run: Run) -> None:
    error = run.fail("def f(x):\n    return x['a']\n\nf({})").value
    assert error is not None
    assert error.error is not None
    assert (error.error.type, error.error.line) == ("KeyError", 2)


@pytest.mark.parametrize("code", ["x = (", "def f(:\n  pass", "\n\n  x = 1"])
def test_syntax_errors_name_the_line(run: Run, code: str) -> None:
    error = run.fail(code).value
    assert error is not None
    assert error.error is not None
    assert error.error.type in {"SyntaxError", "IndentationError"}
    assert error.error.line is not None


def test_a_missing_module_is_answered_with_those_that_exist(run: Run) -> None:
    message = run.fail("import requests").message
    assert "These modules can be imported" in message


def test_output_and_values_are_bounded(run: Run) -> None:
    result = run("print('x' * 10_000)\nprint('y' * 10_000)\n'z' * 10_000")
    assert len(result.stdout) == 4_096
    assert "20002 characters in total" in result.stdout
    assert result.value_repr is not None
    assert len(result.value_repr) == 4_096
    assert "10002 characters in total" in result.value_repr


def test_returned_variables_are_bounded(run: Run) -> None:
    code = "\n".join([*(f"x{number} = {number}" for number in range(100)), "big = 'x' * 50_000"])
    assert len(run(code).globals) == 64
    assert "big" not in run("big = 'x' * 50_000\nsmall = 1").globals
    large = "\n".join(f"x{number} = 'x' * 40_000" for number in range(10))
    assert sum(map(len, run(large).globals.values())) <= 256_000


def test_a_lone_surrogate_does_no_harm(run: Run) -> None:
    result = run.result("print('a' + chr(0xD800))\nx = chr(0xD800)\nx")
    assert "a" in result.message


def test_a_lone_surrogate_in_a_file_call_is_an_error_of_the_code(run: Run) -> None:
    for code in ("write_text('f', chr(0xD800))", "read_text(chr(0xD800))"):
        result = run.fail(code)
        assert "memory" not in result.message
    assert not run.filesystem.exists("f")


def test_code_that_takes_too_long_is_stopped(run: Run) -> None:
    run.evaluator = Evaluator(run.evaluator.engine, limits=EvalLimits(max_seconds=2.0))
    result = run.fail("print('started')\nwhile True:\n    pass")
    assert result.value is not None
    assert result.value.timed_out
    assert result.value.stdout == "started\n"
    assert "2 seconds" in result.message
    assert run("1 + 1").value_repr == "2"


def test_time_runs_out_in_a_bare_except_too(run: Run) -> None:
    run.evaluator = Evaluator(run.evaluator.engine, limits=EvalLimits(max_seconds=0.3))
    code = "while True:\n    try:\n        while True: pass\n    except:\n        pass"
    result = run.fail(code)
    assert result.value is not None
    assert result.value.timed_out


@pytest.mark.parametrize(
    "code",
    [
        "x = [0] * 10 ** 10",
        "s = 'ab'\nwhile True: s = s + s",
        "x = []\nwhile True: x.append([0] * 10**5)",
    ],
)
def test_memory_is_limited(run: Run, code: str) -> None:
    limits = EvalLimits(max_memory_bytes=64 * 1024 * 1024)
    run.evaluator = Evaluator(run.evaluator.engine, limits=limits)
    run.fail(code)
    assert run("1 + 1").value_repr == "2"


def test_a_lack_of_memory_is_explained(run: Run) -> None:
    assert "Use less memory" in run.fail("x = [0] * 10 ** 10").message


def test_deep_recursion_is_an_error(run: Run) -> None:
    run.fail("def f(n): return f(n + 1)\nf(0)")
    assert run("1 + 1").value_repr == "2"


def test_too_many_file_calls_are_an_error(run: Run) -> None:
    run.evaluator = Evaluator(run.evaluator.engine, limits=EvalLimits(max_file_calls=5))
    assert "file calls" in run.fail("for i in range(10): read_text('data.txt')").message


def test_calls_from_several_threads_do_not_mix(run: Run) -> None:
    values: dict[int, str | None] = {}

    def evaluate(number: int) -> None:
        for _ in range(5):
            values[number] = run("x * 2", globals={"x": str(number)}).value_repr

    threads = [threading.Thread(target=evaluate, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert values == {number: str(number * 2) for number in range(4)}


def test_a_missing_declared_file_is_an_error_before_anything_runs(run: Run) -> None:
    with pytest.raises(FileNotFoundError):
        run("write_text('x', '')", reads=(EvalFileRead("missing"),))
    with pytest.raises(ToolValidationError):
        run("x" * 2_001)


def test_unknown_engines_are_explained() -> None:
    with pytest.raises(EngineUnavailableError, match="monty"):
        create_engine("pypy")
    assert find_problem("monty") is None


def test_the_default_engine_is_the_one_that_computes_what_python_computes() -> None:
    with contextlib.closing(choose_engine()) as engine:
        assert engine.name == "python"


def test_a_machine_without_confinement_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "is_supported", lambda: False)
    for name in ENGINES:
        with pytest.raises(EngineUnavailableError, match=r"cannot confine one: .* install podman"):
            create_engine(name)
    with pytest.raises(EngineUnavailableError, match="install podman"):
        choose_engine()
