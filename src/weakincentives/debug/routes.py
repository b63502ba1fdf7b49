"""The routes of the debug server: the page, and everything that it shows as JSON."""

import os
import tempfile
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, quote

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from weakincentives.debug.content import image_type
from weakincentives.debug.export import render_page
from weakincentives.debug.recording import RecordedSession, RecordingError
from weakincentives.debug.store import SnapshotStore
from weakincentives.debug.views import SessionView, compare
from weakincentives.errors import WinkError
from weakincentives.filesystem import ReadableFilesystem
from weakincentives.filesystem.archive import export_archive
from weakincentives.serde import encode, to_builtins

PAGE = Path(__file__).parent / "page"
_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_INERT = "default-src 'none'; sandbox"
_MAX_RAW = 1024**3
_MAX_QUERY = 500
Parameters: TypeAlias = dict[str, str]
_Answer: TypeAlias = Callable[["SessionView", int, Parameters], Any]


class NotFoundError(WinkError, LookupError):
    """There is nothing to show under this address."""


class Routes:
    """Answers requests about the sessions of a store."""

    def __init__(self, store: SnapshotStore) -> None:
        """Show the sessions of `store`."""
        self._store = store
        self._summaries: dict[str, tuple[object, dict[str, Any]]] = {}
        self._views: dict[str, SessionView] = {}

    def all(self) -> list[Route]:
        """Return the routes."""
        steps: dict[str, _Answer] = {
            "": lambda view, n, _: view.step(n),
            "/tree": lambda view, n, _: view.tree(n),
            "/file": lambda view, n, given: view.file(
                n, _read_parameter(given, "path"), _read_number(given, "first", 0)
            ),
            "/diff": lambda view, n, given: view.diff(
                n, _read_number(given, "base") if "base" in given else None, given.get("path")
            ),
            "/messages": lambda view, n, given: view.messages(
                n, _read_number(given, "first") if "first" in given else None
            ),
            "/slices": lambda view, n, _: view.slices(n),
        }
        return [
            Route("/", _page),
            Route("/static/{name}", _static),
            Route("/api/sessions", self._handler(self._sessions)),
            Route("/api/run", self._session_handler(self._run)),
            Route("/api/steps", self._session_handler(self._steps)),
            *(
                Route(f"/api/steps/{{number:int}}{suffix}", self._step_handler(answer))
                for suffix, answer in steps.items()
            ),
            Route("/api/steps/{number:int}/raw", self._step_handler(_raw)),
            Route("/api/steps/{number:int}/archive", self._step_handler(_archive)),
            Route("/api/search", self._session_handler(self._search)),
            Route("/api/compare", self._handler(self._compare)),
            Route("/api/export", self._session_handler(_export)),
            Route("/api/filesystem/meta", self._handler(self._filesystem_meta)),
            Route("/api/filesystem/tree", self._handler(self._filesystem_tree)),
            Route("/api/filesystem/file", self._handler(self._filesystem_file)),
        ]

    def _handler(self, answer: Callable[[Parameters], Any]) -> Callable[[Request], Response]:
        def handle(request: Request) -> Response:
            try:
                found = answer(_parameters(request))
                return found if isinstance(found, Response) else _json(found)
            except (NotFoundError, RecordingError, FileNotFoundError) as error:
                return error_response(HTTPStatus.NOT_FOUND, _describe(error))
            except (WinkError, OSError, ValueError) as error:
                return error_response(HTTPStatus.BAD_REQUEST, _describe(error))

        return handle

    def _session_handler(
        self, answer: Callable[[RecordedSession, Parameters], Any]
    ) -> Callable[[Request], Response]:
        """Return a handler about one session, which no other thread uses meanwhile."""

        def respond(given: Parameters) -> Any:
            session = self._session(given)
            with session.lock:
                return answer(session, given)

        return self._handler(respond)

    def _step_handler(self, answer: _Answer) -> Callable[[Request], Response]:
        def respond(session: RecordedSession, given: Parameters) -> Any:
            view, number = self._view(session), int(given["number"])
            _check_step(view, number)
            return answer(view, number, given)

        return self._session_handler(respond)

    def _session(self, given: Parameters, key: str = "session") -> RecordedSession:
        return self._store.session(given.get(key))

    def _view(self, session: RecordedSession) -> SessionView:
        """Return the view of a session, which remembers the rows of its steps."""
        recording = session.open()
        known = self._views.get(session.name)
        if known is None or known.recording is not recording:
            known = self._views[session.name] = SessionView(session, recording)
        return known

    def _sessions(self, given: Parameters) -> Any:
        del given
        self._store.refresh()
        return [self._summary(each) for each in self._store.sessions]

    def _summary(self, session: RecordedSession) -> dict[str, Any]:
        """Return a session for the list; one that cannot be read says why.

        There may be hundreds, so it is read again only after a change, and not kept open.
        """
        with session.lock:
            known = self._summaries.get(session.name)
            version, was_open = session.version, session.is_open
            if known is not None and known[0] == version:
                return known[1]
            try:
                found = self._view(session).summary()
            except RecordingError as error:
                found = {"name": session.name, "steps": 0, "problem": str(error)}
            self._summaries[session.name] = version, found
            if not was_open:
                session.close()
                self._views.pop(session.name, None)
            return found

    def _steps(self, session: RecordedSession, given: Parameters) -> Any:
        view = self._view(session)
        return {"session": view.summary(), "steps": view.rows(_read_number(given, "since"))}

    def _run(self, session: RecordedSession, given: Parameters) -> Any:
        return self._view(session).run(given.get("branch"))

    def _search(self, session: RecordedSession, given: Parameters) -> Any:
        text = _read_parameter(given, "q")
        if not text.strip() or len(text) > _MAX_QUERY:
            raise ValueError(f"q must have 1 to {_MAX_QUERY} characters")
        view = self._view(session)
        number = _read_number(given, "step", len(view.recording.steps))
        _check_step(view, number)
        return view.search(text, number)

    def _compare(self, given: Parameters) -> Any:
        sessions = [self._session(given, key) for key in ("a", "b")]
        first, second = sorted(sessions, key=lambda each: each.name)
        with first.lock, second.lock:  # always in this order, or two requests block each other
            views = [self._view(each) for each in sessions]
            ends = [
                _read_number(given, f"{key}_step", view.end(given.get(f"{key}_branch")))
                for key, view in zip("ab", views, strict=True)
            ]
            for view, end in zip(views, ends, strict=True):
                _check_step(view, end)
            return compare(views[0], views[1], (ends[0], ends[1]))

    def _filesystem_meta(self, given: Parameters) -> Any:
        manifest = self._store.get_filesystem_manifest(self._session(given).name)
        if manifest is None:
            raise NotFoundError("This session has no files")
        return manifest

    def _filesystem_tree(self, given: Parameters) -> Any:
        return self._store.get_filesystem_tree(self._session(given).name)

    def _filesystem_file(self, given: Parameters) -> Any:
        path = _read_parameter(given, "path")
        content = self._store.get_filesystem_file(path, self._session(given).name)
        if content is None:
            raise NotFoundError(f"No such text file: {path!r}")
        return {"path": path, "content": content}


