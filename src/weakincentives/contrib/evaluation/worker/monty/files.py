"""The workspace as Monty's only disk: its operating system calls become file calls."""

import base64
from pathlib import PurePosixPath
from typing import Any, NoReturn

from pydantic_monty import AbstractOS, MontyFileHandle, ScanEntry, StatResult

from weakincentives.contrib.evaluation.worker.session import Host

WORKING_DIRECTORY = PurePosixPath("/workspace")
"""The working directory of the code: the workspace root, as for commands in a sandbox."""

_File = PurePosixPath | MontyFileHandle


class WorkspaceOS(AbstractOS):
    """The operating system that code in Monty sees: files of the workspace, nothing else.

    Absolute paths are those below the working directory, or below the root of the workspace on the
    host. There are no environment variables.
    """

    def __init__(self, host: Host, root: str) -> None:
        """Send file calls to `host`; `root` is where the workspace is for other tools."""
        self._host = host
        roots = (WORKING_DIRECTORY, PurePosixPath(root))
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

    def path_write_text(self, path: _File, data: str) -> int:
        """Replace a file."""
        return self._write(path, data, "overwrite")

    def path_write_bytes(self, path: _File, data: bytes) -> int:
        """Replace a file; the bytes must be text."""
        return self._write(path, data, "overwrite")

    def path_append_text(self, path: _File, data: str) -> int:
        """Append to a file."""
        return self._write(path, data, "append")

    def path_append_bytes(self, path: _File, data: bytes) -> int:
        """Append to a file; the bytes must be text."""
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

    def path_absolute(self, path: PurePosixPath) -> str:
        """Return the path, which is absolute already."""
        return str(path)

    def path_unlink(self, path: PurePosixPath) -> NoReturn:
        """Refuse."""
        raise _refusal(path)

    def path_rmdir(self, path: PurePosixPath) -> NoReturn:
        """Refuse."""
        raise _refusal(path)

    def path_rename(self, path: PurePosixPath, target: PurePosixPath) -> NoReturn:
        """Refuse."""
        del target
        raise _refusal(path)

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


def _refusal(path: PurePosixPath) -> PermissionError:
    return PermissionError(
        f"Code can read and write files, but not delete or move them: {str(path)!r};"
        " use a file tool for that"
    )
