"""The tables of the dialects: names, schemas, and calls that decode to the intended request."""

from dataclasses import replace
from functools import cache
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.contrib.tools.context import Dialect, HandlerContext, select_specs
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName, dialect_for
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    CountedEditParams,
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
from weakincentives.contrib.tools.shell import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.suite import HANDLERS, filesystem_tools
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.serde import encode

NAMES: tuple[DialectName, ...] = get_args(DialectName)
FILE_REQUESTS = tuple(HANDLERS)


@cache
def full_dialect(dialect: DialectName) -> Dialect:
    """Return a dialect where every file request has a handler."""
    return select_specs(DIALECTS, dialect, FILE_REQUESTS)


@cache
def tools(dialect: DialectName) -> dict[str, Tool[Any, Any]]:
    def handler(request: object, context: HandlerContext) -> ToolResult[object]:
        return ToolResult(repr(request), request)

    made = filesystem_tools(dialect, extra_handlers=dict.fromkeys(FILE_REQUESTS, handler))
    return {tool.name: tool for tool in made}


@cache
def handler_context() -> HandlerContext:
    context = ToolContext(None, None, None, Session())
    files = InMemoryFilesystem()
    files.write("log.txt", "1\n2\n3\n4\n")
    files.mkdir("src")
    return HandlerContext(context, files)


def decode_call(dialect: DialectName, name: str, arguments: Any) -> Any:
    """Return the request of a call."""
    (spec,) = [each for each in DIALECTS[dialect] if each.name == name]
    return spec.decode(tools(dialect)[name].parse(arguments), handler_context())


# --- names and schemas ---


def test_there_is_a_table_for_every_dialect():
    assert tuple(DIALECTS) == NAMES


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("wink", "ls read_file write_file edit_file glob grep rm move_file"),
        ("classic", "list_directory read_file write_file delete_file"),
        ("claude", "Read Write Edit Glob Grep Delete Move"),
        ("anthropic-editor", "str_replace_based_edit_tool"),
        ("openai", "apply_patch read_file list_dir grep_files"),
        (
            "gemini",
            "list_directory read_file write_file replace glob grep_search delete_file move_file",
        ),
        (
            "mcp",
            "read_text_file read_media_file read_multiple_files write_file edit_file"
            " create_directory move_file delete_file list_directory list_directory_with_sizes"
            " directory_tree search_files grep get_file_info list_allowed_directories",
        ),
    ],
)
def test_the_tools_have_the_names_that_models_know(dialect: DialectName, names: str):
    assert list(tools(dialect)) == names.split()


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("wink", "ls read_file write_file edit_file glob grep rm move_file shell_execute"),
        ("claude", "Read Write Edit Glob Grep Bash"),
        ("anthropic-editor", "str_replace_based_edit_tool bash"),
        ("openai", "apply_patch exec_command"),
        (
            "gemini",
            "list_directory read_file write_file replace glob grep_search run_shell_command",
        ),
    ],
)
def test_where_a_shell_is_there_are_no_tools_for_what_models_do_with_it(
    dialect: DialectName, names: str
):
    requests_handled = (*FILE_REQUESTS, BashParams, ShellExecuteParams)
    call = select_specs(DIALECTS, dialect, requests_handled)
    assert [spec.name for spec in call.specs] == names.split()


@pytest.mark.parametrize(
    ("dialect", "tool", "properties", "required"),
    [
        ("wink", "read_file", "file_path offset limit view", "file_path"),
        ("claude", "Read", "file_path offset limit", "file_path"),
        (
            "claude",
            "Edit",
            "file_path old_string new_string replace_all",
            "file_path old_string new_string",
        ),
        (
            "claude",
            "Grep",
            "pattern path glob type output_mode -i -A -B -C head_limit",
            "pattern",
        ),
        (
            "anthropic-editor",
            "str_replace_based_edit_tool",
            "command path view_range file_text old_str new_str insert_line insert_text new_path",
            "command path",
        ),
        ("openai", "apply_patch", "input", "input"),
        ("gemini", "read_file", "file_path start_line end_line", "file_path"),
        ("mcp", "edit_file", "path edits dryRun", "path edits"),
        ("mcp", "search_files", "path pattern excludePatterns", "path pattern"),
    ],
)
def test_the_parameters_have_the_names_that_models_know(
    dialect: DialectName, tool: str, properties: str, required: str
):
    schema: Any = tools(dialect)[tool].schema
    assert list(schema["properties"]) == properties.split()
    assert schema["required"] == required.split()


