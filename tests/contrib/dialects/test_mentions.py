"""Texts for a model mention only tools and parameters that it has."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from tests.contrib.dialects.replay import Replay
from weakincentives.contrib.tools.context import Dialect
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    GlobParams,
    GrepParams,
    InsertTextParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    ReadManyParams,
    RmParams,
    StatParams,
    TextEdit,
    TreeParams,
    WorkspaceParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.sections.base import tool_guidance
from weakincentives.contrib.tools.suite import create_dialect, filesystem_tools
from weakincentives.filesystem import InMemoryFilesystem

NAMES: tuple[DialectName, ...] = get_args(DialectName)
ALL_TOOLS = {spec.name for specs in DIALECTS.values() for spec in specs}
# words that are also plain English count only where they are meant as a name
DISTINCT = {name for name in ALL_TOOLS if "_" in name}
PARAMETERS = re.compile(
    r"(?<![\w.])(mode|encoding|view|offset|limit|start_line|end_line|view_range|replace_all"
    r"|allow_multiple|head_limit|total_max_matches|output_mode|include_ignored|no_ignore"
    r"|respect_git_ignore|fixed_string|fixed_strings|ignore_case|case_sensitive|dry_run|dryRun"
    r"|edits|max_per_file|file_path|old_string|new_string|old_str|oldText|file_text)"
    r"(?= ?=| must| counts|\b.{0,3}(to|is) ['\"])"
)


def mentioned(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the tools that a text names, with a parameter where it names one."""
    for word in re.findall(r"\w+", text):
        if word in DISTINCT:
            yield word, None
    for name, key in re.findall(r"(\w+) with (-?\w+)=", text):
        yield name, key
    for name in re.findall(r"`(\w+)`", text):
        if name in ALL_TOOLS:
            yield name, None
    for name in re.findall(r"\b(?:use|with|call|by|see) ([A-Z]\w+|ls|rm|glob|grep|bash)\b", text):
        if name in ALL_TOOLS:
            yield name, None


def wrong_mentions(text: str, schemas: dict[str, set[str]]) -> list[object]:
    every = set[str]().union(*schemas.values())
    wrong: list[object] = [
        (name, key)
        for name, key in mentioned(text)
        if name not in schemas or (key is not None and key not in schemas[name])
    ]
    return wrong + [key[0] for key in PARAMETERS.findall(text) if key[0] not in every]


def parameters(dialect: DialectName) -> dict[str, set[str]]:
    """Return the parameters of each tool of a dialect, those inside lists too."""
    found: dict[str, set[str]] = {}
    for tool in filesystem_tools(dialect):
        schema: Any = tool.schema
        keys = set(schema["properties"])
        for each in schema["properties"].values():
            keys |= set(each.get("items", {}).get("properties", {}))
        found[tool.name] = keys
    return found


def tour() -> tuple[object, ...]:
    """Return requests that bring out what there is to say: results, notes, errors."""
    return (
        LsParams("."),
        LsParams("many"),
        LsParams("gone"),
        LsParams("README.md"),
        LsParams("void"),
        ReadFileParams("README.md"),
        ReadFileParams("long.txt"),
        ReadFileParams("long.txt", offset=10, limit=5),
        ReadFileParams("long.txt", offset=99_999),
        ReadFileParams("wide.txt"),
        ReadFileParams("empty.txt"),
        ReadFileParams("src"),
        ReadFileParams("REEDME.md"),
        ReadFileParams("data.bin"),
        ReadFileParams("data.bin", view="base64"),
        ReadFileParams("picture.png"),
        ReadFileParams("../out"),
        ReadManyParams(("README.md", "gone.md")),
        GlobParams("**/*.py"),
        GlobParams("app.py"),
        GlobParams("*.rs"),
        GlobParams("**/*.txt"),
        GlobParams("*", "gone"),
        *(
            GrepParams(pattern, output_mode=mode, ignore_case=any_case)
            for pattern in ("line", "nothing like it", "(", "HELLO", "(?=x)")
            for mode in ("content", "files_with_matches", "count")
            for any_case in (True, False)
        ),
        GrepParams("line", "gone"),
        GrepParams("line", "long.txt", context=2),
        WriteFileParams("README.md", "again\n"),
        WriteFileParams("big.txt", "x" * 48_001),
        WriteFileParams("src", "a directory\n"),
        WriteFileParams("README.md/below", "x\n"),
        WriteFileParams("caf\u00e9.txt", "x\n"),
        WriteFileParams("new.txt", "x\n"),
        EditFileParams("README.md", "hello", "goodbye"),
        EditFileParams("README.md", "not there", "x"),
        EditFileParams("README.md", "o", "x"),
        EditFileParams("README.md", "x", "x"),
        EditFileParams("src/app.py", "\tprint('hi')", "\tprint('ho')"),
        EditFileParams("REEDME.md", "a", "b"),
        EditFileParams("data.bin", "a", "b"),
        EditFileParams("src", "a", "b"),
        EditFileParams("README.md", edits=(TextEdit("not", "x"), TextEdit("there", "y"))),
        ApplyPatchParams("*** Begin Patch\n*** Update File: gone.md\n@@\n-a\n+b\n*** End Patch"),
        ApplyPatchParams("*** Begin Patch\n*** Add File: README.md\n+a\n*** End Patch"),
        ApplyPatchParams("not a patch"),
        ApplyPatchParams("*** Begin Patch\n*** Delete File: src\n*** End Patch"),
        InsertTextParams("README.md", 99, "x\n"),
        InsertTextParams("gone.md", 0, "x\n"),
        InsertTextParams("README.md", 1, "x\n"),
        MkdirParams("made"),
        MkdirParams("README.md"),
        MoveParams("README.md", "src/app.py"),
        MoveParams("gone.md", "x.md"),
        MoveParams("new.txt", "newer.txt"),
        StatParams("README.md"),
        StatParams("gone"),
        TreeParams("."),
        TreeParams("gone"),
        WorkspaceParams(),
        RmParams("gone.txt"),
        RmParams("."),
        RmParams("src"),
    )


