"""Monty in a worker: the stock interpreter, in a second process that this one starts.

It runs the code as the model wrote it, and its value is what Monty returns. Every evaluation is a
session of its own, which begins with no variables, so a worker serves many. The second process
inherits the confinement of this one. Its operating system calls become file calls.
"""

import base64
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NoReturn, TypeAlias

from pydantic_monty import (
    NOT_HANDLED,
    Monty,
    MontyCrashedError,
    MontyError,
    MontyFileHandle,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    ResourceLimits,
    ScanEntry,
    StatResult,
)

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.worker.server import Host

MODULES = ()

_MAX_RECURSION = 500
_GRACE = 0.2  # seconds after which the interpreter is killed if it does not stop by itself
_WORKING_DIRECTORY = PurePosixPath("/workspace")  # the workspace root, as in a sandbox
# in the interpreter, since a large variable would take long to get here
_COLLECT = """
import json as _json
_found = []
for _name, _value in list(locals().items()):
    try:
        _text = "" if _name[0] == "_" else _json.dumps(_value, allow_nan=False)
    except Exception:
        _text = ""
    if 0 < len(_text) <= {max_global_length} and len(_found) < {max_globals}:
        _found.append((_name, _text))
_found
"""
_File: TypeAlias = PurePosixPath | MontyFileHandle


def start(options: Mapping[str, Any]) -> Monty:
    """Start the process of the interpreter."""
    pool = Monty(
        binary_path=options["binary"],
        min_processes=1,
        max_processes=1,
        feed_duration_limit_grace=_GRACE,
    )
    pool.__enter__()
    with pool.checkout() as session:
        session.feed_run("1")
    return pool


