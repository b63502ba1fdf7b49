"""One self-contained HTML file of a session, to send: the page, its code and its data.

The data is compressed JSON in base64, so nothing in it can be markup. The content security
policy of the file names the hashes of its own script and style; nothing else runs or loads.
"""

import gzip
import hashlib
import os
import re
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

from weakincentives.debug.content import image_data
from weakincentives.debug.recording import RecordedSession, Recording
from weakincentives.debug.views import NO_CHANGES, SessionView, list_tree
from weakincentives.gitstore import ObjectError
from weakincentives.runtime.timeline import TimelineError
from weakincentives.serde import encode

PAGE = Path(__file__).parent / "page"
MODULES = (
    "dom",
    "format",
    "route",
    "data",
    "graph",
    "code",
    "prose",
    "talk",
    "summary",
    "timeline",
    "files",
    "step",
    "search",
    "compare",
    "keys",
    "app",
)
"""The scripts of the page, each after those that it imports."""
MAX_EXPORT = 64 * 1024 * 1024
"""Bytes of content in one export, before compression; what exceeds them is left out."""
_HIGHLIGHT_SECONDS = 10.0  # then the rest is plain
_MAX_FILE = 512 * 1024
_STYLE = '<link rel="stylesheet" href="/static/style.css">'
_SCRIPT = '<script type="module" src="/static/app.js"></script>'
_PRELOAD = re.compile(r'^<link rel="modulepreload".*>\n', re.MULTILINE)
_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def export_page(
    session: RecordedSession, target: str | os.PathLike[str], *, show_secrets: bool = False
) -> int:
    """Write a session as one HTML file that only its owner can read; return its size.

    Args:
        session: The session.
        target: The file; it must not exist.
        show_secrets: Keep what looks like a key or password. By default it is masked.

    Raises:
        FileExistsError: The target exists.
        RecordingError: The session cannot be read.
    """
    data = render_page(session, show_secrets=show_secrets)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return len(data)


def render_page(session: RecordedSession, *, show_secrets: bool = False) -> bytes:
    """Return a session as one HTML file.

    Raises:
        RecordingError: The session cannot be read.
    """
    view = SessionView(session, session.open(), masks=not show_secrets)
    data = gzip.compress(encode(_Content(view).collect()), mtime=0)
    style = (PAGE / "style.css").read_text("utf-8")
    script = bundle()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = _PRELOAD.sub("", (PAGE / "index.html").read_text("utf-8"))
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = (
        f'<script type="text/plain" id="data">{b64encode(data).decode()}</script>\n'
        f'<script type="module">{script}</script>\n</body>'
    )
    page = page.replace(_SCRIPT, "").replace(_STYLE, head).replace("</body>", body)
    return page.encode()


def bundle() -> str:
    """Return the scripts of the page as one module."""
    parts = ((PAGE / f"{name}.js").read_text("utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", part)) for part in parts)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


class _Content:
    """Everything that the page asks for, as one value."""

    def __init__(self, view: SessionView) -> None:
        self._view = view
        self._recording: Recording = view.recording
        self._contents: dict[str, Any] = {}
        self._room = MAX_EXPORT
        self._stop = time.monotonic() + _HIGHLIGHT_SECONDS

    def collect(self) -> dict[str, Any]:
        view = self._view
        numbers = [each.number for each in self._recording.steps]
        # what steps changed is worth more than the rest, if there is no room for all
        changes = {number: self._changes(number) for number in numbers[1:]}
        diffs = {str(each): self._diff(each) for each in numbers}
        return {
            "session": view.summary(),
            "steps": view.rows(),
            "details": {str(number): self._step(number) for number in numbers},
            "commands": view.commands("\0"),  # what no path has stands for the step
            "diffs": diffs,
            "runs": {name: self._run(name) for name in self._recording.branches},
            "changes": {str(n): found for n, found in ({1: self._first()} | changes).items()},
            "contents": self._contents,
        }

    def _step(self, number: int) -> dict[str, Any]:
        step = self._view.step(number, formats=self._has_time())
        return {
            name: each for name, each in step.items() if name != "commands" and each is not None
        }

    def _run(self, branch: str) -> dict[str, Any]:
        run = self._view.run(branch)
        return run | {"diff": self._diff(run["end"], 1)}

    def _diff(self, number: int, base: int | None = None) -> dict[str, Any]:
        """Return what a step changed; nothing if that is lost, which the summary says."""
        try:
            return self._view.diff(number, base, colours=self._has_time())
        except (TimelineError, ObjectError):
            return {"base": base or number, "step": number, **NO_CHANGES}

    def _has_time(self) -> bool:
        return time.monotonic() < self._stop

    def _first(self) -> dict[str, Any]:
        """Return the files at the first step, as changes to nothing."""
        try:
            files = self._recording.files(1)
        except TimelineError:  # it is lost
            return {"removed": [], "entries": []}
        entries = [
            (path, kind, size, self._keep(1, path, files.content_hash(path), size))
            if kind == "f"
            else (path, kind, size, None)
            for path, kind, size in list_tree(files)["entries"]
        ]
        return {"removed": [], "entries": self._view.clean(entries)}

    def _changes(self, number: int) -> dict[str, Any]:
        changes = self._recording.step(number).files
        entries = [
            (
                path,
                "l" if now.kind == "symlink" else now.kind[0],
                max(now.size, 0),
                self._keep(number, path, now.blob, now.size) if now.kind == "file" else None,
            )
            for path, now in ((each.path, each.after) for each in changes)
            if now.kind != "absent"
        ]
        removed = [each.path for each in changes if each.after.kind == "absent"]
        return {"removed": self._view.clean(removed), "entries": self._view.clean(entries)}

    def _keep(self, number: int, path: str, digest: str | None, size: int) -> str | None:
        """Return the key of a file's content, after storing it if there is room."""
        if digest is None:
            return None
        key = f"{digest[:16]}{hashlib.sha256(path.encode('utf-8', 'replace')).hexdigest()[:8]}"
        if key in self._contents:
            return key
        if size > _MAX_FILE or self._room <= 0:
            return None
        try:
            found = self._view.file(number, path, colours=self._has_time())
            if found["kind"] == "image":
                found["data"] = image_data(self._recording.files(number), path, _MAX_FILE)
        except (TimelineError, ObjectError):  # it was in a step that is lost
            return None
        if self._view.masks:
            found.pop("hex", None)  # bytes cannot be masked
        self._room -= len(encode(found))
        self._contents[key] = found
        return key
