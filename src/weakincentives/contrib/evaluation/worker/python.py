"""CPython in a worker: the code runs in the process itself, which can use nothing but its files.

A worker serves one evaluation and exits, so nothing is left for the next one. The fork server has
imported the modules that models use most.

The process has given up every system call that uses a path. So `open` and the functions of `os`
are replaced, for all modules, by functions that send file calls to the host, which checks paths
and queues writes. Modules come from the host too: those of the standard library as compiled code,
and those of the workspace as files.
"""

import base64
import codecs
import errno
import glob
import importlib.abc
import importlib.machinery
import io
import marshal
import math
import os
import pathlib
import posixpath
import resource
import signal
import site
import stat
import sys
import traceback
import types
import weakref
import zlib
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.worker.confinement import limit_memory
from weakincentives.contrib.evaluation.worker.server import Host

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

_Interpret = Callable[[str, dict[str, Any]], object]
_CODES: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
}
_REPLACED = (
    *("stat", "listdir", "scandir", "mkdir", "access", "getcwd", "chdir", "chmod", "utime"),
    *("remove", "replace"),
)
_ALIASES = {"lstat": "stat", "unlink": "remove", "rename": "replace"}
_REFUSED = ("rmdir", "link", "symlink", "truncate", "chown", "mkfifo")
_KINDS = {False: stat.S_IFREG | 0o644, True: stat.S_IFDIR | 0o755}

site.setquit()  # `exit()`, which the fork server starts without
site.sethelper()


def start(options: Mapping[str, Any]) -> None:
    """Start nothing."""


def evaluate(
    _: None, request: Mapping[str, Any], host: Host, interpret: _Interpret = driver.execute
) -> dict[str, Any]:
    """Run the code with an interpreter that is in this process."""
    root = request["root"]
    files = _Workspace(host, root)
    _connect(files)
    _redirect(host)
    _limit(request, host)
    return driver.run(request, files, root, interpret=interpret, finish=files.finish)


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


def _limit(request: Mapping[str, Any], host: Host) -> None:
    """Limit memory and time; what does not react to the alarm is killed from outside."""

    def stop(_: int, frame: Any) -> None:
        if host.is_busy:
            return  # a part of a message has been sent
        signal.setitimer(signal.ITIMER_REAL, 0)
        driver.flush_output()
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


