"""Templates of declared writes."""

import pytest

from weakincentives.contrib.evaluation.evaluator import expand_template
from weakincentives.errors import ToolValidationError

VARIABLES = {"name": '"Ada"', "count": "3", "flag": "true", "none": "null", "rows": "[1, 2]"}
LIMIT = 100


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Hello {name}!", "Hello Ada!"),
        ("{count} {flag} {none}", "3 True None"),
        ("{rows}", "[1, 2]"),
        ("{{name}}", "{name}"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("a { color: red }", "a { color: red }"),
        ("{}", "{}"),
        ("{{a: 1}}", "{a: 1}"),
    ],
)
def test_only_names_are_replaced(template: str, text: str) -> None:
    assert expand_template(template, VARIABLES, LIMIT) == text


@pytest.mark.parametrize(
    "template",
    ["{name.__class__}", "{name[0]}", "{name!r}", "{name:>10}", "{unknown}", "{name .x}"],
)
def test_anything_else_in_braces_is_an_error(template: str) -> None:
    with pytest.raises(ToolValidationError, match="template"):
        expand_template(template, VARIABLES, LIMIT)


def test_the_text_of_a_variable_is_not_expanded_again() -> None:
    assert expand_template("{name}", {"name": '"{count}"', "count": "3"}, LIMIT) == "{count}"


def test_values_that_are_too_long_together_are_an_error() -> None:
    variables = {"half": f'"{"x" * (LIMIT // 2)}"'}
    assert len(expand_template("{half}{half}", variables, LIMIT)) == LIMIT
    with pytest.raises(ToolValidationError, match="more than 100 characters"):
        expand_template("{half}{half}{half}", variables, LIMIT)


def test_a_list_can_be_nested_more_deeply_than_json_can_be_decoded() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    assert expand_template("{deep}", {"deep": deep}, len(deep)) == deep
