"""The parameters of `evaluate_python`: what is refused before anything runs."""

import pytest

from weakincentives.contrib.evaluation import (
    DEFAULT_EVAL_LIMITS,
    EvalFileRead,
    EvalFileWrite,
    EvalParams,
)
from weakincentives.contrib.evaluation.evaluator import check_params, decode_globals
from weakincentives.errors import ToolValidationError


@pytest.mark.parametrize(
    "params",
    [
        EvalParams(""),
        EvalParams(" \n"),
        EvalParams("1" * 2_001),
        EvalParams("'\ud800'"),
        EvalParams("1\0"),
        EvalParams("1", globals={"not a name": "1"}),
        EvalParams("1", globals={"class": "1"}),
        EvalParams("1", globals={"__builtins__": "{}"}),
        EvalParams("1", globals={"read_text": "1"}),
        EvalParams("1", globals={f"x{number}": "1" for number in range(65)}),
        EvalParams("1", globals={"x": "1"}, reads=(EvalFileRead("a", "x"),)),
        EvalParams("1", reads=(EvalFileRead("a", "x"), EvalFileRead("b", "x"))),
        EvalParams("1", reads=tuple(EvalFileRead(str(number)) for number in range(33))),
        EvalParams("1", writes=(EvalFileWrite("a", ""), EvalFileWrite("a", ""))),
        EvalParams("1", writes=tuple(EvalFileWrite(str(number), "") for number in range(33))),
        EvalParams("1", writes=(EvalFileWrite("a", "\ud800"),)),
        EvalParams("1", writes=(EvalFileWrite("a", "", "truncate"),)),  # type: ignore[arg-type]
    ],
    ids=range(17),
)
def test_invalid_parameters_are_refused(params: EvalParams) -> None:
    with pytest.raises(ToolValidationError):
        check_params(params, DEFAULT_EVAL_LIMITS)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 40_000,
        "[" * 200 + "]" * 200,
        '{"a":' * 100 + "1" + "}" * 100,
        "9" * 5_000,
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "[NaN]",
        '"\\ud800"',
        "",
        "text",
        "{",
        "1 2",
    ],
    ids=range(15),
)
def test_bombs_and_broken_json_in_globals_are_refused(text: str) -> None:
    with pytest.raises(ToolValidationError, match="'x'"):
        decode_globals({"x": text}, DEFAULT_EVAL_LIMITS)


def test_globals_are_bounded_together() -> None:
    many = {f"x{number}": '"' + "a" * 40_000 + '"' for number in range(8)}
    with pytest.raises(ToolValidationError, match="globals has"):
        decode_globals(many, DEFAULT_EVAL_LIMITS)


def test_json_values_arrive() -> None:
    decoded = decode_globals({"a": "[1, 2.5, null]", "b": '"é"', "c": "{}"}, DEFAULT_EVAL_LIMITS)
    assert decoded == {"a": [1, 2.5, None], "b": "é", "c": {}}
