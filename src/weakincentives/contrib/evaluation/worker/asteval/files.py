"""Files for code in asteval: `open`, `pathlib`, `os` and `glob`, over the workspace only.

Everything becomes a file call to the host, which checks paths and queues writes. Used in the
worker process.
"""

import base64
import configparser
import fnmatch
import io
import posixpath
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar, NoReturn, Self

from weakincentives.contrib.evaluation.worker.asteval.symbols import HostFunction, Namespace
from weakincentives.contrib.evaluation.worker.session import Host

_PATH_FUNCTIONS = ("join", "basename", "dirname", "splitext", "split", "normpath", "commonpath")


class Workspace:
    """The files of one evaluation."""

    def __init__(self, host: Host) -> None:
        """Send file calls to `host`."""
        self._host = host
        self._open_files: list[_TextFile | _BinaryFile] = []

    def functions(self) -> dict[str, Any]:
        """Return the functions that are there without an import."""
        named = {"read_text": self.read_text, "write_text": self.write_text, "open": self.open}
        return {name: HostFunction(name, function) for name, function in named.items()}

    def modules(self) -> dict[str, Namespace]:
        """Return the modules that use files."""
        os_path = Namespace(
            **{name: getattr(posixpath, name) for name in _PATH_FUNCTIONS},
            exists=HostFunction("exists", self.exists),
            isfile=HostFunction("isfile", self.is_file),
            isdir=HostFunction("isdir", self.is_directory),
            getsize=HostFunction("getsize", self.size),
            sep="/",
        )
        files: Mapping[str, Callable[..., Any]] = {
            "listdir": self.list_names,
            "walk": self.walk,
            "makedirs": self.make_directories,
            "mkdir": self.make_directory,
            "getcwd": _working_directory,
            "getenv": _no_variable,
            "remove": _refuse,
            "rename": _refuse,
            "unlink": _refuse,
        }
        functions = {name: HostFunction(name, function) for name, function in files.items()}
        path = type("PosixPath", (WorkspacePath,), {"_files": self, "__module__": "pathlib"})
        parser = type("ConfigParser", (WorkspaceConfigParser,), {"_files": self})
        glob = HostFunction("glob", self.glob)
        return {
            "os": Namespace(path=os_path, sep="/", linesep="\n", environ={}, **functions),
            "os.path": os_path,
            "pathlib": Namespace(Path=path, PurePath=PurePosixPath, PurePosixPath=PurePosixPath),
            "glob": Namespace(glob=glob, iglob=glob),
            "configparser": Namespace(ConfigParser=parser, Error=configparser.Error),
            "fnmatch": Namespace(fnmatch=fnmatch.fnmatchcase, filter=fnmatch.filter),
        }

    def flush(self) -> None:
        """Write what files that were not closed have."""
        for each in self._open_files:
            each.close()

    def read_text(self, path: Any) -> str:
        """Return the text of a file."""
        return self._host.call("read_text", str(path))

    def read_bytes(self, path: Any) -> bytes:
        """Return the bytes of a file."""
        return base64.b64decode(self._host.call("read_bytes", str(path)))

    def write_text(self, path: Any, content: Any, mode: str = "overwrite") -> None:
        """Queue a write."""
        if not isinstance(content, str):
            raise TypeError(
                f"write_text needs text, not {type(content).__name__}; use str() or json.dumps()"
            )
        self._host.call("write_text", str(path), content, str(mode))

    def open(
        self, file: Any, mode: str = "r", encoding: Any = None, newline: Any = None, **_: Any
    ) -> Any:
        """Return an open file."""
        kind = mode.replace("b", "").replace("t", "")
        if kind not in {"r", "w", "a", "x", "r+"}:
            raise ValueError(f"this mode is not supported: {mode!r}")
        del encoding
        opened: _TextFile | _BinaryFile
        if "b" in mode:
            opened = _BinaryFile(self, str(file), kind)
        else:
            opened = _TextFile(self, str(file), kind, keeps_newlines=newline == "")
        self._open_files.append(opened)
        return opened

    def exists(self, path: Any) -> bool:
        """Return whether a path exists."""
        return self._host.call("exists", str(path))

    def stat(self, path: Any) -> dict[str, Any]:
        """Return the metadata of an entry."""
        return self._host.call("stat", str(path))

    def is_file(self, path: Any) -> bool:
        """Return whether a path is a file."""
        return self._is(path, "is_file")

    def is_directory(self, path: Any) -> bool:
        """Return whether a path is a directory."""
        return self._is(path, "is_directory")

    def list_names(self, path: Any = ".") -> list[str]:
        """Return the names in a directory."""
        return [name for name, *_ in self._host.call("list", str(path))]

    def walk(self, top: Any = ".") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield each directory with its directories and files."""
        entries = self._host.call("list", str(top))
        directories = [name for name, _, is_directory, _ in entries if is_directory]
        yield str(top), directories, [name for name, is_file, *_ in entries if is_file]
        for name in directories:
            yield from self.walk(posixpath.join(str(top), name))

    def size(self, path: Any) -> int:
        """Return the size of a file."""
        return self.stat(path)["size"]

    def make_directory(
        self, path: Any, *_: Any, parents: bool = False, exist_ok: bool = False
    ) -> None:
        """Queue the creation of a directory."""
        flags = ["1" if each else "" for each in (parents, exist_ok)]
        self._host.call("make_directory", str(path), *flags)

    def make_directories(self, path: Any, *_: Any, exist_ok: bool = False) -> None:
        """Queue the creation of a directory and those above it."""
        self.make_directory(path, parents=True, exist_ok=exist_ok)

    def glob(self, pattern: Any, **_: Any) -> list[str]:
        """Return the paths of the files that match."""
        return self._host.call("glob", str(pattern), ".")

    def glob_below(self, path: Any, pattern: str) -> list[str]:
        """Return the paths of the files below a directory that match."""
        return self._host.call("glob", pattern, str(path))

    def _is(self, path: Any, kind: str) -> bool:
        try:
            return self.stat(path)[kind]
        except OSError:
            return False


class _TextFile(io.StringIO):
    """An open text file: read at once, written when it is closed."""

    def __init__(self, files: Workspace, path: str, mode: str, *, keeps_newlines: bool) -> None:
        text = _opened(files, path, mode, files.read_text) or ""
        super().__init__(text if keeps_newlines else text.replace("\r\n", "\n"), newline="")
        self.name: str = path
        self.__mode = mode
        self.__close = _closer(files, path, mode)

    def close(self) -> None:
        """Queue what was written."""
        if not self.closed:
            self.__close(self.getvalue())
            super().close()

    def write(self, text: str, /) -> int:
        """Write text, if the file was opened for that."""
        _check_writable(self.__mode)
        return super().write(text)


class _BinaryFile(io.BytesIO):
    """An open binary file, whose content must be text if it is written."""

    def __init__(self, files: Workspace, path: str, mode: str) -> None:
        super().__init__(_opened(files, path, mode, files.read_bytes) or b"")
        self.name: str = path
        self.__mode = mode
        self.__close = _closer(files, path, mode)

    def close(self) -> None:
        """Queue what was written."""
        if not self.closed:
            self.__close(self.getvalue().decode())
            super().close()

    def write(self, data: Any, /) -> int:
        """Write bytes, if the file was opened for that."""
        _check_writable(self.__mode)
        return super().write(data)


def _check_writable(mode: str) -> None:
    if mode == "r":
        raise io.UnsupportedOperation("not writable")


def _opened(files: Workspace, path: str, mode: str, read: Callable[[str], Any]) -> Any:
    """Do what opening a file does; return its content if it is read."""
    if mode in {"r", "r+"}:
        return read(path)
    if mode != "a" or not files.exists(path):
        files.write_text(path, "", "create" if mode == "x" else "overwrite")
    return None


def _closer(files: Workspace, path: str, mode: str) -> Callable[[str], None]:
    def close(content: str) -> None:
        if mode != "r" and (content or mode == "r+"):
            files.write_text(path, content, "append" if mode == "a" else "overwrite")

    return close


def _refuse(path: Any = "", *_: Any, **__: Any) -> NoReturn:
    raise PermissionError(
        f"Code can read and write files, but not delete or move them: {str(path)!r};"
        " use a file tool for that"
    )


def _working_directory() -> str:
    return "/workspace"


def _no_variable(_name: str, default: Any = None) -> Any:
    return default


class WorkspaceConfigParser(configparser.ConfigParser):
    """A parser that reads files of the workspace."""

    _files: ClassVar[Workspace]

    def read(self, filenames: Any, encoding: str | None = None) -> list[Any]:
        """Read files, and return the paths of those that exist."""
        del encoding
        given: Any = [filenames] if isinstance(filenames, str | PurePosixPath) else filenames
        found = [each for each in given if self._files.is_file(each)]
        for each in found:
            self.read_string(self._files.read_text(each))
        return found


class WorkspacePath(PurePosixPath):
    """A path in the workspace; each evaluation has a subclass with its files."""

    _files: ClassVar[Workspace]

    @classmethod
    def cwd(cls) -> Self:
        """Return the workspace root."""
        return cls()

    def exists(self) -> bool:
        """Return whether it exists."""
        return self._files.exists(self)

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return self._files.is_file(self)

    def is_dir(self) -> bool:
        """Return whether it is a directory."""
        return self._files.is_directory(self)

    def stat(self) -> Namespace:
        """Return the size and the date."""
        found = self._files.stat(self)
        return Namespace(st_size=found["size"], st_mtime=found["modified"])

    def read_text(self, *_: Any, **__: Any) -> str:
        """Return the text of the file."""
        return self._files.read_text(self)

    def read_bytes(self) -> bytes:
        """Return the bytes of the file."""
        return self._files.read_bytes(self)

    def write_text(self, data: str, *_: Any, **__: Any) -> int:
        """Replace the file."""
        self._files.write_text(self, data)
        return len(data)

    def write_bytes(self, data: bytes) -> int:
        """Replace the file; the bytes must be text."""
        self._files.write_text(self, data.decode())
        return len(data)

    def open(self, mode: str = "r", **options: Any) -> Any:
        """Return the open file."""
        return self._files.open(self, mode, **options)

    def iterdir(self) -> Iterator[Self]:
        """Yield the entries of the directory."""
        return iter([self / name for name in self._files.list_names(self)])

    def glob(self, pattern: str) -> Iterator[Self]:
        """Yield the files that match."""
        return iter([type(self)(each) for each in self._files.glob_below(self, pattern)])

    def rglob(self, pattern: str) -> Iterator[Self]:
        """Yield the files at any depth that match."""
        return self.glob(f"**/{pattern}")

    def mkdir(self, *_: Any, parents: bool = False, exist_ok: bool = False) -> None:
        """Make the directory."""
        self._files.make_directory(self, parents=parents, exist_ok=exist_ok)

    def touch(self) -> None:
        """Create the file if it does not exist."""
        if not self.exists():
            self._files.write_text(self, "", "create")

    def resolve(self) -> Self:
        """Return the path itself: no link is followed."""
        return self

    absolute = resolve
    unlink = _refuse
    rmdir = _refuse
    rename = _refuse
    replace = _refuse
