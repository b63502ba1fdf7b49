"""Runs code in CPython: the part of it that every process with the code shares, and a driver.

As a script in a sandbox, this module is the driver of `PythonEngine`. Workers use its functions
too (`run`, `render_value`, `describe_error`). So it imports only the standard library.

The request to the driver arrives on standard input as JSON. It has a random mark, which the driver
writes to standard output before it runs the code, and once more in front of its answer, a line of
JSON. What is between the two is what the code printed.
"""

import ast
import contextlib
import io
import json
import linecache
import math
import os
import re
import resource
import statistics
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

FILE = "<code>"
"""The file name of the code in tracebacks."""

MAX_REPLY = 64 * 1024 * 1024
"""Bytes in a frame to a worker: a file that the code reads, as escaped text."""

MAX_MESSAGE = 2 * 1024 * 1024
"""Bytes in a frame from a worker, whose sender may be hostile."""

_LIBRARY = str(Path(os.__file__).parent)
_MAX_MESSAGE = 2_000  # characters of an error message
_THREADS_TIMEOUT = 3.0  # seconds
_MODES = ("create", "overwrite", "append")
_JSON_TYPES = (bool, int, float, str, list, tuple, dict, type(None))

Message = dict[str, Any]
"""A request, an answer, or a part of one."""


def main() -> None:
    """Read a request, run its code, and write the answer."""
    request = json.load(sys.stdin.buffer)
    mark, output, driver = request["mark"].encode(), os.dup(1), os.getpid()
    os.write(output, mark)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # to keep what was printed in time
        memory = request["limits"]["max_memory_bytes"]
        _, highest = resource.getrlimit(resource.RLIMIT_DATA)
        if highest == resource.RLIM_INFINITY or memory < highest:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        facts = json.dumps(_evaluate(request), ensure_ascii=False)
        data = mark + facts.encode("utf-8", "replace") + b"\n"
        while data and os.getpid() == driver:  # a fork that the code made has no answer
            data = data[os.write(output, data) :]
    finally:
        os._exit(0)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message between a worker and the process that uses it."""
    return json.dumps(message, separators=(",", ":")).encode()


def _evaluate(request: Message) -> Message:
    files = _QueuedFiles(request["limits"])
    sys.path.insert(0, str(files.root))  # the code may import what is in the workspace
    outcome = run(request, files, str(files.root))
    return outcome if "error" in outcome else {**outcome, **files.calls}


def _start_main(code: str) -> Message:
    """Make a new `__main__` for the code; return its variables."""
    module = types.ModuleType("__main__")
    module.__dict__.update(math=math, statistics=statistics)  # there without an import
    sys.modules["__main__"] = module
    sys.argv = [FILE]
    linecache.cache[FILE] = (len(code), None, code.splitlines(keepends=True), FILE)
    return vars(module)


def execute(code: str, names: Message) -> object:
    """Run the code; return the value of its last expression."""
    tree = ast.parse(code, FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, FILE, "exec"), names)
        if isinstance(last, ast.Expr):
            return eval(compile(ast.Expression(last.value), FILE, "eval"), names)
    except SystemExit as error:
        if error.code not in {None, 0}:
            raise
    return None


class CodeError(Exception):
    """An error of the code in an interpreter of its own: its type, its message and its line."""


def run(
    request: Mapping[str, Any],
    files: Any,
    root: str,
    *,
    interpret: "Callable[[str, Message], object]" = execute,
    finish: "Callable[[], object]" = lambda: None,
) -> Message:
    """Run the code with the functions of `files`; return its value and variables, or its error.

    An error of `finish`, which is called when the code has ended, is one of the code.
    """
    code, limits = request["code"], request["limits"]
    names = _start_main(code)
    names.update(request["globals"], read_text=files.read_text, write_text=files.write_text)
    try:
        try:
            found = interpret(code, names)
        finally:
            join_threads()
        value = render_value(found, limits["max_output_length"])
        finish()
        return {**value, "globals": render_globals(names, limits)}
    except CodeError as error:
        return {"error": dict(zip(("type", "message", "line"), error.args, strict=True))}
    except BaseException as error:  # noqa: BLE001 # whatever the code raises is its result
        return {"error": describe_error(error, code, root=root)}
    finally:
        flush_output()


def flush_output() -> None:
    """Write what was printed, if the code has not closed or replaced its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def join_threads() -> None:
    """Wait a moment for the threads of the code to print what they have; Python waits forever."""
    until = time.monotonic() + _THREADS_TIMEOUT
    for each in threading.enumerate():
        if each is not threading.current_thread() and not each.daemon:
            each.join(max(0.0, until - time.monotonic()))


def render_value(value: object, limit: int) -> Message:
    """Return the `repr` of a value, bounded, and how many characters of it are missing."""
    if value is None:
        return {}
    text = repr(value)
    return {"value": _clean(text[:limit]), "value_dropped": max(len(text) - limit, 0)}


