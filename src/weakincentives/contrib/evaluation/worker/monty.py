"""Monty in a worker: code runs in its interpreter, in a second process that this one starts.

Every evaluation is a session of its own, which begins with no variables, so a worker serves
many. The second process inherits the confinement of this one. The workspace is Monty's only disk:
its operating system calls become file calls.
"""

import ast
import base64
import time
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, NoReturn

from pydantic_monty import (
    AbstractOS,
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

from weakincentives.contrib.evaluation.driver import FILE, describe_error
from weakincentives.contrib.evaluation.worker.server import Host

MODULES = ()

_MAX_RECURSION = 500
_GRACE = 0.2  # seconds after which the interpreter is killed if it does not stop by itself
_VALUE = "__value__"  # the variable that gets the value of the last expression
_WORKING_DIRECTORY = PurePosixPath("/workspace")  # the workspace root, as in a sandbox
_File = PurePosixPath | MontyFileHandle


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
    code = request["code"]
    try:
        tree = ast.parse(code, FILE)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"error": describe_error(error, code)}
    started = time.monotonic()
    try:
        with pool.checkout(limits=_limits(request), assert_message_annotations=False) as session:
            return _run(session, tree, request, host)
    except MontyCrashedError:
        is_late = time.monotonic() - started >= request["seconds"]
        kind = "TimeoutError" if is_late else "MemoryError"
        return {"error": {"type": kind, "message": ""}, "is_spoiled": True}
    except MontyError as error:
        failure = error.exception()
        is_late = time.monotonic() - started >= request["seconds"]
        spoiled = is_late or isinstance(failure, MemoryError)
        return {"error": describe_error(failure, code, _line(error)), "is_spoiled": spoiled}


def _run(
    session: MontySession, tree: ast.Module, request: Mapping[str, Any], host: Host
) -> dict[str, Any]:
    files = WorkspaceOS(host, request["root"])
    session.feed_run(
        _assign_last_expression(request["code"], tree),
        inputs=request["globals"],
        external_lookup={"read_text": files.read_text, "write_text": files.write_text},
        print_callback=host.print,
        cwd=str(_WORKING_DIRECTORY),
        os=files,
    )
    stored = [each.id for each in ast.walk(tree) if isinstance(each, ast.Name)]
    names = [each for each in (*request["globals"], *stored) if not each.startswith("_")]
    collected: list[Any] = session.feed_run(_collector(names, tree, request["limits"]))
    text, length, variables = collected
    dropped = 0 if text is None else length - len(text)
    return {"value": text, "value_dropped": dropped, "globals": dict(variables)}


def _collector(names: list[str], tree: ast.Module, limits: Mapping[str, Any]) -> str:
    """Return code that renders the value and the variables, bounded, inside the interpreter."""
    lines = ["import json", "__found__ = []", "__text__ = None", "__length__ = 0"]
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        lines += [
            f"if {_VALUE} is not None:",
            f"    __text__ = repr({_VALUE})",
            "    __length__ = len(__text__)",
            f"    __text__ = __text__[:{limits['max_output_length']}]",
        ]
    for name in dict.fromkeys(names):  # those that are not variables of the module fail
        lines += [
            "try:",
            f"    __json__ = json.dumps({name})",
            f"    if len(__json__) <= {limits['max_global_length']}"
            f" and len(__found__) < {limits['max_globals']}:",
            f"        __found__.append(({name!r}, __json__))",
            "except Exception:",
            "    pass",
        ]
    return "\n".join([*lines, "[__text__, __length__, __found__]"])


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


