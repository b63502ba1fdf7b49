"""What each client knows about files, so that it does not overwrite what it does not know."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import Any, TypeAlias

from weakincentives.adapters import CheckedCall, Policy
from weakincentives.contrib.tools import WriteFileParams
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import make_diff
from weakincentives.contrib.tools.handlers.write import write_file
from weakincentives.errors import SnapshotError, ToolValidationError
from weakincentives.filesystem import Filesystem, FilesystemSnapshot
from weakincentives.mcp.clients import put_newest
from weakincentives.mcp.history import History
from weakincentives.posix import display_path
from weakincentives.prompt import ToolAccess, ToolResult

_MAX_CALLS = 64  # that run, or have failed
_MAX_FILES = 10_000  # whose content is known
_MAX_HASHED = 64 * 1024 * 1024  # bytes of a file whose content is compared
_MAX_DIFF = 3_000  # characters
_Known: TypeAlias = str | FilesystemSnapshot
"""The hash of the content that a client knows, or a state that has it: it costs nothing to note."""


class KnownFiles(Policy):
    """What clients have last read or written, so that they do not overwrite what they do not know.

    A file that somebody has changed since is not overwritten. One that the client has never read
    is: what was there is kept as a step. Content decides, not the time. Thread-safe.
    """

    def __init__(self, history: History | None) -> None:
        """Know nothing; `history` has the states around each call."""
        self._history = history
        self._lock = Lock()
        self._known: OrderedDict[tuple[object, str], _Known] = OrderedDict()
        # the content before each call: what is saved while it runs is not known to its client
        self._before: OrderedDict[str, Mapping[str, str | None]] = OrderedDict()

    def allow(self, call: CheckedCall) -> str | None:
        """Note the content of what a call reads, and of what it changes if no step will have it."""
        client, files = call.context.prompt, call.context.filesystem
        if call.access is not None and files is not None:
            paths = {*call.access.reads}
            if self._history is None or not self._history.has_changes:
                paths |= {path for path in call.access.paths if (client, path) in self._known}
            before = {path: _content_hash(files, path) for path in paths}
            with self._lock:
                put_newest(self._before, call.call.call_id, before, _MAX_CALLS)
        return None

    def record(self, call: CheckedCall, changed: Sequence[str]) -> None:
        """Note what the client knows after a call.

        If it has changed a file that somebody else had changed, it does not know all of it.
        """
        access, files = call.access or ToolAccess(), call.context.filesystem
        assert files is not None
        with self._lock:
            before = self._before.pop(call.call.call_id, {})
        found: dict[str, _Known | None] = {path: before.get(path) for path in access.reads}
        step = None if self._history is None else self._history.current_step
        for path in changed:
            known = self._known.get((call.context.prompt, path))
            replaced = before.get(path) if step is None else step.before
            if path in access.writes if known is None else self._is_same(path, known, replaced):
                found[path] = _content_hash(files, path) if step is None else step.after
        with self._lock:
            for path, content in found.items():
                key = call.context.prompt, path
                self._known.pop(key, None)
                if content is not None:
                    put_newest(self._known, key, content, _MAX_FILES)

    def write_file(self, request: WriteFileParams, context: HandlerContext) -> ToolResult[Any]:
        """Handle a request to write a file.

        Raises:
            ToolValidationError: Somebody has changed the file since the client knew it.
            StaleContentError: Somebody saves it at this moment.
        """
        path = context.resolve_path(request.file_path)
        known = self._hash(path, self._known.get((context.tool_context.prompt, path)))
        expected: bytes | None = None
        if known is not None and request.mode == "overwrite":
            with suppress(FileNotFoundError):  # nothing is there that could be lost
                expected = context.filesystem.read_bytes(path).content
                if sha256(expected).hexdigest() != known:
                    raise ToolValidationError(self._describe(path, known, expected))
        return write_file(request, context, expected=expected)

    def _is_same(self, path: str, known: _Known, replaced: _Known | None) -> bool:
        """Return whether a call has replaced what its client knew; True if that is unknown."""
        if replaced is None or replaced is known:
            return True
        return self._hash(path, replaced) == self._hash(path, known)

    def _hash(self, path: str, known: _Known | None) -> str | None:
        if not isinstance(known, FilesystemSnapshot):
            return known
        assert self._history is not None  # it has made the state
        try:
            return _content_hash(self._history.view(known), path)
        except SnapshotError:  # pruned
            return None

    def _describe(self, path: str, known: str, present: bytes) -> str:
        """Return the reason not to write, with what has changed if that can be found."""
        text = (
            f"{display_path(path)!r} was changed by the user or another program since you last read"
            " or wrote it; nothing was written. Read it again, then repeat the call"
        )
        for data in () if self._history is None else self._history.find_contents(path):
            if sha256(data).hexdigest() == known:
                found = make_diff(path, data, present).text
                return f"{text}. What has changed:\n{found[:_MAX_DIFF]}"
        return text


def _content_hash(files: Filesystem, path: str) -> str | None:
    """Return the hash of a file; None if there is none, or if it is too large to be read twice."""
    try:
        found = files.stat(path)
        return found.content_hash if found.size_bytes <= _MAX_HASHED else None
    except (OSError, ValueError):
        return None