def _check_step(view: SessionView, number: int) -> None:
    count = len(view.recording.steps)
    if not 1 <= number <= count:
        raise NotFoundError(f"There is no step {number}: the session has steps 1 to {count}")


def _raw(view: SessionView, number: int, given: Parameters) -> Any:
    if "path" not in given:
        return to_builtins(view.recording.step(number))
    return _download(view.recording.files(number), given["path"])


def _archive(view: SessionView, number: int, given: Parameters) -> Response:
    del given
    descriptor, name = tempfile.mkstemp(prefix="wink-debug-", suffix=".zip")
    os.close(descriptor)
    place = Path(name)
    try:
        date = view.recording.step(number).created_at
        export_archive(view.recording.files(number), place, created_at=date)
    except BaseException:
        place.unlink()
        raise
    return FileResponse(
        place,
        filename=f"{view.name}-step-{number}.fs.zip",
        media_type="application/zip",
        background=BackgroundTask(place.unlink),
    )


def _export(session: RecordedSession, given: Parameters) -> Response:
    page = render_page(session, show_secrets=given.get("secrets") == "show")
    headers = {"Content-Disposition": _attachment(f"{session.name}.html")}
    return Response(page, media_type="application/octet-stream", headers=headers)


def _page(request: Request) -> Response:
    del request
    return FileResponse(PAGE / "index.html", media_type="text/html")


def _static(request: Request) -> Response:
    name = str(request.path_params["name"])
    kind = _STATIC_TYPES.get(PurePosixPath(name).suffix)
    if kind is None or name not in os.listdir(PAGE):  # noqa: PTH208 # names, not paths
        return error_response(HTTPStatus.NOT_FOUND, f"No such file: {name!r}")
    return FileResponse(PAGE / name, media_type=kind)


def _download(files: ReadableFilesystem, path: str) -> Response:
    """Return the bytes of a file so that a browser saves them, or shows a picture in a page."""
    found = files.stat(path)
    if found.size_bytes > _MAX_RAW:
        raise ValueError(f"File is larger than {_MAX_RAW:,} bytes; use the archive of the step")
    data = files.read_bytes(path).content
    return Response(
        data,
        media_type=image_type(path) or "application/octet-stream",
        headers={
            "Content-Security-Policy": _INERT,
            "Content-Disposition": _attachment(PurePosixPath(path).name),
        },
    )


def _attachment(name: str) -> str:
    return f"attachment; filename*=utf-8''{quote(name, safe='', errors='replace')}"


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")


def _parameters(request: Request) -> Parameters:
    """Return the query and the number in the path.

    Bytes that are not UTF-8 stay what they are, as in the names of files.
    """
    query = request.scope["query_string"].decode("ascii", "replace")
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape", max_num_fields=20)
    return dict(pairs) | {name: str(each) for name, each in request.path_params.items()}


def _read_parameter(given: Parameters, name: str) -> str:
    if name not in given:
        raise ValueError(f"Parameter {name!r} is missing")
    return given[name]


def _read_number(given: Parameters, name: str, default: int = 0) -> int:
    value = given.get(name, str(default))
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise ValueError(f"Parameter {name!r} must be a number: {value!r}")
    return int(value)


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}"
    return str(error)


def error_response(status: HTTPStatus, message: str) -> JSONResponse:
    """Return an error as JSON, with a sentence."""
    return JSONResponse({"error": message}, status)
