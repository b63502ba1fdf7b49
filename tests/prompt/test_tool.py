"""Tools: names, parameters, schemas, results."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from weakincentives.errors import ToolValidationError
from weakincentives.prompt import PromptError, Tool, ToolContext, ToolExample, ToolResult
from weakincentives.serde import encode


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
    tool = make(
        read_only=True,
        bypasses_filesystem=True,
        accepts_overrides=False,
        params_type=Search,
        aliases={"query": "pattern"},
        examples=[ToolExample("one", Search("x"), Found(("x",)))],
    )
    other = tool.with_description("Search, in other words.")
    assert other.description == "Search, in other words."
    assert other.with_description(tool.description) == tool


# --- other names of fields ---


@dataclass(frozen=True)
class Edit:
    old_string: str
    new_string: str


@dataclass(frozen=True)
class EditFile:
    file_path: str
    edits: tuple[Edit, ...] | None = None
    undo: list["EditFile"] | None = None


def edit(params: EditFile, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("", params.file_path)


def edit_tool(**aliases: str) -> Tool[EditFile, str]:
    return Tool("edit", "Edit a file.", edit, aliases=aliases)


ALIASES = {"path": "file_path", "oldText": "old_string", "old_str": "old_string"}


@pytest.mark.parametrize(
    ("arguments", "params"),
    [
        ({"path": "a"}, EditFile("a")),
        ({"file_path": "a"}, EditFile("a")),
        ({"path": "a", "file_path": "a"}, EditFile("a")),
        (
            {"path": "a", "edits": [{"oldText": "x", "new_string": "y"}]},
            EditFile("a", (Edit("x", "y"),)),
        ),
        (
            {"path": "a", "undo": [{"path": "b", "edits": [{"old_str": "", "new_string": ""}]}]},
            EditFile("a", undo=[EditFile("b", (Edit("", ""),))]),
        ),
    ],
)
def test_a_field_may_be_sent_under_another_name(arguments: Any, params: EditFile):
    tool = edit_tool(**ALIASES)
    assert tool.parse(arguments) == params
    assert tool.parse(encode(arguments)) == params


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"path": "a", "file_path": "b"},
            "'path' and 'file_path' are aliases with different values; send only 'file_path'",
        ),
        (
            {"path": "a", "edits": [{"oldText": "x", "old_str": "y", "new_string": "z"}]},
            "'oldText' and 'old_str' are aliases with different values; send only 'old_string'",
        ),
        # a name is another one only where the field is
        ({"path": "a", "oldText": "x"}, "Unknown field 'oldText'"),
        ({"path": "a", "edits": [{"path": "b"}]}, "edits"),
        ({"path": "a", "edits": {"oldText": "x"}}, "edits"),
        ({"path": 1}, "file_path"),
        ([{"path": "a"}], "object"),
        (
            '{"path": "a", ' + '"undo": [{"path": "a", ' * 400 + '"edits": []' + "}]" * 400 + "}",
            "deep",
        ),
    ],
)
def test_what_aliases_do_not_fix_is_refused_all_the_same(arguments: Any, message: str):
    with pytest.raises(ToolValidationError, match=message):
        edit_tool(**ALIASES).parse(arguments)


@dataclass(frozen=True)
class Page:
    path: str
    offset: int = 0
    limit: int | None = None
    whole: bool = False
    exclude: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()


def turn(params: Page, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("", params.path)


@pytest.mark.parametrize(
    ("arguments", "params"),
    [
        ({"path": "a", "offset": "7", "limit": "3"}, Page("a", 7, 3)),
        ({"path": "a", "whole": "True"}, Page("a", whole=True)),
        ({"path": "null", "whole": "false"}, Page("null")),
        (
            {"path": "a", "offset": None, "limit": None, "exclude": None, "edits": None},
            Page("a"),
        ),
        ({"path": "a", "exclude": "*.pyc"}, Page("a", exclude=("*.pyc",))),
        ({"path": "a", "exclude": '["b", "c"]'}, Page("a", exclude=("b", "c"))),
        (
            {"path": "a", "edits": '[{"oldText": "x", "new_string": "1"}]'},
            Page("a", edits=(Edit("x", "1"),)),
        ),
        (
            {"path": "a", "edits": {"oldText": "x", "new_string": ""}},
            Page("a", edits=(Edit("x", ""),)),
        ),
    ],
)
def test_slips_whose_meaning_is_clear_are_understood(arguments: Any, params: Page):
    tool = Tool("turn", "Turn a page.", turn, aliases={"oldText": "old_string"})
    assert tool.parse(arguments) == params
    assert tool.parse(encode(arguments)) == params


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": None}, "'path': expected str, got null"),
        ({"path": 5}, "'path': expected str, got int"),
        ({"path": "a", "limit": "all"}, "'limit': expected int | null, got str: 'all'"),
        ({"path": "a", "offset": "7", "ofset": 1}, "Unknown field 'ofset'"),
        ({"path": "a", "edits": "[{"}, "'edits': expected array, got str"),
        ({"path": "a", "edits": [{"old_string": None, "new_string": "b"}]}, "expected str"),
    ],
)
def test_slips_whose_meaning_is_not_clear_are_told(arguments: Any, message: str):
    with pytest.raises(ToolValidationError, match=re.escape(message)):
        Tool("turn", "Turn a page.", turn).parse(arguments)


def test_the_schema_shows_the_real_names_only():
    assert edit_tool(**ALIASES).schema == edit_tool().schema


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"edits": "file_path"}, "also a field name: 'edits'"),
        ({"new_string": "file_path"}, "also a field name: 'new_string'"),
        ({"path": "filepath"}, "'path'.* unknown field: 'filepath'"),
    ],
)
def test_an_alias_that_cannot_be_one_is_refused_when_the_tool_is_made(
    aliases: dict[str, str], message: str
):
    with pytest.raises(PromptError, match=message):
        edit_tool(**aliases)


def test_a_tool_without_parameters_has_no_aliases():
    with pytest.raises(PromptError, match="unknown field"):
        Tool("nothing", "Does nothing.", nothing, aliases={"a": "b"})


def test_aliases_are_kept_with_another_description_and_cannot_be_changed():
    given = dict(ALIASES)
    tool = Tool("edit", "Edit a file.", edit, aliases=given).with_description("Change a file.")
    given.clear()
    assert tool.aliases == ALIASES
    assert tool.parse({"path": "a"}) == EditFile("a")
    assert len({tool, tool.with_description("Change a file.")}) == 1


# --- fields that are shown by another name ---


@dataclass(frozen=True)
class Change:
    old: str = field(metadata={"name": "oldText"})


@dataclass(frozen=True)
class Grep:
    """Search.

    Args:
        case: Take upper and lower case for the same.
    """

    pattern: str
    before: int = field(metadata={"name": "-B"})
    case: bool = field(default=False, metadata={"name": "-i"})
    changes: tuple[Change, ...] | None = None


def grep(params: Grep, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("", params.pattern)


def test_the_schema_shows_a_field_by_the_name_in_its_metadata():
    schema: Any = Tool("grep", "Search.", grep).schema
    assert sorted(schema["properties"]) == ["-B", "-i", "changes", "pattern"]
    assert schema["properties"]["-i"]["description"].startswith("Take upper")
    assert schema["required"] == ["pattern", "-B"]
    inner = schema["properties"]["changes"]
    assert list(inner["items"]["properties"]) == inner["items"]["required"] == ["oldText"]


def test_a_field_takes_the_name_that_it_is_shown_by():
    arguments = {"pattern": "x", "-B": 2, "-i": True, "changes": [{"oldText": "y"}]}
    parsed = Tool("grep", "Search.", grep).parse(arguments)
    assert parsed == Grep("x", 2, True, (Change("y"),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pattern": "x"}, "Missing field '-B'"),
        ({"pattern": "x", "-B": 1, "-i": 3}, "Field '-i': expected bool"),
        ({"pattern": "x", "-B": 1, "changes": [{"oldText": 1}]}, "'changes[0].oldText'"),
        ({"pattern": "x", "-B": 1, "changes": [{}]}, "required field oldText"),
    ],
)
def test_problems_are_told_with_the_names_that_are_shown(arguments: Any, message: str):
    with pytest.raises(ToolValidationError) as caught:
        Tool("grep", "Search.", grep).parse(arguments)
    assert message in str(caught.value)


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


@dataclass(frozen=True)
class SearchMany:
    """Look for several texts.

    Args:
        patterns: What to look for.
        limit: How many matches to return.
    """

    patterns: tuple[str, ...]
    limit: int = 10


def test_parameters_may_have_another_shape_that_is_not_shown():
    tool = make(other_params=SearchMany)
    assert tool.schema == make().schema
    assert tool.parse({"pattern": "x", "limit": 3}) == Search("x", 3)
    assert tool.parse('{"patterns": ["x", "y"]}') == SearchMany(("x", "y"))
    assert tool.parse({"patterns": "x", "limit": "3"}) == SearchMany(("x",), 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"patterns": 5}, "patterns"),
        ({"pattern": 5}, "pattern'"),
        ({"limit": 3}, "Missing field 'pattern'"),
        ("[]", "object"),
        ("{", ""),
    ],
)
def test_an_error_is_about_the_shape_that_was_meant(arguments: Any, message: str):
    with pytest.raises(ToolValidationError, match="Invalid arguments for search") as caught:
        make(other_params=SearchMany).parse(arguments)
    assert message in str(caught.value)


def test_names_that_are_not_offered_are_checked():
    assert make(other_names=["find", "seek"]).other_names == ("find", "seek")
    with pytest.raises(PromptError, match="Tool name must be"):
        make(other_names=["not a name"])
    with pytest.raises(PromptError, match="names an unknown field"):
        make(aliases={"query": "pattern"}, other_params=Found)


# --- what a model need not read ---


@dataclass(frozen=True)
class Spot:
    """One place.

    Args:
        line: The line.
        note: A remark.
    """

    line: int
    note: str | None = None


@dataclass(frozen=True)
class Visit:
    """Go somewhere.

    Args:
        spots: The places.
        depth: How deep.
        either: A number or a name.
        nothing: May be null, which means something.
        legacy: What earlier versions called depth.
    """

    spots: tuple[Spot, ...] = ()
    others: tuple[Spot, ...] = ()
    depth: int | None = None
    either: int | str | None = None
    nothing: int | None = 3
    mode: Literal["fast", "slow"] | None = None
    legacy: int | None = field(default=None, metadata={"hidden": True})


def visit(params: Visit, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("", str(params))


def test_a_schema_says_each_thing_once_and_has_no_null_for_what_may_be_omitted():
    schema: Any = Tool("visit", "Go.", visit).schema
    place = {
        "type": "object",
        "properties": {
            "line": {"type": "integer", "description": "The line."},
            "note": {"type": "string", "description": "A remark."},
        },
        "required": ["line"],
        "additionalProperties": False,
    }
    assert schema == {
        "type": "object",
        "properties": {
            "spots": {"type": "array", "items": place, "description": "The places."},
            "others": {"type": "array", "items": {**place, "description": "One place."}},
            "depth": {"type": "integer", "description": "How deep."},
            "either": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "description": "A number or a name.",
            },
            "nothing": {
                "anyOf": [{"type": "integer"}, {"type": "null"}],
                "default": 3,
                "description": "May be null, which means something.",
            },
            "mode": {"type": "string", "enum": ["fast", "slow"]},
        },
        "required": [],
        "additionalProperties": False,
    }


def test_null_and_a_hidden_field_are_accepted():
    tool = Tool("visit", "Go.", visit)
    assert tool.parse({"depth": None, "spots": None, "legacy": 4}) == Visit(legacy=4)
    assert tool.parse('{"either": null, "nothing": null}') == Visit(nothing=None)


@dataclass(frozen=True)
class Hides:
    needed: int = field(metadata={"hidden": True})


def test_a_hidden_field_needs_a_default():
    def handler(params: Hides, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("")

    with pytest.raises(PromptError, match="Hidden field needs a default: 'needed' of Hides"):
        Tool("hides", "Hide.", handler)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("depths", "Unknown field 'depths', did you mean 'depth'?"),
        (
            "depict",  # as near as "path" is to "pattern": a hint would mislead
            "Unknown field 'depict'; visit takes spots, others, depth, either, nothing, mode",
        ),
    ],
)
def test_a_name_is_suggested_only_if_it_is_near(name: str, said: str):
    with pytest.raises(ToolValidationError) as caught:
        Tool("visit", "Go.", visit).parse({name: 1})
    assert str(caught.value) == f"Invalid arguments for visit: {said}"


FOREIGN = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def find(params: Mapping[str, object], *, context: ToolContext) -> ToolResult[object]:
    return ToolResult.ok(params["q"])


def test_a_tool_with_a_schema_of_its_own_gets_its_arguments_as_a_mapping():
    tool = Tool("find", "Find.", find, input_schema=FOREIGN)
    assert tool.schema == FOREIGN
    assert tool.parse({"q": "a"}) == tool.parse('{"q": "a"}') == {"q": "a"}
    assert tool.parse("") == {}
    assert tool.with_description("Other.").schema == FOREIGN
    assert hash(tool) == hash(Tool("find", "Find.", find, input_schema=FOREIGN))


@pytest.mark.parametrize("arguments", ["[1]", "{", '"q"'])
def test_arguments_of_a_tool_with_a_schema_of_its_own_are_an_object(arguments: str):
    with pytest.raises(ToolValidationError, match="Invalid arguments for find: "):
        Tool("find", "Find.", find, input_schema=FOREIGN).parse(arguments)


def test_a_schema_of_its_own_excludes_a_dataclass():
    with pytest.raises(PromptError, match="input_schema excludes params_type, other_params and"):
        Tool("find", "Find.", find, input_schema=FOREIGN, params_type=Search)  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="Example input of tool 'find' has the wrong type"):
        Tool("find", "Find.", find, input_schema=FOREIGN, examples=[ToolExample("", 1, "")])  # type: ignore[arg-type,list-item]
