"""The workspace as the only disk of code in CPython: each file is asked for, none is opened.

The process has given up every system call that uses a path. So `open` and the functions of `os`
are replaced, for all modules, by functions that send file calls to the host, which checks paths
and queues writes. Modules come from the host too: those of the standard library as compiled code,
and those of the workspace as files.

Used in the worker process, so it imports only modules that import nothing heavy.
"""

import base64
import errno
import glob
import importlib.abc
import importlib.machinery
import io
import marshal
import os
import pathlib
import posixpath
import stat
import sys
import types
import weakref
import zlib
import zoneinfo
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from weakincentives.contrib.evaluation.worker.server import Host

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


class Workspace:
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

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **_: Any,
    ) -> Any:
        """Return an open file."""
        del buffering
        if not set(mode) <= set("rwxabt+") or sum(mode.count(each) for each in "rwxa") != 1:
            raise ValueError(f"invalid mode: {mode!r}")
        opened: Any = _File(self, os.fsdecode(file), mode)
        if "b" not in mode:
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

    def __init__(self, files: Workspace, path: str, mode: str) -> None:
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

    def __init__(self, files: Workspace, top: str, name: str, *kinds: bool) -> None:
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

    def __init__(self, files: Workspace) -> None:
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


_files: list[Workspace] = []  # that of this process, once it runs code


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


def install() -> None:
    """Replace the functions that use paths; before other modules keep the originals."""
    _replace(io, "open", "open")
    _replace(io, "open_code", "open_code")
    for name in (*_REPLACED, *_ALIASES, *_REFUSED):
        _replace(os, name, "refuse" if name in _REFUSED else _ALIASES.get(name, name))
    for each in vars(glob).values():  # since 3.13, a class of it keeps the originals
        for name in {"scandir", "lstat"} & vars(each).keys() if isinstance(each, type) else ():
            setattr(each, name, staticmethod(getattr(os, name)))
    pathlib.Path.touch = _touch


def connect(files: Workspace) -> None:
    """Use the files of an evaluation from now on, and nothing else."""
    _files.append(files)
    own = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
    sys.meta_path[:] = [*own, _Importer(files)]
    sys.path[:] = [files.getcwd()]
    zoneinfo.reset_tzpath(())
    vars(sys.modules["zoneinfo._common"])["load_tzdata"] = files.load_zone


install()