class _Workspace:
    """The files of one evaluation."""

    def __init__(self, host: Host, root: str) -> None:
        """Send file calls to `host`; `root` is the working directory at first."""
        self._host = host
        self._root = root
        self._directory = ""  # relative to the root
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lost: dict[str, Exception] = {}

    def finish(self) -> None:
        """Write what files that are still open have.

        Raises:
            Exception: The content of a file could not be written.
        """
        for each in list(self._opened):
            if not each.closed:
                each.flush()
        for error in self._lost.values():
            raise error

    def read_text(self, path: Any) -> str:
        """Return the text of a file."""
        return self.ask("read_text", path)

    def write_text(self, path: Any, content: Any, mode: str = "overwrite") -> None:
        """Queue a write; files change when the code has succeeded."""
        if not isinstance(content, str):
            raise TypeError(
                f"write_text needs text, not {type(content).__name__}; use str() or json.dumps()"
            )
        self.ask("write_text", path, content, str(mode))

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file."""
        return base64.b64decode(self.ask("read_bytes", path))

    def open(self, file: Any, mode: str = "r", _: int = -1, *text: Any, **options: Any) -> Any:
        """Return an open file; the arguments are those of Python."""
        if not set(mode) <= set("rwxabt+") or sum(mode.count(each) for each in "rwxa") != 1:
            raise ValueError(f"invalid mode: {mode!r}")
        opened: Any = _File(self, os.fsdecode(file), mode)
        if "b" not in mode:
            names = ("encoding", "errors", "newline")
            given = {**options, **dict(zip(names, text, strict=False))}
            encoding, errors, newline = map(given.get, names)
            opened = io.TextIOWrapper(opened, encoding or "utf-8", errors, newline)
            opened.mode = mode
        self._opened.add(opened)
        return opened

    def open_code(self, path: str) -> Any:
        """Return the open file of a program."""
        return self.open(path, "rb")

    def save(self, path: str, data: bytes, mode: str) -> None:
        """Queue the content of an open file; a failure is that of the evaluation too."""
        try:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                raise ValueError(f"Only UTF-8 text can be written: {path!r}") from None
            self.write_text(path, text, mode)
            self._lost.pop(path, None)
        except (OSError, ValueError) as error:
            self._lost[path] = error  # a file that nobody closes has nobody to tell
            raise

    def stat(self, path: Any, **_: Any) -> os.stat_result:
        """Return the metadata of an entry."""
        found = self.ask("stat", path)
        modified, inode = found["modified"], zlib.crc32(posixpath.abspath(path).encode())
        kind, times = _KINDS[found["is_directory"]], [int(modified)] * 3
        facts = (kind, inode, 0, 1, 0, 0, found["size"], *times)
        exact = {"st_mtime": modified, "st_atime": modified, "st_ctime": modified}
        return os.stat_result(facts, exact)

    def listdir(self, path: Any = ".") -> list[str]:
        """Return the names in a directory."""
        return [name for name, *_ in self.ask("list", "." if path is None else path)]

    def scandir(self, path: Any = ".") -> "_Entries":
        """Return the entries of a directory."""
        top = "." if path is None else os.fsdecode(path)
        found = self.ask("list", top)
        return _Entries([_Entry(self, top, *each) for each in found])

    def mkdir(self, path: Any, *_: Any, **__: Any) -> None:
        """Queue the creation of a directory."""
        self.ask("make_directory", path, "", "")

    def access(self, path: Any, *_: Any, **__: Any) -> bool:
        """Return whether a path exists: what exists can be read and written."""
        return bool(self.ask("exists", path))

    def getcwd(self) -> str:
        """Return the working directory."""
        return posixpath.normpath(posixpath.join(self._root, self._directory))

    def chdir(self, path: Any) -> None:
        """Change the working directory."""
        self.listdir(path)  # which fails if it is none
        self._directory = posixpath.relpath(path, self._root)

    def chmod(self, path: Any, mode: int, **_: Any) -> None:
        """Allow the permissions that there are, as those of a copy."""
        if stat.S_IMODE(self.stat(path).st_mode) != stat.S_IMODE(mode):
            self.refuse(path)

    def utime(self, path: Any, *_: Any, **__: Any) -> None:
        """Check that a file exists; its time is that of the call."""
        self.stat(path)

    def remove(self, path: Any, **_: Any) -> None:
        """Remove a file that the code has created."""
        self.ask("remove", path)

    def replace(self, source: Any, target: Any, **_: Any) -> None:
        """Move a file that the code has created."""
        text = self.read_text(source)
        self.remove(source)
        self.write_text(target, text)

    def refuse(self, path: Any = "", *_: Any, **__: Any) -> NoReturn:
        """Refuse to change what can only be read and written."""
        raise PermissionError(f"Code can read and write files, nothing else: {str(path)!r}")

    def ask(self, function: str, path: Any, *arguments: str) -> Any:
        """Send a file call; its errors are those of Python."""
        given = os.fsdecode(path)
        try:
            if not given:
                raise FileNotFoundError(given)
            return self._host.call(function, posixpath.join(self._directory, given), *arguments)
        except OSError as error:
            code = _CODES.get(type(error))
            if code is not None:
                raise type(error)(code, os.strerror(code), given) from None
            raise PermissionError(errno.EACCES, str(error)) from None

    def find_module(
        self, name: str, directories: Sequence[str]
    ) -> tuple[types.CodeType, str, bool] | None:
        """Return the code of a module, its file, and whether it is a package."""
        found = self._host.call("module", name)
        if found is not None:
            return marshal.loads(base64.b64decode(found[0])), found[1], found[2]
        own = name.rpartition(".")[2]
        for directory in directories:
            for rest, is_package in (("/__init__.py", True), (".py", False)):
                path = posixpath.join(directory, own + rest)
                if posixpath.isfile(path):
                    return compile(self.read_bytes(path), path, "exec"), path, is_package
        return None

    def load_zone(self, key: str) -> io.BytesIO:
        """Return the data of a time zone."""
        found = self._host.call("zone", key)
        if found is None:
            raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")
        return io.BytesIO(base64.b64decode(found))


class _File(io.BytesIO):
    """An open file: read at once, written when it is flushed or closed."""

    def __init__(self, files: _Workspace, path: str, mode: str) -> None:
        super().__init__()  # a file that cannot be opened is closed as well
        self._saved = b""
        kind = mode.replace("b", "").replace("t", "")
        self.name: str = path
        self.mode: str = mode
        self._files = files
        self._kind = kind
        exists = kind[0] == "a" and files.access(path)
        loads = kind[0] == "r" or (kind == "a+" and exists)
        super().__init__(files.read_bytes(path) if loads else b"")
        if not loads and not exists:
            files.write_text(path, "", "create" if kind[0] == "x" else "overwrite")
        self._saved = self.getvalue()
        if kind[0] == "a":
            self.seek(0, os.SEEK_END)

    def readable(self) -> bool:
        """Return whether it was opened for that."""
        return self._kind[0] == "r" or "+" in self._kind

    def writable(self) -> bool:
        """Return whether it was opened for that."""
        return self._kind != "r"

    def write(self, data: Any, /) -> int:
        """Write bytes, at the end if the file was opened for that."""
        if not self.writable():
            raise io.UnsupportedOperation("write")
        if self._kind[0] == "a":
            self.seek(0, os.SEEK_END)
        return super().write(data)

    def flush(self) -> None:
        """Queue what was written."""
        data = self.getvalue()
        if self.closed or data == self._saved:
            return
        is_added = self._kind == "a"
        added = data[len(self._saved) :] if is_added else data
        self._saved = data
        self._files.save(self.name, added, "append" if is_added else "overwrite")

    def close(self) -> None:
        """Queue what was written."""
        if not self.closed:
            try:
                self.flush()
            finally:
                super().close()


class _Entry:
    """An entry of a directory, as `os.scandir` returns them."""

    def __init__(self, files: _Workspace, top: str, name: str, *kinds: bool) -> None:
        self.name: str = name
        self.path: str = posixpath.join(top, name)
        self._files = files
        self._is_file, self._is_directory, self._is_link = kinds

    def is_file(self, **_: Any) -> bool:
        """Return whether it is a file."""
        return self._is_file

    def is_dir(self, **_: Any) -> bool:
        """Return whether it is a directory."""
        return self._is_directory

    def is_symlink(self) -> bool:
        """Return whether it is a link."""
        return self._is_link

    def stat(self, **_: Any) -> os.stat_result:
        """Return its metadata."""
        return self._files.stat(self.path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class _Entries(AbstractContextManager[Any, None], Iterator[_Entry]):
    """The entries of a directory; also a context manager, as that of `os.scandir`."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._rest = iter(entries)

    def __next__(self) -> _Entry:
        return next(self._rest)

    def __exit__(self, *_: object) -> None:
        pass  # the entries are in memory


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules that the host has."""

    def __init__(self, files: _Workspace) -> None:
        self._files = files

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return where a module is; None if the host has none of this name."""
        del target
        found = self._files.find_module(fullname, sys.path if path is None else path)
        if found is None:
            return None
        code, file, is_package = found
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=file, loader_state=code, is_package=is_package
        )
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(posixpath.dirname(file))
        return spec

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the code of a module."""
        spec = module.__spec__
        assert spec is not None
        exec(spec.loader_state, vars(module))


_files: list[_Workspace] = []  # that of this process, once it runs code


def _replace(module: types.ModuleType, name: str, ours: str) -> None:
    """Replace a function for paths; descriptors, and the fork server, use the original."""
    original = getattr(module, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if not _files or (arguments and isinstance(arguments[0], int)):
            return original(*arguments, **options)
        return getattr(_files[0], ours)(*arguments, **options)

    call.__name__ = call.__qualname__ = name
    for each in list(sys.modules.values()):  # some keep the function itself
        for alias in (name, f"_builtin_{name}"):
            if getattr(each, alias, None) is original:
                setattr(each, alias, call)


def _touch(self: pathlib.Path, mode: int = 0o666, exist_ok: bool = True) -> None:  # noqa: FBT001, FBT002 # as in Python
    """Create a file if there is none; `Path.touch` of the code."""
    del mode
    if not exist_ok or not self.exists():
        self.open("x").close()


def _install() -> None:
    """Replace the functions that use paths; before other modules keep the originals."""
    _replace(io, "open", "open")
    _replace(io, "open_code", "open_code")
    for name in (*_REPLACED, *_ALIASES, *_REFUSED):
        _replace(os, name, "refuse" if name in _REFUSED else _ALIASES.get(name, name))
    for each in vars(glob).values():  # since 3.13, a class of it keeps the originals
        for name in {"scandir", "lstat"} & vars(each).keys() if isinstance(each, type) else ():
            setattr(each, name, staticmethod(getattr(os, name)))
    pathlib.Path.touch = _touch


def _connect(files: _Workspace) -> None:
    """Use the files of an evaluation from now on, and nothing else."""
    _files.append(files)
    own = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
    sys.meta_path[:] = [*own, _Importer(files)]
    sys.path[:] = [files.getcwd()]
    zoneinfo.reset_tzpath(())
    vars(sys.modules["zoneinfo._common"])["load_tzdata"] = files.load_zone


_install()