def test_the_texts_of_an_edit_are_called_as_the_reference_server_calls_them():
    schema: Any = tools("mcp")["edit_file"].schema
    assert list(schema["properties"]["edits"]["items"]["properties"]) == ["oldText", "newText"]


@pytest.mark.parametrize("dialect", NAMES)
def test_every_parameter_is_described_and_has_a_type(dialect: DialectName):
    for name, tool in tools(dialect).items():
        schema: Any = tool.schema
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        for key, each in schema["properties"].items():
            assert each.get("description"), (name, key)
            assert {"type", "anyOf", "enum"} & set(each), (name, key)
        assert set(schema["required"]) <= set(schema["properties"])


@pytest.mark.parametrize("dialect", NAMES)
def test_every_line_number_states_its_base(dialect: DialectName):
    lines = {"offset", "start_line", "end_line", "view_range", "insert_line"}
    for name, tool in tools(dialect).items():
        schema: Any = tool.schema
        for key in lines & set(schema["properties"]):
            assert "counts from 0" in str(schema["properties"][key]) or "counted from 1" in str(
                schema["properties"][key]
            ), (name, key)


# --- what is call is what was meant ---

paths = st.sampled_from(["a.py", "src/b.txt", "src", "log.txt", "no/where.md"])
counts = st.one_of(st.none(), st.integers(1, 5000))
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=30)
patterns = st.sampled_from(["*.py", "src/**", "x+", "def .*:"])
edits = st.builds(TextEdit, texts, texts, st.booleans())
any_request = st.one_of(
    st.builds(
        LsParams,
        st.sampled_from([".", "src"]),
        st.sampled_from([(), ("*.pyc",)]),
        st.sampled_from([0, 0, 1000]),
    ),
    st.builds(
        ReadFileParams,
        paths.filter(lambda path: path != "src"),
        offset=st.integers(0, 3000),
        limit=counts,
        view=st.sampled_from(["auto", "auto", "base64", "hex"]),
    ),
    st.builds(ReadFileParams, paths.filter(lambda path: path != "src"), start_line=counts),
    st.builds(
        WriteFileParams,
        paths,
        texts,
        st.sampled_from(["create", "overwrite", "append"]),
        st.sampled_from(["utf-8", "base64"]),
    ),
    st.builds(EditFileParams, paths, texts, texts, st.booleans(), dry_run=st.booleans()),
    st.builds(EditFileParams, paths, edits=st.lists(edits, min_size=1, max_size=3).map(tuple)),
    st.builds(GlobParams, patterns, st.sampled_from([".", "src"]), counts, st.booleans()),
    st.builds(
        GrepParams,
        patterns,
        st.sampled_from([".", "src"]),
        st.one_of(st.none(), patterns),
        st.sampled_from([None, "py"]),
        st.sampled_from(["content", "files_with_matches", "count"]),
        st.booleans(),
        st.booleans(),
        counts,
        counts,
        counts,
        counts,
        counts,
        st.one_of(st.none(), patterns),
        st.booleans(),
    ),
    st.builds(RmParams, paths),
    st.builds(ApplyPatchParams, texts, st.booleans()),
    st.builds(InsertTextParams, paths, st.integers(0, 100), texts),
    st.builds(MoveParams, paths, paths),
    st.builds(MkdirParams, paths),
    st.builds(StatParams, paths),
    st.builds(TreeParams, paths, st.sampled_from([(), ("*.pyc", "build")])),
    st.builds(
        TreeParams,
        paths,
        depth=st.integers(1, 9),
        offset=st.integers(0, 9),
        limit=st.none() | st.integers(1, 9),
    ),
    st.builds(ReadManyParams, st.lists(paths).map(tuple)),
    st.builds(WorkspaceParams),
)


