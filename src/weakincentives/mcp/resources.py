"""Resources of a workspace: its files, diffs of its states, and the log of its calls.

`file:` URIs are files by their absolute path, as the client knows them. `wink://diff/NAME` is a
diff since the start, a checkpoint or the state before a call, and `wink://log` lists the calls.
"""

import base64
import mimetypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, cast
from urllib.parse import unquote

from mcp import types

from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, GlobMatch, IgnoreAware
from weakincentives.filesystem.base import is_tool_output
from weakincentives.mcp.clients import McpClient, path_of
from weakincentives.posix import display_path
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session

LOG = "wink://log"
"""The URI of the log."""
DIFF = "wink://diff/"
"""The beginning of the URIs of diffs; the name of a state follows."""
MAX_MEDIA = 5 * 1024 * 1024
"""Bytes of the largest binary file in one answer."""
_REGISTERED = {"audio/x-wav": "audio/wav", "audio/x-aiff": "audio/aiff"}
_PAGE = 500
_MAX_LOG = 5_000
_MAX_NAME = 64  # characters of a tool, which the client chose
_MAX_PATHS = 20  # of one call in the log
# a method called `list` hides the builtin
_Resources: TypeAlias = list[types.Resource]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceResources:
    """The resources of a workspace, for the clients that may see them."""

    filesystem: Filesystem
    uri: Callable[[str], str]
    """Returns the URI of a file."""
    session: Session
    """Records the calls."""
    resolve: Callable[[str], str]
    """Returns the workspace path for an absolute path of a client."""
    is_visible: Callable[[McpClient, str], bool]
    """Returns whether a client may see a path."""
    diff: Callable[[McpClient, str], str] | None
    """Returns the diff of a state that a client names; None if there are no states."""

    def owns(self, uri: str) -> bool:
        """Return whether a resource belongs to the workspace."""
        return uri.startswith(("wink://", self.uri("")))

    # --- listing and reading ---

    def list(self, client: McpClient, cursor: str | None) -> types.ListResourcesResult:
        """Return a page of the resources: diffs and log first, then files by path.

        Raises:
            ToolValidationError: The cursor is not one of ours.
        """
        last = _decode_cursor(cursor)
        visible = (
            path
            for path in self._paths()
            if (last is None or path > last) and self.is_visible(client, path)
        )
        paths = [path for path, _ in zip(visible, range(_PAGE + 1), strict=False)]
        resources = self._own() if last is None else []
        resources += [
            types.Resource(name=display_path(path), uri=self.uri(path), mime_type=mime_type(path))
            for path in paths[:_PAGE]
        ]
        more = _encode_cursor(paths[_PAGE - 1]) if len(paths) > _PAGE else None
        return types.ListResourcesResult(resources=resources, next_cursor=more)

    def templates(self) -> types.ListResourceTemplatesResult:
        """Return how further URIs are made."""
        file = types.ResourceTemplate(
            name="file",
            title="File",
            uri_template=self.uri("").rstrip("/") + "/{+path}",
            description="A file of the workspace, by its path.",
        )
        diff = types.ResourceTemplate(
            name="diff",
            title="Diff",
            uri_template=DIFF + "{name}",
            description="What has changed since a state: start, a checkpoint, or a call by number.",
            mime_type="text/x-diff",
        )
        return types.ListResourceTemplatesResult(
            resource_templates=[file] if self.diff is None else [file, diff]
        )

    def read(self, client: McpClient, uri: str) -> types.ReadResourceResult:
        """Return the content of a resource.

        Raises:
            FileNotFoundError: There is no such resource.
            OSError: A file cannot be read.
            ValueError: A file is too large, or the URI is invalid.
        """
        if uri == LOG:
            return _text_result(uri, "\n".join(self._describe_calls(client)), "text/plain")
        if uri.startswith(DIFF) and self.diff is not None:
            name = unquote(uri.removeprefix(DIFF))
            return _text_result(uri, self.diff(client, name), "text/x-diff")
        return self._read_file(client, uri)

    def _read_file(self, client: McpClient, uri: str) -> types.ReadResourceResult:
        name = path_of(uri)
        if name is None:
            raise FileNotFoundError(f"There is no resource {display_path(uri)!r}")
        path = self.resolve(name)
        if not self.is_visible(client, path):
            raise PermissionError(f"{display_path(path)!r} is outside the roots of this client")
        size = self.filesystem.stat(path).size_bytes
        if size > MAX_MEDIA:
            raise ValueError(
                f"{display_path(path)!r} has {size:,} bytes, more than the {MAX_MEDIA:,} of a"
                " resource; read it in parts with a tool"
            )
        data = self.filesystem.read_bytes(path).content
        kind = mime_type(path)
        try:
            return _text_result(uri, data.decode("utf-8"), kind if "/" in kind else "text/plain")
        except UnicodeDecodeError:
            blob = base64.b64encode(data).decode()
            contents = types.BlobResourceContents(uri=uri, mime_type=kind, blob=blob)
            return types.ReadResourceResult(contents=[contents])

    def _own(self) -> _Resources:
        log = types.Resource(
            name="log",
            title="Log of the calls",
            uri=LOG,
            description="All calls since the start, with their client, result and time.",
            mime_type="text/plain",
        )
        diff = types.Resource(
            name="diff",
            title="All changes",
            uri=f"{DIFF}start",
            description="What has changed since the start, as a unified diff.",
            mime_type="text/x-diff",
        )
        return [log] if self.diff is None else [diff, log]

    def _paths(self) -> Iterable[str]:
        files = cast("object", self.filesystem)  # its own `glob` has fewer parameters
        if isinstance(files, IgnoreAware):
            found: Iterable[GlobMatch] = files.glob("**/*", use_ignore_files=True)
        else:
            found = self.filesystem.glob("**/*")
        # links are not followed, so they cannot be read
        return sorted(each.path for each in found if each.is_file and not is_tool_output(each.path))

    def _describe_calls(self, client: McpClient) -> Iterator[str]:
        """Yield a line for each call of a client, with the paths that the reader may see."""
        for call in self.session[ToolInvoked].all()[-_MAX_LOG:]:
            space, _, name = (call.prompt_name or "").partition(":")
            if space == client.ns:
                when = call.created_at.isoformat(timespec="milliseconds")
                how = "ok" if call.success else "failed"
                tool = display_path(call.tool[:_MAX_NAME])
                paths = [display_path(path) for path in call.paths if self.is_visible(client, path)]
                what = f": {', '.join(paths[:_MAX_PATHS])}" if paths else ""
                yield f"{when} {name} {tool} {how}, {call.duration_ms:.0f} ms{what}"


def mime_type(path: str) -> str:
    """Return the MIME type that a file's name suggests."""
    found = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return _REGISTERED.get(found, found)


def _text_result(uri: str, text: str, kind: str) -> types.ReadResourceResult:
    contents = types.TextResourceContents(uri=uri, mime_type=kind, text=text)
    return types.ReadResourceResult(contents=[contents])


def _encode_cursor(path: str) -> str:
    return base64.urlsafe_b64encode(path.encode("utf-8", "surrogateescape")).decode()


def _decode_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        data = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True)
        return data.decode("utf-8", "surrogateescape")
    except ValueError:
        raise ToolValidationError(f"Unknown cursor: {cursor[:100]!r}") from None