def render_globals(names: Message, limits: Message) -> "dict[str, str]":
    """Return the variables that JSON can represent, as JSON text, within the limits."""
    found: dict[str, str] = {}
    total = 0
    for name, value in list(names.items()):
        if name.startswith("_") or not isinstance(value, _JSON_TYPES):
            continue
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            text.encode()
        except (TypeError, ValueError, RecursionError, MemoryError):
            continue
        if len(text) > min(limits["max_global_length"], limits["max_globals_length"] - total):
            continue
        total += len(text)
        found[name] = text
        if len(found) == limits["max_globals"]:
            break
    return found


def describe_error(
    error: BaseException, code: str, line: "int | None" = None, *, root: str = ""
) -> Message:
    """Return the type, the message and the line of an error, as far as it is one of the code.

    The message names no directory of this machine: paths are relative to the workspace `root`, and
    those of Python to its library.
    """
    if isinstance(error, SyntaxError) and error.filename in {FILE, None}:
        message, line = str(error.msg), error.lineno or line
    else:
        message = _to_text(error)
    if line is None:
        line = find_line(traceback.walk_tb(error.__traceback__))
    source = code.split("\n")
    shown = source[line - 1] if line is not None and 0 < line <= len(source) else None
    return {
        "type": type(error).__name__,
        "message": _clean(_shorten_paths(message[:_MAX_MESSAGE], root)),
        "line": line,
        "source": shown,
    }


def find_line(frames: "Iterable[tuple[types.FrameType, int]]") -> "int | None":
    """Return the line of the last frame that is one of the code."""
    lines = [line for frame, line in frames if frame.f_code.co_filename == FILE]
    return lines[-1] if lines else None


def _shorten_paths(message: str, root: str) -> str:
    found = (root, _LIBRARY, *sys.path)
    paths = {each for each in found if each.startswith("/") and each != "/"}
    for each in sorted(paths, key=len, reverse=True):
        message = message.replace(f"{each}/", "")
    return re.sub(rf"{re.escape(root)}(?![\w.-])", ".", message) if root in paths else message


def _to_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 # the error may be of a class that the code defines
        return ""


def _clean(text: str) -> str:
    """Return text that UTF-8 can represent."""
    return text.encode("utf-8", "backslashreplace").decode()


class _QueuedFiles:
    """The functions `read_text` and `write_text`: reads are direct, writes are queued."""

    def __init__(self, limits: Message) -> None:
        self.root = Path.cwd()
        self.reads: dict[str, None] = {}
        self._limits = limits
        self._queued: dict[str, tuple[str, str]] = {}

    @property
    def calls(self) -> Message:
        """What was read, and the queued writes: path, content and mode."""
        writes = [(path, content, mode) for path, (content, mode) in self._queued.items()]
        return {"reads": list(self.reads), "writes": writes}

    def read_text(self, path: str) -> str:
        """Return the text of a file, with the writes that are queued."""
        found = self._resolve(path)
        content, mode = self._queued.get(found, ("", "append"))
        if mode != "append":
            return content
        text = self._read(found)
        self.reads[found] = None
        return text + content

    def write_text(self, path: str, content: str, mode: str = "overwrite") -> None:
        """Queue a write: files change when the code has succeeded."""
        if mode not in _MODES:
            raise ValueError(f"mode must be 'create', 'overwrite' or 'append': {mode!r}")
        found = self._resolve(path)
        queued = self._queued.get(found)
        exists = queued is not None or os.path.lexists(self.root / found)
        if mode == "create" and exists:
            raise FileExistsError(f"File exists: {found!r}; use mode 'overwrite' or 'append'")
        if queued is not None and mode == "append":
            content, mode = queued[0] + content, queued[1]
        elif queued is not None:
            mode = "overwrite" if queued[1] == "append" else queued[1]
        elif not exists:
            mode = "create"
        self._check(found, content)
        self._queued[found] = content, mode

    def _check(self, path: str, content: str) -> None:
        content.encode()  # a lone surrogate cannot be written
        limit = self._limits["max_write_length"]
        if len(content) > limit:
            raise ValueError(
                f"{path!r} would get {len(content):,} characters; one write can have {limit:,}"
            )
        count = self._limits["max_writes"]
        if path not in self._queued and len(self._queued) >= count:
            raise ValueError(f"One evaluation can write {count} files with write_text")

    def _resolve(self, path: str) -> str:
        """Return a path relative to the workspace."""
        found = os.path.relpath(path, self.root)
        if found.split("/")[0] == "..":
            raise PermissionError(f"The path is outside the workspace: {path!r}")
        return found

    def _read(self, path: str) -> str:
        with (self.root / path).open(encoding="utf-8", newline="") as file:
            size, limit = os.fstat(file.fileno()).st_size, self._limits["max_read_bytes"]
            if size > limit:
                raise ValueError(
                    f"{path!r} has {size:,} bytes; code can read files of up to {limit:,} bytes"
                )
            return file.read()


if __name__ == "__main__":
    main()
