"""The dialect `classic` end to end: what four tools over whole files return to programs."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.dialects.replay import Replay, tree
from weakincentives.contrib.tools import filesystem_tools
from weakincentives.contrib.tools.dialects import DeleteFile, FileReadResult, WriteFile
from weakincentives.contrib.tools.file_projection import ProjectionUpdater
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    InMemoryFilesystem,
    VfsPath,
)
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session
from weakincentives.serde import decode, encode


@pytest.fixture(params=["memory", "host"])
def classic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replay]:
    if request.param == "memory":
        yield Replay("classic", InMemoryFilesystem())
        return
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as files:
        yield Replay("classic", files)


def test_a_directory_is_listed_as_a_summary_that_json_can_hold(classic: Replay):
    for path in ("src/b.py", "src/a.py", "src/deep/c.py"):
        classic.files.write(path, "x\n")
    value = classic.call("list_directory", {"path": "src"}).result.value
    assert value == {
        "path": "src",
        "directories": ["deep"],
        "files": ["a.py", "b.py"],
        "truncated": False,
    }
    assert decode(encode(value), dict[str, object]) == value


def test_the_root_is_listed_without_a_path(classic: Replay):
    classic.files.write("a.py", "x\n")
    value: Any = classic.call("list_directory", {}).result.value
    assert (value["path"], value["files"]) == (".", ["a.py"])


def test_a_file_cannot_be_listed(classic: Replay):
    classic.files.write("a.py", "x\n")
    assert not classic.call("list_directory", {"path": "a.py"}).result.success


def test_a_text_is_read_with_its_bytes_and_what_is_known_about_it(classic: Replay):
    content = "one\r\ntwo\u2028\r\nthree".encode()
    classic.files.write_bytes("src/a.txt", content)
    result = classic.call("read_file", {"path": "src/a.txt"}).result
    value = result.value
    assert isinstance(value, FileReadResult)
    assert value.content == content
    assert str(value.file.path) == "src/a.txt"
    assert (value.file.encoding, value.file.size_bytes, value.file.version) == (
        "utf-8",
        len(content),
        1,
    )
    assert value.file.updated_at.utcoffset() == UTC.utcoffset(None)
    assert "three" in result.message


def test_what_is_binary_is_read_as_base64(classic: Replay):
    content = bytes(range(256)) * 3
    classic.files.write_bytes("data.bin", content)
    outcome = classic.call("read_file", {"path": "data.bin"})
    assert isinstance(outcome.result.value, FileReadResult)
    assert outcome.result.value.content == content
    assert outcome.result.value.file.encoding == "binary"
    assert b64encode(content).decode() in outcome.text.replace("\n", "")
    assert b64encode(content) in encode(outcome.result.value)


def test_a_long_file_is_read_in_pages(classic: Replay):
    classic.files.write("long.txt", "".join(f"{each}\n" for each in range(2500)))
    first = classic.call("read_file", {"path": "long.txt"})
    assert "read_file with path='long.txt', offset=2000" in first.text
    rest: Any = classic.call("read_file", {"path": "long.txt", "offset": 2000}).result.value
    assert rest.content == b"".join(b"%d\n" % each for each in range(2000, 2500))


def test_the_version_is_the_one_that_the_session_knows(classic: Replay):
    assert isinstance(classic.files, BaseFilesystem)
    updater = ProjectionUpdater(classic.session, classic.files)
    for mode in ("create", "overwrite", "append"):
        arguments = {"path": "a.txt", "content": f"{mode}\n", "mode": mode}
        assert classic.call("write_file", arguments).result.success
    outcome = classic.call("read_file", {"path": "a.txt"})
    value: Any = outcome.result.value
    assert value.file.version == 3
    assert "version 3" in outcome.text
    updater.close()


def test_what_was_written_is_returned(classic: Replay):
    text = classic.call("write_file", {"path": "a/b.txt", "content": "h\u00e9\n"}).result.value
    assert text == WriteFile(VfsPath(("a", "b.txt")), "h\u00e9\n".encode(), "create", "utf-8")
    data = b"\x00\xff"
    arguments = {"path": "c.bin", "content": b64encode(data).decode(), "encoding": "binary"}
    value = classic.call("write_file", arguments).result.value
    assert value == WriteFile(VfsPath(("c.bin",)), data, "create", "binary")
    assert classic.files.read_bytes("c.bin").content == data


@pytest.mark.parametrize("content", ["h\u00e9\r\n".encode(), b"\xff\x00", b""])
@pytest.mark.parametrize("encoding", ["utf-8", "binary", "latin-1", None])
def test_a_program_may_pass_bytes_as_the_specification_has_them(
    classic: Replay, content: bytes, encoding: str | None
):
    tool = next(each for each in filesystem_tools("classic") if each.name == "write_file")
    context = ToolContext(None, None, None, Session(), filesystem=classic.files)
    assert tool.handler is not None
    call = WriteFile(VfsPath(("a", "b")), content, "create", encoding)
    result = tool.handler(call, context=context)
    assert result.value is not None
    assert (result.value.path, result.value.content) == (call.path, content)
    tool.handler(replace(call, mode="append"), context=context)
    assert classic.files.read_bytes("a/b").content == content * 2
    assert tool.access is not None
    assert tool.access(call, context).writes == ("a/b",)


def test_content_that_is_not_base64_is_refused(classic: Replay):
    arguments = {"path": "c.bin", "content": "not base64!", "encoding": "binary"}
    outcome = classic.call("write_file", arguments)
    assert not outcome.result.success
    assert "base64" in outcome.text
    assert tree(classic.files) == {}


def test_bytes_count_after_decoding(classic: Replay):
    fits = {"path": "a", "content": b64encode(b"x" * 48_000).decode(), "encoding": "binary"}
    assert classic.call("write_file", fits).result.success
    over = {"path": "b", "content": b64encode(b"x" * 48_001).decode(), "encoding": "binary"}
    assert not classic.call("write_file", over).result.success


def test_deleting_returns_what_was_asked_and_takes_a_whole_directory(classic: Replay):
    for path in ("a/x", "a/b/y", "ab"):
        classic.files.write(path, "")
    assert classic.call("delete_file", {"path": "a"}).result.value == DeleteFile("a")
    assert tree(classic.files) == {"ab": b""}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "caf\u00e9", "a/\u202eb"])
@pytest.mark.parametrize("tool", ["list_directory", "read_file", "write_file", "delete_file"])
def test_paths_are_strict(classic: Replay, tool: str, path: str):
    arguments = {"path": path} | ({"content": "x"} if tool == "write_file" else {})
    outcome = classic.call(tool, arguments)
    assert not outcome.result.success
    assert "Path" in outcome.text
    assert tree(classic.files) == {}


def test_the_bytes_of_a_long_line_are_not_offered():
    replay = Replay("classic", InMemoryFilesystem())
    replay.files.write("a.txt", "x" * 9_000)
    told = replay.call("read_file", {"path": "a.txt"}).text
    assert "line 1 is too long to show in full]" in told
