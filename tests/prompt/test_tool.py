"""Tools: names, parameters, schemas, results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.errors import ToolValidationError
from weakincentives.prompt import PromptError, Tool, ToolContext, ToolExample, ToolResult


@dataclass(frozen=True)
class Search:
    """Look for text.

    Args:
        pattern: What to look for.
        limit: How many matches to return.
    """

    pattern: str
    limit: int = 10


@dataclass(frozen=True)
class Found:
    lines: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(self.lines)


def search(params: Search, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult("found", Found((params.pattern,)))


def nothing(params: None, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("done", "nothing")


def make(**changes: Any) -> Tool[Search, Found]:
    given: dict[str, Any] = {"name": "search", "description": "Look for text.", "handler": search}
    return Tool(**(given | changes))


def test_the_schema_comes_from_the_dataclass_and_its_docstring():
    schema = make().schema
    properties = schema["properties"]
    assert isinstance(properties, Mapping)
    assert properties["pattern"] == {"type": "string", "description": "What to look for."}
    assert properties["limit"]["default"] == 10
    assert schema["required"] == ["pattern"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("arguments", ['{"pattern": "x"}', {"pattern": "x"}, b'{"pattern":"x"}'])
def test_arguments_become_parameters(arguments: Any):
    assert make().parse(arguments) == Search("x")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("{}", "pattern"),
        ('{"pattern": 1}', "pattern"),
        ('{"pattern": "x", "colour": "red"}', "colour"),
        ('{"pattern": ', "search"),
        ("[1]", "search"),
        ("[" * 100_000, "search"),
        ({"pattern": "x", "limit": "many"}, "limit"),
    ],
)
def test_wrong_arguments_are_refused_with_the_field_named(arguments: Any, named: str):
    with pytest.raises(ToolValidationError, match=named):
        make().parse(arguments)


def test_a_tool_without_parameters_takes_none():
    tool = Tool("nothing", "Does nothing.", nothing)
    assert tool.schema["properties"] == {}
    assert tool.parse("") is None
    assert tool.parse("{}") is None
    with pytest.raises(ToolValidationError, match="takes none"):
        tool.parse('{"x": 1}')


def test_a_callable_object_can_be_a_handler():
    class Handler:
        def __call__(self, params: Search, *, context: ToolContext) -> ToolResult[Found]:
            return search(params, context=context)

    assert make(handler=Handler()).parse('{"pattern": "x"}') == Search("x")


def test_a_bound_method_can_be_a_handler():
    class Holder:
        def handle(self, params: Search, *, context: ToolContext) -> ToolResult[Found]:
            return search(params, context=context)

    assert make(handler=Holder().handle).parse('{"pattern": "x"}') == Search("x")


def test_a_tool_that_runs_elsewhere_has_its_parameters_named():
    tool = Tool("search", "Runs at the provider.", None, params_type=Search)
    assert tool.parse('{"pattern": "x"}') == Search("x")


def untyped(params, *, context):  # type: ignore[no-untyped-def]
    return ToolResult("", None)


def plain(params: str, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("", params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "no blanks"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"description": "  "}, "description"),
        ({"handler": untyped}, "annotated"),
        ({"handler": plain}, "dataclass"),
        ({"examples": [ToolExample("wrong", "text", "x")]}, "Example"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_made(changes: Any, message: str):
    with pytest.raises(PromptError, match=message):
        make(**changes)


def test_another_description_changes_nothing_else():
    tool = make(read_only=True, examples=[ToolExample("one", Search("x"), Found(("x",)))])
    other = tool.with_description("Search, in other words.")
    assert other.description == "Search, in other words."
    assert (other.name, other.handler, other.examples, other.read_only) == (
        tool.name,
        tool.handler,
        tool.examples,
        True,
    )


# --- results ---


@dataclass(frozen=True)
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ToolResult("done"), "done"),
        (ToolResult("two lines", Found(("a", "b"))), "two lines\n\na\nb"),
        (ToolResult("", Found(("a",))), "a"),
        (ToolResult("here", Point(1, 2)), 'here\n\n{"x":1,"y":2}'),
        (ToolResult("hidden", Point(1, 2), exclude_value_from_context=True), "hidden"),
        (ToolResult("text", "value"), "text\n\nvalue"),
        (ToolResult("odd", object), "odd\n\n<class 'object'>"),
        (ToolResult.error("no such file"), "no such file"),
    ],
)
def test_a_result_is_shown_as_message_and_value(result: ToolResult[Any], text: str):
    assert result.render() == text


def test_success_and_failure_have_short_forms():
    assert ToolResult.ok(Point(1, 2), "there") == ToolResult("there", Point(1, 2))
    assert not ToolResult.error("no").success
