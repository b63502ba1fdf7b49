"""Result values: each renders by itself, in every dialect."""

from dataclasses import is_dataclass
from typing import Any

import pytest

import weakincentives.contrib.tools
from weakincentives.contrib.tools import (
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
    TreeParams,
    WriteFileParams,
    filesystem_tools,
)
from weakincentives.contrib.tools.context import HandlerContext, ToolSettings
from weakincentives.contrib.tools.suite import HANDLERS
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import ToolContext
from weakincentives.prompt.tool import Renderable
from weakincentives.runtime.session import Session
from weakincentives.sandbox import ExecResult, Output
from weakincentives.tools import vfs

PATCH = "*** Begin Patch\n*** Update File: b.txt\n@@\n-hello two\n+hello 2\n*** End Patch"
SHOWN: list[tuple[Any, str]] = [
    (LsParams(), ".: 3 entries\nempty/\nsrc/\nb.txt (10 bytes)"),
    (ReadFileParams("src/a.py"), "src/a.py (1 to 3 of 3)\none\ntwo\nthree\n"),
    (ReadFileParams("src/a.py", 1, 1), "src/a.py (2 to 2 of 3, more from offset 2)\ntwo\n"),
    (WriteFileParams("n.txt", "x\n"), "n.txt: created, 2 bytes"),
    (WriteFileParams("b.txt", "x\n", "append"), "b.txt: written (append), 12 bytes"),
    (GlobParams("**/*.py"), "'**/*.py' in .: 1 found\nsrc/a.py"),
    (GrepParams("two"), "'two' in .: 2 files match\nb.txt:1: hello two\nsrc/a.py:2: two"),
    (GrepParams("two", output_mode="count"), "'two' in .: 2 files match\nb.txt:1\nsrc/a.py:1"),
    (
        GrepParams("hello", output_mode="files_with_matches"),
        "'hello' in .: 1 file matches\nb.txt",
    ),
    (
        GrepParams("t", head_limit=1),
        "'t' in .: 1 file matches\nb.txt:1: hello two\n[truncated]",
    ),
    (RmParams("b.txt"), "removed b.txt (file)"),
    (RmParams("src"), "removed src (directory, 1 files)"),
    (MoveParams("b.txt", "c.txt"), "moved b.txt to c.txt"),
    (MkdirParams("d"), "d/ created"),
    (MkdirParams("src"), "src/ exists already"),
    (StatParams("b.txt"), "b.txt (file, 10 bytes)"),
    (TreeParams(), ".:\nempty/\nsrc/\n  a.py (14 bytes)\nb.txt (10 bytes)"),
]
CHANGES: list[Any] = [
    EditFileParams("src/a.py", "two", "2"),
    EditFileParams("src/a.py", "two", "2", dry_run=True),
    InsertTextParams("src/a.py", 1, "x\n"),
    ApplyPatchParams(PATCH),
]


@pytest.fixture
def fs() -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    fs.write("src/a.py", "one\ntwo\nthree\n")
    fs.write("b.txt", "hello two\n")
    fs.mkdir("empty")
    return fs


def handle(fs: InMemoryFilesystem, request: Any) -> Any:
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    return HandlerContext(context, fs, ToolSettings(), handlers=HANDLERS).handle(request)


@pytest.mark.parametrize(("request_", "text"), SHOWN)
def test_a_result_value_shows_what_was_done(fs: InMemoryFilesystem, request_: Any, text: str):
    assert handle(fs, request_).value.render() == text


@pytest.mark.parametrize("request_", CHANGES)
def test_a_changed_file_is_shown_with_its_difference(fs: InMemoryFilesystem, request_: Any):
    value = handle(fs, request_).value
    assert value.render().endswith(value.diff)
    assert f"modified {value.changes[0].path}" in value.render()
    assert value.render().startswith("not applied:") != value.applied


def test_several_files_are_shown_one_after_the_other(fs: InMemoryFilesystem):
    text = handle(fs, ReadManyParams(("b.txt", "zz"))).value.render()
    assert text.startswith("b.txt (1 to 1 of 1)\nhello two\n")
    assert "No such file" in text


def test_every_public_result_can_be_shown():
    module = weakincentives.contrib.tools
    named = [each for each in module.__all__ if each.endswith(("Result", "Change", "Count"))]
    results = [getattr(module, each) for each in named]
    # what an evaluation says depends on its engine: `render_result` has that text
    own = [each for each in results if each.__module__.startswith(f"{module.__name__}.")]
    assert len(own) > 12
    assert [each for each in own if not callable(each.render)] == []


@pytest.mark.parametrize("request_", [*(each for each, _ in SHOWN), *CHANGES])
def test_the_model_is_told_the_message_and_not_the_value_too(fs: InMemoryFilesystem, request_: Any):
    result = handle(fs, request_)
    assert result.render() == result.message


CALLS: list[tuple[str, dict[str, Any], str]] = [
    (
        "list_directory",
        {},
        '{"path":".","directories":["empty","src"],"files":["b.txt"],"truncated":false}',
    ),
    ("read_file", {"path": "b.txt"}, "b.txt (utf-8, 10 bytes, version 1)\nhello two\n"),
    ("write_file", {"path": "n.txt", "content": "x"}, "n.txt: 1 bytes (create, utf-8)"),
    (
        "write_file",
        {"path": "n.bin", "content": "AAE=", "encoding": "binary"},
        "n.bin: 2 bytes (create, binary)",
    ),
    ("delete_file", {"path": "src"}, "removed src"),
]


@pytest.mark.parametrize(("name", "arguments", "text"), CALLS)
def test_values_of_the_classic_dialect_can_be_shown(
    fs: InMemoryFilesystem, name: str, arguments: dict[str, Any], text: str
):
    tool = {each.name: each for each in filesystem_tools("classic")}[name]
    assert tool.handler is not None
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    value: Any = tool.handler(tool.parse(arguments), context=context).value
    assert isinstance(value, Renderable)
    assert value.render() == text


def test_binary_content_is_shown_as_base64(fs: InMemoryFilesystem):
    fs.write_bytes("data", b"\0\1")
    tool = {each.name: each for each in filesystem_tools("classic")}["read_file"]
    assert tool.handler is not None
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    value: Any = tool.handler(tool.parse({"path": "data"}), context=context).value
    assert value.render() == "data (binary, 2 bytes, version 1)\nAAE="


def test_a_command_is_shown_with_its_end_and_its_output():
    done = ExecResult(("ls", "a b"), 2, Output(b"out\n"), Output(b"err\n"))
    assert done.render() == "ls 'a b': exit code 2\nout\n\n[standard error]\nerr\n"
    assert ExecResult(("sleep",), 124, timed_out=True).render() == "sleep: timed out"


def test_002_values_are_made_as_they_are_written_there():
    path = vfs.VfsPath(("src", "main.py"))
    assert vfs.ListDirectory().path is None
    assert vfs.ListDirectory(path=path).path == vfs.ReadFile(path=path).path == path
    written = vfs.WriteFile(path=path, content=b"x")
    assert (written.mode, written.encoding) == ("create", "utf-8")
    assert vfs.DeleteFile(path=path).path == path
    assert is_dataclass(vfs.FileReadResult)
    assert "append" in vfs.WriteMode.__args__
    encoding: vfs.FileEncoding = "utf-8"
    assert encoding == written.encoding
