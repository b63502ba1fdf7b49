"""Calls that models know from other versions: accepted, but not offered."""

from typing import Any

import pytest

from tests.contrib.dialects.replay import Replay
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem

TEXT = "one = 1\ntwo = one\nthree = one\n"


def replay(dialect: DialectName, **files: str) -> Replay:
    workspace = InMemoryFilesystem()
    for name, text in files.items():
        workspace.write(name, text)
    return Replay(dialect, workspace)


def content(made: Replay, path: str) -> str:
    return made.files.read_bytes(path).content.decode()


@pytest.mark.parametrize("tool", ["MultiEdit", "Edit"])
def test_several_edits_are_made_in_order(tool: str):
    made = replay("claude", a=TEXT)
    edits = [
        {"old_string": "one", "new_string": "uno", "replace_all": True},
        {"old_string": "two = uno", "new_string": "two = 2"},
    ]
    outcome = made.call(tool, {"file_path": "a", "edits": edits})
    assert outcome.result.success, outcome.text
    assert content(made, "a") == "uno = 1\ntwo = 2\nthree = uno\n"


@pytest.mark.parametrize("tool", ["MultiEdit", "Edit"])
def test_of_several_edits_all_are_made_or_none(tool: str):
    made = replay("claude", a=TEXT)
    edits = [
        {"old_string": "two", "new_string": "zwei"},
        {"old_string": "four", "new_string": "vier"},
    ]
    outcome = made.call(tool, {"file_path": "a", "edits": edits})
    assert "Edit 2 of 2" in outcome.text
    assert "None of the 2 edits was applied" in outcome.text
    assert content(made, "a") == TEXT


def test_several_edits_may_begin_a_file():
    made = replay("claude")
    edits = [
        {"old_string": "", "new_string": "a\nb\n"},
        {"old_string": "b", "new_string": "c"},
    ]
    assert made.call("MultiEdit", {"file_path": "new", "edits": edits}).result.success
    assert content(made, "new") == "a\nc\n"


def test_one_edit_is_made_under_the_other_name_too():
    made = replay("claude", a=TEXT)
    arguments = {"file_path": "a", "old_string": "two", "new_string": "2"}
    assert made.call("MultiEdit", arguments).result.success
    assert content(made, "a") == TEXT.replace("two", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"file_path": "a", "edits": [{"old_string": "two"}]}, "new_string"),
        ({"file_path": "a", "edits": []}, "text to replace is missing"),
        ({"file_path": "a", "old_string": "two"}, "new_string"),
        ({"file_path": "a", "old_string": "two", "new_string": "2", "other": 1}, "other"),
        (
            {
                "file_path": "a",
                "edits": [{"old_string": "two", "new_string": "2"}],
                "old_string": "x",
                "new_string": "y",
            },
            "send only one of them",
        ),
    ],
)
def test_an_error_says_what_is_wrong_with_edits(arguments: Any, said: str):
    made = replay("claude", a=TEXT)
    outcome = made.call("Edit", arguments)
    assert not outcome.result.success
    assert said in outcome.text
    assert content(made, "a") == TEXT


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"old_string": "one", "new_string": "uno", "expected_replacements": 3}, True),
        ({"old_string": "two", "new_string": "2", "expected_replacements": 1}, True),
        ({"old_string": "one", "new_string": "uno", "expected_replacements": 2}, False),
        ({"old_string": "one", "new_string": "uno", "expected_replacements": 1}, False),
        ({"old_string": "two", "new_string": "2", "expected_replacements": 2}, False),
        ({"old_string": "two", "new_string": "2", "expected_replacements": 0}, False),
    ],
)
def test_as_many_replacements_are_made_as_are_expected(
    arguments: dict[str, object], expected: bool
):
    made = replay("gemini", a=TEXT)
    outcome = made.call("replace", {"file_path": "a", **arguments})
    assert outcome.result.success == expected, outcome.text
    old, new = str(arguments["old_string"]), str(arguments["new_string"])
    assert content(made, "a") == (TEXT.replace(old, new) if expected else TEXT)


def test_an_unexpected_number_of_matches_is_reported_with_line_numbers():
    made = replay("gemini", a=TEXT)
    arguments = {"old_string": "one", "new_string": "1", "expected_replacements": 2}
    outcome = made.call("replace", {"file_path": "a", **arguments})
    assert outcome.text == (
        "Text to replace was expected 2 times but found 3 times, at lines 1, 2 and 3: 'one'\n"
        "Correct the expected number, or include more or less of the surrounding text"
    )


@pytest.mark.parametrize(
    ("dialect", "tool", "null"),
    [("claude", "Edit", "edits"), ("gemini", "replace", "expected_replacements")],
)
def test_null_is_ignored_in_a_field_that_is_not_offered(dialect: DialectName, tool: str, null: str):
    made = replay(dialect, a=TEXT)
    arguments = {"file_path": "a", "old_string": "two", "new_string": "2", null: None}
    outcome = made.call(tool, arguments)
    assert outcome.result.success, outcome.text
    assert content(made, "a") == TEXT.replace("two", "2")


def test_the_old_name_of_the_search_is_accepted():
    made = replay("gemini", a=TEXT)
    arguments = {"pattern": "three", "include": "*"}
    assert "three = one" in made.call("search_file_content", arguments).text


@pytest.mark.parametrize("dialect", ["claude", "gemini"])
def test_what_is_known_elsewhere_is_not_offered(dialect: DialectName):
    tools = filesystem_tools(dialect)
    offered = repr([(tool.name, tool.description, tool.schema) for tool in tools])
    hidden = ("MultiEdit", "'edits'", "expected_replacements", "search_file_content")
    assert not [word for word in hidden if word in offered]
    refused = replay(dialect).call("Nothing", {}).text
    assert not [word for word in hidden if word in refused]