def meaning(dialect: DialectName, request: Any) -> Any:
    """Return a request as a dialect can express it; indistinguishable ones become equal."""
    match request:
        case ReadFileParams(start_line=int(start)):
            return meaning(dialect, replace(request, offset=start - 1, start_line=None))
        case ReadFileParams(view="base64") if dialect == "classic":
            return replace(request, view="auto")  # the file tells
        case WriteFileParams(mode="create") if dialect in ("claude", "gemini", "mcp"):
            return replace(request, mode="overwrite")
        case EditFileParams():
            return edit_meaning(dialect, request)
        case LsParams(path=path) if dialect == "claude":
            return GlobParams("**/*", path)
        case GlobParams() if dialect == "mcp":
            return replace(request, include_ignored=True)
        case GrepParams(head_limit=None) if dialect == "gemini":
            return replace(request, head_limit=100)
        case _:
            return request


def edit_meaning(dialect: DialectName, request: EditFileParams) -> EditFileParams:
    match request:
        case EditFileParams(old_string=str(old), new_string=str(new)) if dialect == "mcp":
            edit = TextEdit(old, new, request.replace_all)
            return EditFileParams(request.file_path, edits=(edit,), dry_run=request.dry_run)
        case EditFileParams(edits=(edit,)) if dialect not in ("mcp", "wink"):
            return EditFileParams(
                request.file_path, edit.old_string, edit.new_string, edit.replace_all
            )
        case _:
            return request


@pytest.mark.parametrize("dialect", NAMES)
@given(request=any_request)
def test_an_encoded_request_decodes_to_itself(dialect: DialectName, request: Any):
    call = full_dialect(dialect).encode(request)
    if call is None:
        return  # SUPPORTED lists what each dialect can express
    name, arguments = call
    decoded = decode_call(dialect, name, encode(arguments))
    if isinstance(decoded, ApplyPatchParams) and not isinstance(request, ApplyPatchParams):
        return  # a patch expresses it differently; test_replay shows that the result is the same
    assert meaning(dialect, decoded) == meaning(dialect, request)


SUPPORTED: dict[DialectName, tuple[Any, ...]] = {
    "wink": (
        LsParams("src"),
        ReadFileParams("a", offset=5),
        ReadFileParams("a", view="hex"),
        WriteFileParams("a", "b", "append"),
        EditFileParams("a", edits=(TextEdit("b", "c"), TextEdit("d", "e"))),
        GlobParams("*", head_limit=4),
        GrepParams("x", exclude="*.js"),
        RmParams("a"),
        MoveParams("a", "b"),
    ),
    "classic": (
        LsParams("."),
        ReadFileParams("a", start_line=3),
        WriteFileParams("a", "AAAA", "append", "base64"),
        RmParams("a"),
    ),
    "claude": (
        ReadFileParams("a", offset=5, limit=2),
        WriteFileParams("a", "b", "overwrite"),
        EditFileParams("a", "b", "c", replace_all=True),
        GlobParams("*", "src"),
        LsParams("src"),
        GrepParams("x", context=1, output_mode="count", ignore_case=True),
        RmParams("a"),
        MoveParams("a", "b"),
    ),
    "anthropic-editor": (
        LsParams("src"),
        ReadFileParams("a", offset=5),
        WriteFileParams("a", "b"),
        EditFileParams("a", "b", "c"),
        InsertTextParams("a", 0, "b"),
        RmParams("a"),
        MoveParams("a", "b"),
    ),
    "openai": (
        ApplyPatchParams("x"),
        WriteFileParams("a", "b"),
        RmParams("a"),
        MoveParams("a", "b"),
        ReadFileParams("a", offset=5, limit=2),
        LsParams("src"),
        GrepParams("x", output_mode="files_with_matches", glob="*.py"),
    ),
    "gemini": (
        LsParams("src", ("*.pyc",)),
        ReadFileParams("a", offset=5, limit=2),
        WriteFileParams("a", "b", "overwrite"),
        EditFileParams("a", "b", "c", replace_all=True),
        GlobParams("*", include_ignored=True),
        GrepParams("x", fixed_string=True, exclude="*.js", max_per_file=2, before=1),
        RmParams("a"),
        MoveParams("a", "b"),
    ),
    "mcp": (
        LsParams("src"),
        ReadFileParams("a", offset=5, limit=2),
        ReadFileParams("a", view="base64"),
        ReadManyParams(("a", "b")),
        WriteFileParams("a", "b", "overwrite"),
        EditFileParams("a", edits=(TextEdit("b", "c"), TextEdit("d", "e")), dry_run=True),
        MkdirParams("a"),
        MoveParams("a", "b"),
        RmParams("a"),
        TreeParams(".", ("*.pyc",)),
        GlobParams("**/*.py", exclude=("build/**",)),
        StatParams("a"),
        WorkspaceParams(),
    ),
}


