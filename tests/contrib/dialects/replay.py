"""Replay one editing script in any dialect, with equivalents for requests that it lacks."""

import difflib
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from weakincentives.adapters import ToolCall, ToolExecutor, ToolOutcome
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    InsertTextParams,
    MoveParams,
    RmParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.contrib.tools.suite import create_dialect, filesystem_tools
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session
from weakincentives.serde import encode


class Replay:
    """Sends requests through the tools of one dialect."""

    def __init__(self, dialect: DialectName, files: Filesystem) -> None:
        self.files = files
        self.dialect = create_dialect(dialect)
        self.session = Session()
        context = ToolContext(None, None, None, self.session, filesystem=files)
        self.executor = ToolExecutor(filesystem_tools(dialect), context=context)
        self.texts: list[str] = []

    def play(self, *requests: object) -> None:
        """Send requests; each call must succeed."""
        for request in requests:
            for each in self._encodable(request):
                outcome = self.say(each)
                assert outcome.result.success, outcome.text

    def say(self, request: object) -> ToolOutcome:
        """Send a request as a call of the dialect."""
        call = self.dialect.encode(request)
        assert call is not None, request
        name, arguments = call
        return self.call(name, arguments)

    def call(self, name: str, arguments: Any) -> ToolOutcome:
        """Call a tool as a model does, with arguments as JSON."""
        outcome = self.executor.execute(ToolCall(name, encode(arguments).decode()))
        self.texts.append(outcome.text)
        return outcome

    def _encodable(self, request: Any) -> Iterator[object]:
        if self.dialect.encode(request) is not None:
            yield request
        elif isinstance(request, MoveParams):
            yield WriteFileParams(request.destination, self._text(request.source))
            yield RmParams(request.source)
        else:
            path = request.file_path
            yield from self._rewriting(
                path, self._text(path), apply_request(self._text(path), request)
            )

    def _rewriting(self, path: str, old: str, new: str) -> Iterator[object]:
        whole = WriteFileParams(path, new, "overwrite")
        if self.dialect.encode(whole) is not None:
            yield whole
        elif self.dialect.tool_name(ApplyPatchParams) is not None:
            yield ApplyPatchParams(make_diff(path, old, new))
        else:
            yield RmParams(path)
            yield WriteFileParams(path, new)

    def _text(self, path: str) -> str:
        return self.files.read_bytes(path).content.decode()


def apply_request(text: str, request: object) -> str:
    """Return the text after a request, computed by the simplest means."""
    match request:
        case EditFileParams(edits=()):
            edits = (
                TextEdit(request.old_string or "", request.new_string or "", request.replace_all),
            )
        case EditFileParams(edits=edits):
            pass
        case InsertTextParams(line=line, text=inserted):
            lines = text.splitlines(keepends=True)
            return "".join((*lines[:line], inserted, *lines[line:]))
        case WriteFileParams(mode="append", content=content):
            return text + content
        case WriteFileParams(content=content):
            return content
        case _:
            raise AssertionError(request)
    for edit in edits:
        assert edit.replace_all or text.count(edit.old_string) == 1, edit
        text = text.replace(edit.old_string, edit.new_string)
    return text


def make_diff(path: str, old: str, new: str) -> str:
    """Return a unified diff, as git writes it."""
    made: list[str] = []
    before, after = (text.splitlines(keepends=True) for text in (old, new))
    for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"):
        made += [line] if line.endswith("\n") else [line, "\n\\ No newline at end of file\n"]
    return "".join(made)


def tree(files: Filesystem, path: str = ".") -> dict[str, object]:
    """Return everything that is in a workspace, by path."""
    found: dict[str, object] = {}
    for entry in files.list(path):
        if entry.is_directory:
            found[entry.path] = "directory"
            found |= tree(files, entry.path)
        else:
            found[entry.path] = files.read_bytes(entry.path).content
    return found


def tree_hash(files: Filesystem) -> str:
    """Return one hash for everything that is in a workspace."""
    return sha256(repr(sorted(tree(files).items())).encode()).hexdigest()
