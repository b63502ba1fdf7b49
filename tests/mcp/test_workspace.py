"""A workspace served to the official SDK's client, in memory and over stdio."""

import base64
import re
import sys
from pathlib import Path

import anyio
import jsonschema
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ImageContent

from tests.mcp.serving import Served, call, fail, run, text_of
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.mcp import McpWorkspace
from weakincentives.mcp.tools import describe_tool
from weakincentives.prompt import Tool

SERVER = """\
import sys
from weakincentives.filesystem import HostFilesystem
from weakincentives.mcp import McpWorkspace, serve_stdio
with HostFilesystem(sys.argv[1], git_dir=sys.argv[2]) as files:
    serve_stdio(McpWorkspace(files))
"""
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_a_client_of_either_protocol_era_lists_and_calls_tools(tmp_path: Path, mode: str) -> None:
    async def work(served: Served) -> None:
        client = await served.connect(mode=mode)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["write_file"].title == "Write file"
        await call(client, "write_file", path="a.txt", content="hello\n")
        read = await client.call_tool("read_text_file", {"path": "a.txt"})
        assert read.structured_content["content"] == "hello\n"

    run(tmp_path / "w", work)
    assert (tmp_path / "w/a.txt").read_text() == "hello\n"


def test_a_client_starts_the_server_and_calls_it_over_stdio(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()

    async def main() -> None:
        command = StdioServerParameters(
            command=sys.executable, args=["-c", SERVER, str(root), str(tmp_path / "git")]
        )
        async with Client(stdio_client(command)) as client:
            await call(client, "write_file", path="a.txt", content="hello\n")

    anyio.run(main)
    assert (root / "a.txt").read_text() == "hello\n"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_tool_of_every_dialect_has_title_schemas_and_annotations(dialect: str) -> None:
    workspace = McpWorkspace(InMemoryFilesystem(), dialect=dialect)  # type: ignore[arg-type]
    try:
        described = {tool.name: describe_tool(tool) for tool in workspace.tools}
    finally:
        workspace.close()
    assert {"checkpoint", "list_checkpoints", "diff", "undo", "review"} <= described.keys()
    for tool in workspace.tools:
        shown = described[tool.name]
        hints = shown.annotations
        assert shown.title
        assert hints is not None
        for schema in (shown.input_schema, shown.output_schema):
            assert schema is not None
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)
        assert hints.read_only_hint is (tool.read_only and tool.name != "checkpoint")
        assert hints.destructive_hint is _is_destructive(tool)
        assert hints.open_world_hint is False


def _is_destructive(tool: Tool) -> bool:
    return not tool.read_only and tool.name not in {"create_directory"}