@pytest.mark.parametrize(
    ("dialect", "request_"), [(name, each) for name in NAMES for each in SUPPORTED[name]], ids=repr
)
def test_a_dialect_encodes_what_its_tools_are_for(dialect: DialectName, request_: Any):
    assert full_dialect(dialect).encode(request_) is not None


@pytest.mark.parametrize(
    ("dialect", "request_"),
    [
        ("claude", WriteFileParams("a", "b", "append")),
        ("claude", ReadFileParams("a", view="hex")),
        ("claude", EditFileParams("a", "b", "c", dry_run=True)),
        ("claude", GrepParams("x", include_ignored=True)),
        ("anthropic-editor", EditFileParams("a", "b", "c", replace_all=True)),
        ("anthropic-editor", WriteFileParams("a", "b", "overwrite")),
        ("openai", ApplyPatchParams("x", dry_run=True)),
        ("openai", GrepParams("x")),
        ("gemini", GrepParams("x", output_mode="count")),
        ("mcp", EditFileParams("a", "b", "c", replace_all=True)),
        ("classic", LsParams("/etc")),
        ("classic", RmParams("../a")),
        ("classic", MoveParams("a", "b")),
    ],
    ids=repr,
)
def test_a_dialect_does_not_encode_what_its_tools_cannot_do(dialect: DialectName, request_: Any):
    assert full_dialect(dialect).format_call(request_) is None


# --- what models send ---