def _assign_last_expression(code: str, tree: ast.Module) -> str:
    """Return the code with its last expression assigned to a variable; no line moves."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or last.end_lineno is None or last.end_col_offset is None:
        return code
    lines = code.encode().split(b"\n")
    end, row = last.end_lineno - 1, last.lineno - 1
    lines[end] = _insert(lines[end], last.end_col_offset, b")")
    lines[row] = _insert(lines[row], last.col_offset, _VALUE.encode() + b" = (")
    return b"\n".join(lines).decode()


def _insert(line: bytes, column: int, text: bytes) -> bytes:
    return line[:column] + text + line[column:]


class WorkspaceOS(AbstractOS):
    """The operating system that code in Monty sees: files of the workspace, nothing else.

    Absolute paths are those below the working directory, or below the root of the workspace on the
    host. There are no environment variables.
    """

    def __init__(self, host: Host, root: str) -> None:
        """Send file calls to `host`; `root` is where the workspace is for other tools."""
        self._host = host
        roots = (_WORKING_DIRECTORY, PurePosixPath(root))
        self._roots = [each for each in roots if each != PurePosixPath("/")]

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

    def path_exists(self, path: PurePosixPath) -> bool:
        """Return whether a path exists."""
        return self._host.call("exists", self._resolve(path))

    def path_is_file(self, path: PurePosixPath) -> bool:
        """Return whether a path is a file."""
        return self._is(path, "is_file")

    def path_is_dir(self, path: PurePosixPath) -> bool:
        """Return whether a path is a directory."""
        return self._is(path, "is_directory")

    def path_is_symlink(self, path: PurePosixPath) -> bool:
        """Return whether a path is a symbolic link."""
        return self._is(path, "is_symlink")

    def path_open(self, path: PurePosixPath, mode: str) -> MontyFileHandle:
        """Do what opening a file does: check that it is there, empty it, or create it."""
        handle = MontyFileHandle(str(path), mode)
        if handle.mode[0] == "r":
            if self._host.call("stat", self._resolve(path))["is_directory"]:
                raise IsADirectoryError(f"Is a directory: {self._resolve(path)!r}")
        elif handle.mode[0] == "w":
            self._write(path, "", "overwrite")
        elif not self.path_exists(path):
            self._write(path, "", "create")
        return handle

    def path_read_text(self, path: _File) -> str:
        """Return the text of a file."""
        return self._host.call("read_text", self._resolve(path))

    def path_read_bytes(self, path: _File) -> bytes:
        """Return the bytes of a file."""
        return base64.b64decode(self._host.call("read_bytes", self._resolve(path)))

    def path_write_text(self, path: _File, data: str | bytes) -> int:
        """Replace a file; bytes must be text."""
        return self._write(path, data, "overwrite")

    def path_write_bytes(self, path: _File, data: str | bytes) -> int:
        """Replace a file; bytes must be text."""
        return self._write(path, data, "overwrite")

    def path_append_text(self, path: _File, data: str | bytes) -> int:
        """Append to a file; bytes must be text."""
        return self._write(path, data, "append")

    def path_append_bytes(self, path: _File, data: str | bytes) -> int:
        """Append to a file; bytes must be text."""
        return self._write(path, data, "append")

    def path_mkdir(self, path: PurePosixPath, parents: bool, exist_ok: bool) -> None:  # noqa: FBT001 # as in the base class
        """Make a directory."""
        flags = ["1" if each else "" for each in (parents, exist_ok)]
        self._host.call("make_directory", self._resolve(path), *flags)

    def path_iterdir(self, path: PurePosixPath) -> list[PurePosixPath]:
        """Return the entries of a directory."""
        return [path / name for name, *_ in self._host.call("list", self._resolve(path))]

    def path_scan(
        self, path: PurePosixPath, *, max_depth: int | None, **_options: Any
    ) -> list[ScanEntry]:
        """Return everything below a directory, without following links."""
        found = self._host.call("stat", self._resolve(path))
        entries = [
            ScanEntry("", found["is_directory"], found["is_file"], found["is_symlink"]),
        ]
        pending = [(path, "", 0)] if found["is_directory"] else []
        while pending:
            directory, prefix, level = pending.pop()
            if max_depth is not None and level >= max_depth:
                continue
            for name, is_file, is_directory, is_link in self._host.call(
                "list", self._resolve(directory)
            ):
                entries.append(ScanEntry(prefix + name, is_directory, is_file, is_link))
                if is_directory and not is_link:
                    pending.append((directory / name, f"{prefix}{name}/", level + 1))
        return entries

    def path_stat(self, path: PurePosixPath) -> StatResult:
        """Return the metadata of a file or directory."""
        found = self._host.call("stat", self._resolve(path))
        if found["is_directory"]:
            return StatResult.dir_stat(mtime=found["modified"])
        return StatResult.file_stat(found["size"], mtime=found["modified"])

    def path_resolve(self, path: PurePosixPath) -> str:
        """Return the path: no link is followed."""
        return str(path)

    path_absolute = path_resolve

    def path_unlink(self, path: PurePosixPath) -> NoReturn:
        """Raise PermissionError."""
        raise PermissionError(
            f"Code can read and write files, but not delete or move them: {str(path)!r};"
            " use a file tool for that"
        )

    def path_rmdir(self, path: PurePosixPath) -> NoReturn:
        """Raise PermissionError."""
        self.path_unlink(path)

    def path_rename(self, path: PurePosixPath, target: PurePosixPath) -> NoReturn:
        """Raise PermissionError."""
        del target
        self.path_unlink(path)

    def getenv(self, key: str, default: str | None = None) -> str | None:
        """Return the default: there are no variables."""
        del key
        return default

    def get_environ(self) -> dict[str, str]:
        """Return no variables."""
        return {}

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

    def _is(self, path: PurePosixPath, kind: str) -> bool:
        try:
            return self._host.call("stat", self._resolve(path))[kind]
        except OSError:
            return False

    def _write(self, path: _File, data: str | bytes, mode: str) -> int:
        try:
            text = data if isinstance(data, str) else data.decode()
        except UnicodeDecodeError:
            raise ValueError("Only UTF-8 text can be written to files") from None
        self._host.call("write_text", self._resolve(path), text, mode)
        return len(data)