def test_annotations_are_those_of_the_reference_server(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        tools = (await client.list_tools()).tools
        hints = {tool.name: tool.annotations for tool in tools if tool.annotations is not None}
        writers = ("write_file", "edit_file", "create_directory", "move_file")
        assert {name: hints[name].destructive_hint for name in writers} == {
            **dict.fromkeys(writers, True),
            "create_directory": False,
        }
        idempotent = [name for name in writers if hints[name].idempotent_hint]
        assert idempotent == ["write_file", "create_directory"]

    run(tmp_path / "w", work)


def test_results_of_all_tools_match_their_output_schemas(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()  # the SDK's client validates every result
        path = tmp_path / "w/pic.png"
        path.write_bytes(PNG)
        (tmp_path / "w/data.bin").write_bytes(bytes(range(256)) * 1000)
        await call(client, "write_file", path="a.txt", content="one\ntwo\n")
        edits = [{"oldText": "two", "newText": "2"}]
        await call(client, "edit_file", path="a.txt", edits=edits)
        await call(client, "create_directory", path="d")
        await call(client, "move_file", source="a.txt", destination="d/b.txt")
        for tool, arguments in {
            "read_text_file": {"path": "d/b.txt"},
            "read_multiple_files": {"paths": ["d/b.txt", "missing"]},
            "list_directory": {"path": "."},
            "list_directory_with_sizes": {"path": "."},
            "directory_tree": {"path": "."},
            "search_files": {"path": ".", "pattern": "**/*.txt"},
            "get_file_info": {"path": "d/b.txt"},
            "list_allowed_directories": {},
            "checkpoint": {},
            "list_checkpoints": {},
            "diff": {},
            "review": {},
            "undo": {},
        }.items():
            await call(client, tool, **arguments)
        picture = await client.call_tool("read_media_file", {"path": "pic.png"})
        (image,) = picture.content
        assert isinstance(image, ImageContent)
        assert base64.b64decode(image.data) == PNG
        blob = await client.call_tool("read_media_file", {"path": "data.bin"})
        (item,) = blob.structured_content["content"]
        assert base64.b64decode(item["resource"]["blob"]) == bytes(range(256)) * 1000

    run(tmp_path / "w", work)


def test_absolute_paths_below_the_workspace_or_its_original_work(tmp_path: Path) -> None:
    original = tmp_path / "original"

    async def work(served: Served) -> None:
        client = await served.connect()
        root = tmp_path / "w"
        await call(client, "write_file", path=str(root / "a.txt"), content="a")
        await call(client, "write_file", path=str(original / "src/b.txt"), content="b")
        assert str(original) in await call(client, "list_allowed_directories")
        for outside in ("/etc/passwd", str(tmp_path / "w2/x"), str(root / "../x"), "../x"):
            text = await fail(client, "write_file", path=outside, content="x")
            assert "outside" in text or "escapes" in text

    run(tmp_path / "w", work, original=original)
    assert (tmp_path / "w/a.txt").read_text() == "a"
    assert (tmp_path / "w/src/b.txt").read_text() == "b"
    assert not original.exists()
    assert not (tmp_path / "x").exists()


def test_a_failed_call_changes_nothing_and_says_why(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "write_file", path="a.txt", content="one\n")
        edits = [{"oldText": "one", "newText": "1"}, {"oldText": "none", "newText": "0"}]
        assert "none" in await fail(client, "edit_file", path="a.txt", edits=edits)
        assert "Unknown tool" in await fail(client, "nonsense")
        assert "edit_file by tester #1 failed" in await call(client, "review")

    run(tmp_path / "w", work)
    assert (tmp_path / "w/a.txt").read_text() == "one\n"


def test_a_workspace_that_is_closed_at_once_stops_its_start_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "w"
    root.mkdir()
    for number in range(500):
        (root / f"{number}.txt").write_text(f"{number}\n")
    with HostFilesystem(root, git_dir=tmp_path / "git") as files:
        McpWorkspace(files).close()
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "text_only", "expected"),
    [
        ("claude-code", None, True),
        ("codex-mcp-client", None, True),
        ("other", None, False),
        ("other", True, True),
        ("claude-code", False, False),
    ],
)
def test_a_client_that_shows_structured_content_alone_gets_text_alone(
    tmp_path: Path, name: str, text_only: bool | None, expected: bool
) -> None:
    async def work(served: Served) -> None:
        for mode in ("legacy", "2026-07-28"):
            client = await served.connect(name, mode=mode)
            tools = {each.name: each for each in (await client.list_tools()).tools}
            assert all((each.output_schema is None) is expected for each in tools.values())
            arguments = {"path": f"{mode}.txt", "content": "a\n"}
            for tool, given in (
                ("write_file", arguments),
                ("read_text_file", {"path": f"{mode}.txt"}),
                ("review", {}),
                ("undo", {}),
            ):
                done = await client.call_tool(tool, given)
                assert not done.is_error
                assert (done.structured_content is None) is expected
                if tool == "write_file" and expected:
                    assert re.search(r"\[call \d+\]$", text_of(done))

    run(tmp_path / "root", work, text_only=text_only)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_directory_that_was_moved_away_is_not_worked_in(
    tmp_path: Path, is_replaced: bool
) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "write_file", path="a", content="1")
        root.rename(tmp_path / "old")
        if is_replaced:
            root.mkdir()
        why = "was replaced by another directory" if is_replaced else "is gone"
        for name, arguments in (
            ("write_file", {"path": "b", "content": "2"}),
            ("read_text_file", {"path": "a"}),
            ("undo", {}),
        ):
            told = await fail(client, name, **arguments)
            assert why in told
            assert "restart the server" in told
        if is_replaced:
            root.rmdir()
        (tmp_path / "old").rename(root)
        await call(client, "write_file", path="b", content="3")

    run(root, work)
    assert {each.name for each in root.iterdir()} >= {"a", "b"}
