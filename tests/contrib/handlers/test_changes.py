"""Changes by any request: other bytes are preserved, failures change nothing, on every backend."""

import errno
import json
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contrib.corpus import generate
from tests.contrib.corpus.handmade import LANDS, REFUSALS, Lands
from tests.contrib.handlers.calls import Tree, Workspace, make, make_context, tree_of
from weakincentives.contrib.tools.handlers.move import move
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    InsertTextParams,
    MkdirParams,
    MoveParams,
    RmParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.filesystem import BaseFilesystem, InMemoryFilesystem
from weakincentives.filesystem.text import Content

_PIECES = [b"a", b"  b = c", b"\t", b"\r\n", b"\n", b"\r", b"\xff\x80", b"\xc3", "é\u2028".encode()]
_BYTES = st.lists(st.sampled_from(_PIECES), max_size=30).map(b"".join)
_MARK = "<<the place>>"


@given(st.sampled_from([b"", b"\xef\xbb\xbf"]), _BYTES, _BYTES, st.sampled_from(["", "x", "x = 1"]))
def test_bytes_outside_an_edit_never_change(mark: bytes, before: bytes, after: bytes, new: str):
    fs = InMemoryFilesystem()
    fs.write_bytes("a", mark + before + _MARK.encode() + after)
    Workspace(fs).done(EditFileParams("a", _MARK, new))
    assert fs.read_bytes("a").content == mark + before + new.encode() + after


_PATHS = st.sampled_from(
    ["a", "b.py", "dir", "dir/c", "dir/new/d", "dir2", ".", "../x", "ä", "a/e"]
)
_TEXTS = st.sampled_from(["", "one", "one\n", "two\r\nthree\n", "one\ntwo\n", "x" * 100])
_MODES = st.sampled_from(["create", "overwrite", "append"])


def _patch(parts: Sequence[tuple[str, str, str]]) -> ApplyPatchParams:
    lines = ["*** Begin Patch"]
    for kind, path, goal in parts:
        lines.append(f"*** {kind} File: {path}")
        if kind == "Add":
            lines.append("+added")
        elif kind == "Update":
            lines += [f"*** Move to: {goal}"] if goal else []
            lines += ["@@", "-one", "+ONE"]
    return ApplyPatchParams("\n".join([*lines, "*** End Patch"]))


_PARTS = st.tuples(st.sampled_from(["Add", "Update", "Delete"]), _PATHS, st.just("") | _PATHS)
_REQUESTS = st.one_of(
    st.builds(WriteFileParams, _PATHS, _TEXTS, _MODES),
    st.builds(EditFileParams, _PATHS, _TEXTS, _TEXTS, st.booleans(), dry_run=st.booleans()),
    st.builds(
        EditFileParams,
        _PATHS,
        edits=st.lists(st.builds(TextEdit, _TEXTS, _TEXTS), max_size=3).map(tuple),
    ),
    st.builds(InsertTextParams, _PATHS, st.integers(-1, 3), _TEXTS),
    st.builds(RmParams, _PATHS),
    st.builds(MoveParams, _PATHS, _PATHS),
    st.builds(MkdirParams, _PATHS),
    st.builds(_patch, st.lists(_PARTS, min_size=1, max_size=3)),
)


def _changed(workspace: Workspace, request: Any) -> tuple[bool, str, Tree]:
    """Make a call; if it fails, nothing may have changed."""
    before = tree_of(workspace.fs)
    outcome = workspace.call(request)
    after = tree_of(workspace.fs)
    assert outcome.text
    assert outcome.result.success or after == before
    return outcome.result.success, outcome.text, after


@settings(max_examples=60)
@given(st.lists(_REQUESTS, min_size=1, max_size=8))
def test_every_backend_does_and_says_the_same(requests: list[Any]):
    with TemporaryDirectory() as name, make("host", Path(name)) as host, InMemoryFilesystem() as fs:
        for each in (host, fs):
            for path in ("a", "b.py", "dir/c"):
                each.write(path, "one\ntwo\n")
        on_host, in_memory = Workspace(host), Workspace(fs)
        for request in requests:
            assert _changed(on_host, request) == _changed(in_memory, request)


class _WithoutSavepoints(InMemoryFilesystem):
    """A backend of the primitives alone, which counts how often a file is read."""

    reads = 0

    savepoint: Any = None

    def _open(self, path: str) -> Content:
        self.reads += 1
        return super()._open(path)


@pytest.mark.parametrize(
    "request_", [EditFileParams("a", "one", "ONE"), MoveParams("a", "moved")], ids=["edit", "move"]
)
def test_without_savepoints_only_the_files_that_change_are_recorded(request_: Any):
    fs = _WithoutSavepoints()
    for number in range(50):
        fs.write(f"dir/{number}", "other")
    fs.write("a", "one\n")
    fs._make_link("link", "dir")
    fs.reads = 0
    outcome = Workspace(fs).call(request_)
    assert outcome.result.success, outcome.text
    assert fs.reads < 20


class _WithoutMoves(_WithoutSavepoints):
    """A backend that moves by copying, and cannot remove a source."""

    def _move(self, source: str, destination: str) -> None:
        BaseFilesystem._move(self, source, destination)

    def _copy(self, source: str, destination: str) -> None:
        BaseFilesystem._copy(self, source, destination)

    def _remove(self, path: str) -> None:
        if path == "dir":
            raise OSError(errno.EIO, "Disk failed", path)
        super()._remove(path)


def test_a_move_that_fails_halfway_leaves_no_copy():
    fs = _WithoutMoves()
    fs.write("dir/a", "1")
    before = tree_of(fs)
    with pytest.raises(OSError, match="Disk failed"):
        move(MoveParams("dir", "moved"), make_context(fs))
    assert tree_of(fs) == before


@pytest.mark.slow
def test_the_corpus_of_edits_lands_through_the_tool():
    stored = json.loads(generate.OUTPUT.read_text(encoding="utf-8"))
    landed = wanted = 0
    for case in stored["cases"]:
        text: str = stored["texts"][case["text"]]
        content = _after(text, EditFileParams("file", case["old"], case["new"]))
        if "span" in case:
            start, end = case["span"]
            wanted += 1
            landed += content == text[:start] + case["put"] + text[end:]
            assert content in (text, text[:start] + case["put"] + text[end:]), case
        else:
            assert content == text, case
    assert wanted > 300
    assert landed >= 0.97 * wanted


def test_the_edits_made_by_hand_land_through_the_tool():
    for case in (*LANDS, *REFUSALS):
        edits = tuple(TextEdit(old, new, case.replace_all) for old, new in case.edits)
        expected = case.text
        if isinstance(case, Lands) and not _is_refused(case):
            expected = case.content
        assert _after(case.text, EditFileParams("file", edits=edits)) == expected, case.name


def _is_refused(case: Lands) -> bool:
    """Return whether the tool refuses what the engine does: binary files, half characters."""
    new = "".join(new for _, new in case.edits)
    return "\0" in case.text or bool(re.search("[\ud800-\udfff]", new))


def _after(text: str, edit: EditFileParams) -> str:
    """Return what the tool makes of a text; what it refuses stays as it was."""
    fs = InMemoryFilesystem()
    fs.write("file", "")
    fs.replace_content("file", text.encode("utf-8", "surrogateescape"))
    success, _, tree = _changed(Workspace(fs), edit)
    content = tree["file"][1]
    assert isinstance(content, bytes)
    assert success == (content != text.encode("utf-8", "surrogateescape"))
    return content.decode("utf-8", "surrogateescape")