def evaluate(pool: Monty, request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Run the code in a new session."""
    started = time.monotonic()
    try:
        with pool.checkout(limits=_limits(request), assert_message_annotations=False) as session:
            return _run(session, request, host)
    except MontyCrashedError:
        is_late = time.monotonic() - started >= request["seconds"]
        kind = "TimeoutError" if is_late else "MemoryError"
        return {"error": {"type": kind, "message": ""}, "is_spoiled": True}
    except MontyError as error:
        failure = error.exception()
        is_late = time.monotonic() - started >= request["seconds"]
        spoiled = is_late or isinstance(failure, MemoryError)
        facts = driver.describe_error(failure, request["code"], _line(error))
        return {"error": facts, "is_spoiled": spoiled}


def _run(session: MontySession, request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    files = _Files(host, request["root"])
    value = session.feed_run(
        request["code"],
        inputs=request["globals"],
        external_lookup={"read_text": files.read_text, "write_text": files.write_text},
        print_callback=host.print,
        cwd=str(_WORKING_DIRECTORY),
        os=files,
    )
    limits = request["limits"]
    variables: Any = session.feed_run(_COLLECT.format_map(limits))
    return {**driver.render_value(value, limits["max_output_length"]), "globals": dict(variables)}


def _limits(request: Mapping[str, Any]) -> ResourceLimits:
    return {
        "max_feed_duration_secs": request["seconds"],
        "max_memory": request["limits"]["max_memory_bytes"],
        "max_recursion_depth": _MAX_RECURSION,
        "max_suspensions": request["limits"]["max_file_calls"] + 100,
        "max_total_sleep_secs": request["seconds"],
    }


def _line(error: MontyError) -> int | None:
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return None
    frames = error.traceback()
    return frames[-1].line if frames else None


class _Files:
    """Answers Monty's file calls; Monty refuses those that are not here.

    Absolute paths are those below the working directory, or below the root of the workspace on the
    host.
    """

    def __init__(self, host: Host, root: str) -> None:
        """Send file calls to `host`; `root` is where the workspace is for other tools."""
        self._host = host
        roots = (_WORKING_DIRECTORY, PurePosixPath(root))
        self._roots = [each for each in roots if each != PurePosixPath("/")]
        self._functions: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "Path.exists": partial(self._ask, "exists"),
            "Path.is_file": partial(self._is, "is_file"),
            "Path.is_dir": partial(self._is, "is_directory"),
            "Path.is_symlink": partial(self._is, "is_symlink"),
            "Path.read_text": partial(self._ask, "read_text"),
            "Path.read_bytes": self._read_bytes,
            "Path.write_text": self._write,
            "Path.write_bytes": self._write,
            "Path.append_text": partial(self._write, mode="append"),
            "Path.append_bytes": partial(self._write, mode="append"),
            "Path.mkdir": self._make_directory,
            "Path.iterdir": self._list,
            "Path.scan": self._scan,
            "Path.stat": self._stat,
            "Path.unlink": _refuse,
            "Path.rmdir": _refuse,
            "Path.rename": _refuse,
            "Path.resolve": str,  # no link is followed
            "Path.absolute": str,
            "os.environ": dict,  # there are no variables
            "os.getenv": _default,
        }

    def __call__(
        self, *, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], **_: Any
    ) -> Any:
        """Answer a call of the interpreter."""
        function = self._functions.get(name)
        return NOT_HANDLED if function is None else function(*args, **kwargs)

    def read_text(self, path: Any) -> str:
        """Return the text of a file; the function `read_text` of the code."""
        return self._host.call("read_text", str(path))

    def write_text(self, path: Any, content: Any, mode: str = "overwrite") -> None:
        """Queue a write; the function `write_text` of the code."""
        if not isinstance(content, str):
            raise TypeError(
                f"write_text needs text, not {type(content).__name__}; use str() or json.dumps()"
            )
        self._host.call("write_text", str(path), content, str(mode))

    def _open(self, path: PurePosixPath, mode: str) -> MontyFileHandle:
        """Do what opening a file does: check that it is there, empty it, or create it."""
        handle = MontyFileHandle(str(path), mode)
        if handle.mode[0] == "r":
            if self._ask("stat", path)["is_directory"]:
                raise IsADirectoryError(f"Is a directory: {self._resolve(path)!r}")
        elif handle.mode[0] == "w":
            self._write(path, "")
        elif not self._ask("exists", path):
            self._write(path, "", "create")
        return handle

    def _read_bytes(self, path: _File) -> bytes:
        return base64.b64decode(self._ask("read_bytes", path))

    def _make_directory(
        self, path: PurePosixPath, *, parents: bool = False, exist_ok: bool = False
    ) -> None:
        self._ask("make_directory", path, *["1" if each else "" for each in (parents, exist_ok)])

    def _list(self, path: PurePosixPath) -> list[PurePosixPath]:
        return [path / name for name, *_ in self._ask("list", path)]

    def _scan(
        self, path: PurePosixPath, *, max_depth: int | None, **_options: Any
    ) -> list[ScanEntry]:
        """Return everything below a directory, without following links."""
        found = self._ask("stat", path)
        entries = [ScanEntry("", found["is_directory"], found["is_file"], found["is_symlink"])]
        pending = [(path, "", 0)] if found["is_directory"] else []
        while pending:
            directory, prefix, level = pending.pop()
            if max_depth is not None and level >= max_depth:
                continue
            for name, is_file, is_directory, is_link in self._ask("list", directory):
                entries.append(ScanEntry(prefix + name, is_directory, is_file, is_link))
                if is_directory and not is_link:
                    pending.append((directory / name, f"{prefix}{name}/", level + 1))
        return entries

    def _stat(self, path: PurePosixPath) -> StatResult:
        found = self._ask("stat", path)
        if found["is_directory"]:
            return StatResult.dir_stat(mtime=found["modified"])
        return StatResult.file_stat(found["size"], mtime=found["modified"])

    def _is(self, kind: str, path: PurePosixPath) -> bool:
        try:
            return self._ask("stat", path)[kind]
        except OSError:
            return False

    def _write(self, path: _File, data: str | bytes, mode: str = "overwrite") -> int:
        try:
            text = data if isinstance(data, str) else data.decode()
        except UnicodeDecodeError:
            raise ValueError("Only UTF-8 text can be written to files") from None
        self._ask("write_text", path, text, mode)
        return len(data)

    def _ask(self, function: str, path: _File, *arguments: str) -> Any:
        return self._host.call(function, self._resolve(path), *arguments)

    def _resolve(self, path: _File) -> str:
        """Return a path relative to the workspace root.

        The interpreter has resolved `..`, so a path that leaves the workspace is absolute here.
        """
        given = PurePosixPath(path.path) if isinstance(path, MontyFileHandle) else path
        for root in self._roots:
            if given.is_relative_to(root):
                return str(given.relative_to(root))
        raise PermissionError(
            f"Path is outside the workspace: {str(given)!r}; use a path relative to its root"
        )


def _refuse(path: PurePosixPath, *_: PurePosixPath) -> NoReturn:
    raise PermissionError(
        f"Code can read and write files, but not delete or move them: {str(path)!r};"
        " use a file tool for that"
    )


def _default(_: str, default: str | None = None) -> str | None:
    return default
