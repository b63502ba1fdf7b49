"""CPython in a worker: the code runs in the process itself, which can use nothing but its files.

A worker serves one evaluation and exits, so nothing is left for the next one. The fork server has
imported the modules that models use most; others come from the host when the code imports them.
"""

import codecs
import io
import math
import os
import resource
import signal
import site
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.worker.confinement import limit_memory
from weakincentives.contrib.evaluation.worker.server import Host
from weakincentives.contrib.evaluation.worker.workspace import Workspace, connect

MODULES = (
    *("array", "base64", "bisect", "bz2", "calendar", "cmath", "collections", "configparser"),
    *("contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum"),
    *("fractions", "functools", "glob", "gzip", "hashlib", "heapq", "html", "itertools", "json"),
    *("logging", "lzma", "operator", "pathlib", "pprint", "random", "re", "shutil", "sqlite3"),
    *("statistics", "string", "textwrap", "time", "typing", "unicodedata", "urllib.parse", "uuid"),
    *("xml.etree.ElementTree", "zipfile", "zlib", "_strptime"),
    # compiled ones, which can be loaded only here
    *("_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw"),
    *("_contextvars", "_elementtree", "_lsprof", "_multiprocessing", "_pickle", "_posixshmem"),
    *("_multibytecodec", "_posixsubprocess", "_queue", "_socket", "_ssl", "_struct", "grp"),
    *("mmap", "select", "termios"),
)
"""What the fork server imports, as far as it exists."""

Execute = Callable[[str, dict[str, Any]], object]
"""Runs code with these variables, and returns the value of its last expression."""


site.setquit()  # `exit()`, which the fork server starts without
site.sethelper()


def start(options: Mapping[str, Any]) -> None:
    """Start nothing."""


def evaluate(_: None, request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Run the code."""
    return run(request, host, driver.execute)


def run(request: Mapping[str, Any], host: Host, execute: Execute) -> dict[str, Any]:
    """Run code with an interpreter that is in this process, and return what became of it."""
    code, limits = request["code"], request["limits"]
    files = Workspace(host, request["root"])
    connect(files)
    names = driver.start_main(code)
    names.update(read_text=files.read_text, write_text=files.write_text)
    names.update(request["globals"])
    _redirect(host)
    _limit(request, host)
    try:
        found = execute(code, names)
        driver.join_threads()
        value = driver.render_value(found, limits["max_output_length"])
        files.finish()
        _flush()
        return {**value, "globals": dict(driver.render_globals(names, limits))}
    except CodeError as error:
        _flush()
        return {"error": dict(zip(("type", "message", "line"), error.args, strict=True))}
    except BaseException as error:  # noqa: BLE001 # whatever the code raises is its result
        driver.join_threads()
        _flush()
        return {"error": driver.describe_error(error, code, root=request["root"])}


class CodeError(Exception):
    """An error of the code in an interpreter of its own: its type, its message and its line."""


class _Output(io.RawIOBase):
    """A standard stream of the code."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        """Return that it is."""
        return True

    def write(self, data: Any, /) -> int:
        """Send what was written; a character may be in two parts."""
        self._host.print(self._name, self._decoder.decode(data))
        return len(data)


def _redirect(host: Host) -> None:
    for name, errors in (("stdout", "strict"), ("stderr", "backslashreplace")):
        buffer = io.BufferedWriter(_Output(host, name))
        stream = io.TextIOWrapper(buffer, "utf-8", errors, "\n", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the code may have closed or replaced them
            stream.flush()


def _limit(request: Mapping[str, Any], host: Host) -> None:
    """Limit memory and time; what does not react to the alarm is killed from outside."""

    def stop(_: int, frame: Any) -> None:
        if host.is_busy:
            return  # a part of a message has been sent
        signal.setitimer(signal.ITIMER_REAL, 0)
        _flush()
        line = driver.find_line(reversed(list(traceback.walk_stack(frame))))
        error = {"type": "TimeoutError", "message": "", "line": line}
        host.finish({"error": error, "is_spoiled": True})
        os._exit(0)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = min(math.ceil(request["seconds"]) + 1, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    limit_memory(request["limits"]["max_memory_bytes"])