@pytest.mark.parametrize(
    ("dialect", "tool", "arguments", "request_"),
    [
        ("wink", "read_file", {"path": "a", "offset": 3}, ReadFileParams("a", 3)),
        (
            "wink",
            "read_file",
            {"file_path": "a", "start_line": 3},
            ReadFileParams("a", start_line=3),
        ),
        (
            "wink",
            "edit_file",
            {"path": "a", "old_str": "b", "newText": "c"},
            EditFileParams("a", "b", "c"),
        ),
        (
            "wink",
            "edit_file",
            {"path": "a", "edits": [{"oldText": "b", "new_str": "c"}]},
            EditFileParams("a", edits=(TextEdit("b", "c"),)),
        ),
        ("wink", "grep", {"pattern": "x", "-i": True}, GrepParams("x", ignore_case=True)),
        ("claude", "Read", {"file_path": "a", "offset": 1}, ReadFileParams("a", 0)),
        ("claude", "Read", {"file_path": "a", "offset": 0}, ReadFileParams("a", 0)),
        ("claude", "Read", {"file_path": "a", "offset": 7, "limit": 2}, ReadFileParams("a", 6, 2)),
        ("claude", "Grep", {"pattern": "x"}, GrepParams("x", output_mode="files_with_matches")),
        (
            "claude",
            "Grep",
            {
                "pattern": "x",
                "-i": True,
                "-n": True,
                "-A": 1,
                "-B": 2,
                "-C": 3,
                "output_mode": "content",
            },
            GrepParams("x", ignore_case=True, after=1, before=2, context=3),
        ),
        (
            "gemini",
            "read_file",
            {"absolute_path": "a", "start_line": 2, "end_line": 4},
            ReadFileParams("a", 1, 3),
        ),
        (
            "gemini",
            "grep_search",
            {"pattern": "x"},
            GrepParams("x", ignore_case=True, head_limit=100),
        ),
        (
            "gemini",
            "replace",
            {"file_path": "a", "instruction": "why", "old_string": "b", "new_string": "c"},
            EditFileParams("a", "b", "c"),
        ),
        (
            "gemini",
            "replace",
            {"path": "a", "old_str": "b", "new_str": "c", "expected_replacements": "3"},
            CountedEditParams("a", "b", "c", 3),
        ),
        (
            "claude",
            "Edit",
            {"file_path": "a", "edits": [{"old_str": "b", "new_str": "c", "replace_all": True}]},
            EditFileParams("a", edits=(TextEdit("b", "c", True),)),
        ),
        ("openai", "apply_patch", {"patch": "x"}, ApplyPatchParams("x")),
        ("openai", "read_file", {"file_path": "a", "offset": 3}, ReadFileParams("a", 2)),
        ("openai", "list_dir", {"dir_path": "a"}, TreeParams("a", depth=2)),
        ("openai", "list_dir", {"dir_path": "a", "offset": 3}, TreeParams("a", (), 2, 2)),
        ("openai", "list_dir", {"path": "a", "offset": 3, "depth": 1}, LsParams("a", offset=2)),
        (
            "openai",
            "list_dir",
            {"dir_path": "a", "offset": 1, "limit": 25, "depth": 3},
            TreeParams("a", depth=3, limit=25),
        ),
        (
            "mcp",
            "read_text_file",
            {"path": "log.txt", "head": 2},
            ReadFileParams("log.txt", limit=2),
        ),
        ("mcp", "read_text_file", {"path": "log.txt", "head": 0}, ReadFileParams("log.txt")),
        ("mcp", "list_directory_with_sizes", {"path": "a"}, LsParams("a")),
        (
            "mcp",
            "list_directory_with_sizes",
            {"path": "a", "sortBy": "size"},
            LsParams("a", sort_by="size"),
        ),
        ("mcp", "read_text_file", {"path": "log.txt", "tail": 3}, ReadFileParams("log.txt", 1)),
        ("mcp", "read_text_file", {"path": "log.txt", "tail": 9}, ReadFileParams("log.txt", 0)),
        ("mcp", "read_media_file", {"path": "a.PNG"}, ReadFileParams("a.PNG")),
        ("mcp", "read_media_file", {"path": "a.mp3"}, ReadFileParams("a.mp3", view="base64")),
        ("classic", "list_directory", {}, LsParams(".")),
        ("classic", "list_directory", {"path": "."}, LsParams(".")),
        ("classic", "read_file", {"path": {"segments": ["src", "a"]}}, ReadFileParams("src/a")),
        ("classic", "read_file", {"path": "./src//a"}, ReadFileParams("src/a")),
        (
            "classic",
            "write_file",
            {"path": "a", "content": "AAAA", "encoding": "binary"},
            WriteFileParams("a", "AAAA", encoding="base64"),
        ),
    ],
)
def test_calls_as_models_make_them_are_decoded(
    dialect: DialectName, tool: str, arguments: Any, request_: Any
):
    assert decode_call(dialect, tool, arguments) == request_


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        ({"command": "view", "path": "src"}, LsParams("src")),
        ({"command": "view", "path": "log.txt"}, ReadFileParams("log.txt")),
        (
            {"command": "view", "path": "log.txt", "view_range": [2, 3]},
            ReadFileParams("log.txt", 1, 2),
        ),
        (
            {"command": "view", "path": "log.txt", "view_range": [2, -1]},
            ReadFileParams("log.txt", 1),
        ),
        ({"command": "view", "path": "log.txt", "view_range": []}, ReadFileParams("log.txt")),
        ({"command": "view", "path": "src", "view_range": [11, -1]}, LsParams("src", offset=10)),
        ({"command": "view", "path": "gone"}, ReadFileParams("gone")),
        ({"command": "create", "path": "a", "file_text": "b"}, WriteFileParams("a", "b")),
        ({"command": "str_replace", "path": "a", "old_str": "b"}, EditFileParams("a", "b", "")),
        (
            {"command": "insert", "path": "a", "insert_line": 0, "new_str": "b"},
            InsertTextParams("a", 0, "b"),
        ),
        ({"command": "rename", "old_path": "a", "new_path": "b"}, MoveParams("a", "b")),
    ],
)
def test_the_commands_of_the_editor_are_decoded(arguments: Any, request_: Any):
    assert decode_call("anthropic-editor", "str_replace_based_edit_tool", arguments) == request_


