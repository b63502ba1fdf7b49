"""Definitions of foreign tools: names, descriptions and schemas, and which are refused."""

import re
from typing import Any

import pytest

from weakincentives.contrib.integrations.mcp.definitions import (
    MAX_DESCRIPTION,
    MAX_SCHEMA_BYTES,
    ListedTool,
    define_tools,
)

OBJECT: dict[str, Any] = {"type": "object"}
PLAIN: dict[str, Any] = {"type": "object", "properties": {}}


def tool(name: str = "t", schema: object = OBJECT, description: object = "") -> ListedTool:
    return ListedTool(name, {"inputSchema": schema, "description": description})


def schema_of(schema: dict[str, Any]) -> Any:
    defined, refused = define_tools([tool(schema=schema)], "a")
    assert not refused, refused[0]
    return defined[0].schema


def reason(schema: object) -> str:
    defined, refused = define_tools([tool("bad", schema), tool("good")], "a")
    assert [each.foreign_name for each in defined] == ["good"]
    assert refused[0].name == "bad"
    return refused[0].reason


def test_names_are_prefixed_and_valid_for_every_provider():
    names = ["search", "repo.get/file", "über alles", "x" * 100, "y" * 128]
    defined, refused = define_tools(map(tool, names), "git-hub")
    assert not refused
    assert [each.foreign_name for each in defined] == names
    assert [each.name for each in defined][:3] == [
        "git-hub__search",
        "git-hub__repo_get_file",
        "git-hub___ber_alles",
    ]
    assert len({each.name for each in defined}) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each.name) for each in defined)


def test_names_that_differ_only_in_unsafe_characters_stay_apart():
    defined, _ = define_tools(map(tool, ["a.b", "a/b", "a_b"]), "s")
    assert defined[0].name == "s__a_b"
    assert len({each.name for each in defined}) == 3


@pytest.mark.parametrize(
    ("name", "shown", "why"),
    [
        ("", ".", "its name must have 1 to 128 characters"),
        ("n" * 129, "n" * 80 + "...", "its name must have 1 to 128 characters"),
        ("a\x1b[31mb", r"a\x1b[31mb", "its name has control or invisible characters"),
        ("a\u202eb", r"a\u202eb", "its name has control or invisible characters"),
    ],
)
def test_a_tool_with_an_unusable_name_is_refused_and_the_others_stay(
    name: str, shown: str, why: str
):
    defined, refused = define_tools([tool(name), tool("good")], "a")
    assert [each.name for each in defined] == ["a__good"]
    assert str(refused[0]) == f"{shown} is not offered: {why}"


def test_the_second_tool_of_a_name_is_refused():
    defined, refused = define_tools([tool(description="1"), tool(description="2")], "a")
    assert [each.description for each in defined] == ["1"]
    assert refused[0].reason == "the server lists two tools with this name"


def test_descriptions_are_bounded_and_without_invisible_characters():
    said = " Find\u200b it.\x1b[2J\n\tNow\u202e\U000e0041. "
    assert define_tools([tool(description=said)], "a")[0][0].description == "Find it.[2J\n\tNow."
    long = define_tools([tool(description="x" * 5_000)], "a")[0][0].description
    assert long == "x" * MAX_DESCRIPTION + " [...]"


def test_an_ordinary_schema_is_passed_on_as_it_is():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "title": {"type": "string", "description": "A heading.\nOne line.", "minLength": 1},
            "description": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "mode": {"enum": ["\u2764\ufe0f", "b"], "default": "b"},
            "where": {"$ref": "#/$defs/Place"},
            "more": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        },
        "required": ["title"],
        "additionalProperties": False,
        "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }
    assert schema_of(schema) == schema


def test_the_top_level_is_a_plain_object_as_providers_demand():
    assert schema_of({}) == PLAIN
    assert schema_of({"type": "object", "anyOf": [{"required": ["a"]}], "not": {}}) == PLAIN
    nested = {"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}
    assert schema_of(nested) == {"type": "object", **nested}
    arguments = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    referring = {"$ref": "#/$defs/Arguments", "$defs": {"Arguments": arguments}}
    assert schema_of(referring) == {**arguments, "$defs": {"Arguments": arguments}}


def test_prose_in_a_schema_is_cleaned_and_names_that_look_like_prose_are_not():
    said = {"description": "a\u200bb" + "c" * 2_000, "type": "string"}
    found = schema_of({"properties": {"description": said, "properties": said}})["properties"]
    cleaned = found["description"]
    assert found["properties"] == cleaned
    assert cleaned == {"description": "ab" + "c" * 998 + " [...]", "type": "string"}


def bomb() -> dict[str, Any]:
    """Return a small schema that is huge with its references resolved."""
    levels = {
        f"l{n}": {"properties": {each: {"$ref": f"#/$defs/l{n + 1}"} for each in "abcdefgh"}}
        for n in range(5)
    }
    return {"properties": {"a": {"$ref": "#/$defs/l0"}}, "$defs": {**levels, "l5": {}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"properties": {"a": schema}}


TREE = {"properties": {"below": {"items": {"$ref": "#/$defs/Tree"}}}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array"}, "its input schema does not describe an object"),
        ([], "its input schema is not an object"),
        (None, "its input schema is not an object"),
        ({"properties": {"a": 5}}, "its parameter 'a' has no schema"),
        ({"required": "a"}, "its input schema has a 'required' that is no list of names"),
        ({"properties": ["a"]}, "its input schema does not describe an object"),
        (
            {"description": "x" * MAX_SCHEMA_BYTES},
            "its input schema has 32,018 bytes, more than 32,000",
        ),
        (bomb(), "its input schema is too large with its references resolved"),
        (nested(40), "its input schema is nested more than 32 levels deep"),
        (
            {"properties": {"t": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": TREE}},
            "its input schema refers to itself: #/$defs/Tree",
        ),
        ({"properties": {"t": {"$ref": "#"}}}, "its input schema refers to itself: #"),
        ({"$ref": "#/$defs/No"}, "its input schema refers to nothing: #/$defs/No"),
        (
            {"properties": {"t": {"$ref": "https://example.org/s"}}},
            "its input schema refers to another document: https://example.org/s",
        ),
        (
            {"properties": {"a b\u200b": {}}},
            "its input schema has control or invisible characters in a value: U+200B",
        ),
        (
            {"properties": {"a": {"enum": ["\U000e0049"]}}},
            "its input schema has control or invisible characters in a value: U+E0049",
        ),
        (
            {"properties": {"a b": {}}},
            "providers accept no parameter called 'a b': only letters, digits, '_', '.' and '-',"
            " at most 64",
        ),
    ],
)
def test_a_schema_that_no_provider_should_get_is_refused_and_the_others_stay(
    schema: object, why: str
):
    assert reason(schema) == why