def workspace() -> InMemoryFilesystem:
    files = InMemoryFilesystem()
    files.write("README.md", "hello\nworld of hello\nno\n")
    files.write("src/app.py", "def app():\n    print('hi')\n")
    for part in range(3):
        text = "".join(f"line {part * 1000 + each}\n" for each in range(1000))
        files.write("long.txt", text, mode="append")
    files.write("wide.txt", "x" * 30_000)
    files.write("empty.txt", "")
    files.mkdir("void")
    files.write(".gitignore", "*.log\n")
    files.write("hidden.log", "line\n")
    files.write_bytes("data.bin", bytes(range(256)) * 40)
    files.write_bytes("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(40))
    for each in range(1200):
        files.write(f"many/{each}.txt", "line\n")
    return files


@pytest.mark.parametrize("dialect", NAMES)
def test_results_and_errors_mention_only_what_is_there(dialect: DialectName):
    schemas = parameters(dialect)
    replay = Replay(dialect, workspace())
    said = [each for each in tour() if replay.dialect.encode(each) is not None]
    assert len(said) >= 12
    for request in said:
        text = replay.say(request).text
        assert text.strip(), request
        assert wrong_mentions(text, schemas) == [], (request, text[-2000:])


@pytest.mark.parametrize("dialect", NAMES)
def test_descriptions_mention_only_what_is_there(dialect: DialectName):
    schemas = parameters(dialect)
    for tool in filesystem_tools(dialect):
        assert "$" not in tool.description
        assert wrong_mentions(f"{tool.description}\n{tool.schema}", schemas) == [], tool.name


@pytest.mark.parametrize("dialect", NAMES)
def test_the_guidance_mentions_only_what_is_there(dialect: DialectName):
    text = tool_guidance(create_dialect(dialect), (), is_new=True)
    assert "$" not in text
    assert wrong_mentions(text, parameters(dialect)) == []


def test_a_line_about_a_tool_that_is_not_there_is_left_out():
    text = (
        "Read with $ReadFileParams.\nSearch with $GrepParams, after $ReadFileParams.\nIt costs $5."
    )
    assert create_dialect("claude").fill(text) == (
        "Read with Read.\nSearch with Grep, after Read.\nIt costs $5."
    )
    assert create_dialect("classic").fill(text) == "Read with read_file.\nIt costs $5."
    assert Dialect().fill(text) == "It costs $5."


@pytest.mark.parametrize(
    "text",
    [
        "Use read_text_file for it",
        "to continue: Read with file_path='a'",
        "see the rest: read_file with start_line=3",
        "use Grep to find it",
        "or set output_mode='count'",
        "look with `ls`",
    ],
)
def test_a_wrong_mention_is_found(text: str):
    assert wrong_mentions(text, {"read_file": {"path", "offset"}})


def test_a_right_mention_is_none():
    text = "Read it again: read_file with offset=3; grep and ls are programs, Read on"
    assert wrong_mentions(text, {"read_file": {"path", "offset"}}) == []


def test_a_tool_with_commands_is_mentioned_with_the_right_one():
    replay = Replay("anthropic-editor", InMemoryFilesystem())
    replay.play(WriteFileParams("a.txt", "one"))
    told = replay.say(WriteFileParams("a.txt", "two")).text
    assert told.endswith("str_replace_based_edit_tool with command='str_replace'")


@pytest.mark.parametrize(("path", "is_said"), [("picture.png", False), ("picture", True)])
def test_the_bytes_of_a_picture_are_promised_only_where_a_call_returns_them(
    path: str, is_said: bool
):
    files = InMemoryFilesystem()
    files.write_bytes(path, b"\x89PNG\r\n\x1a\n" + bytes(40))
    made = Replay("mcp", files)
    text = made.call("read_text_file", {"path": path}).text
    assert ("its bytes: read_media_file" in text) == is_said
    assert ("base64" in made.call("read_media_file", {"path": path}).text) == is_said