@pytest.mark.parametrize(
    ("dialect", "tool", "arguments", "message"),
    [
        ("claude", "Read", {"file_path": "a", "offset": -1}, "Lines count from 1: -1"),
        ("claude", "Grep", {"pattern": "x", "multiline": True}, "multiline is not available"),
        ("claude", "Grep", {"pattern": "x", "-A": "two"}, "Field '-A'"),
        ("gemini", "read_file", {"file_path": "a", "start_line": 5, "end_line": 4}, "5 to 4"),
        ("mcp", "read_text_file", {"path": "a", "head": 1, "tail": 1}, "tail cannot"),
        ("mcp", "edit_file", {"path": "a", "edits": [{"oldText": "b"}]}, "newText"),
        ("classic", "read_file", {"path": "/etc/passwd"}, "Path must be relative"),
        ("classic", "read_file", {"path": "a/../../b"}, r"plain ASCII name: '\.\.'"),
        ("classic", "read_file", {"path": {"segments": [".."]}}, "plain ASCII name"),
        ("classic", "write_file", {"path": "caf\u00e9", "content": ""}, "plain ASCII name"),
    ],
)
def test_invalid_calls_are_rejected_in_the_words_of_the_dialect(
    dialect: DialectName, tool: str, arguments: Any, message: str
):
    with pytest.raises(ToolValidationError, match=message):
        decode_call(dialect, tool, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "view", "path": "log.txt", "view_range": [1]}, "first and the last"),
        ({"command": "view", "path": "log.txt", "view_range": [3, 2]}, "3 to 2"),
        ({"command": "create", "path": "a"}, "create needs 'file_text'"),
        ({"command": "str_replace", "path": "a"}, "str_replace needs 'old_str'"),
        ({"command": "insert", "path": "a", "insert_text": "b"}, "insert needs 'insert_line'"),
        ({"command": "insert", "path": "a", "insert_line": 1}, "insert needs 'insert_text'"),
        ({"command": "rename", "path": "a"}, "rename needs 'new_path'"),
        ({"command": "undo_edit", "path": "a"}, "'view', 'create', 'str_replace'"),
    ],
)
def test_a_command_says_what_it_lacks(arguments: Any, message: str):
    with pytest.raises(ToolValidationError, match=message):
        decode_call("anthropic-editor", "str_replace_based_edit_tool", arguments)


# --- sentences ---


@pytest.mark.parametrize(
    ("dialect", "sentence"),
    [
        ("wink", "read_file with offset=2000"),
        ("classic", "read_file with offset=2000"),
        ("claude", "Read with offset=2001"),
        (
            "anthropic-editor",
            "str_replace_based_edit_tool with command='view', view_range=[2001, -1]",
        ),
        ("openai", "read_file with offset=2001"),
        ("gemini", "read_file with start_line=2001"),
        ("mcp", "read_text_file with start_line=2001"),
    ],
)
def test_the_rest_of_a_file_is_asked_for_from_the_base_of_the_dialect(
    dialect: DialectName, sentence: str
):
    assert full_dialect(dialect).format_call(ReadFileParams("a", offset=2000), "offset") == sentence


def test_a_call_names_what_it_needs_and_is_short():
    call = full_dialect("wink").format_call(WriteFileParams("a", "x" * 5000, "overwrite"))
    assert call is not None
    assert call.startswith("write_file with file_path='a', content='xxx")
    assert call.endswith("..., mode='overwrite'")
    assert len(call) < 300


def test_booleans_are_written_as_in_json():
    call = full_dialect("claude").format_call(EditFileParams("a", "b", "c", True), "replace_all")
    assert call == "Edit with replace_all=true"


@pytest.mark.parametrize(
    ("model", "dialect"),
    [
        ("claude-opus-4-5", "claude"),
        ("anthropic:claude-sonnet-4-5", "claude"),
        ("bedrock/us.anthropic.claude-3-7-sonnet-v1:0", "claude"),
        ("anthropic:next", "claude"),
        ("openai:gpt-5-codex", "openai"),
        ("openrouter/openai/gpt-4o", "openai"),
        ("o3-mini", "openai"),
        ("ollama:gpt-oss:20b", "openai"),
        ("gemini-2.5-pro", "gemini"),
        ("google:gemini-flash", "gemini"),
        ("openai/llama-3.3-70b", "wink"),
        ("olmo-2", "wink"),
        ("", "wink"),
    ],
)
def test_a_model_is_given_the_dialect_of_its_family(model: str, dialect: DialectName):
    assert dialect_for(model) == dialect
