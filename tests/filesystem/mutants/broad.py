"""Backends that are wrong in many ways: they show that every single test can fail."""

from collections.abc import Callable
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    BaseFilesystem,
    FileEntry,
    FileStat,
    GlobMatch,
    GrepMatch,
    Limits,
    ReadBytesResult,
    ReadResult,
    Results,
)

_EVERY_METHOD = (
    "read", "read_bytes", "stat", "list", "glob", "grep", "write", "write_bytes", "delete",
    "mkdir", "move", "copy", "restore", "view", "preview", "export_archive", "import_archive",
)  # fmt: skip


def break_errors(sound: type[BaseFilesystem]) -> type[BaseFilesystem]:
    def broken(method: str) -> Callable[..., object]:
        def call(self: BaseFilesystem, *given: object, **named: object) -> object:
            try:
                return getattr(sound, method)(self, *given, **named)
            except (OSError, ValueError, TypeError, WinkError) as error:
                raise RuntimeError("something went wrong") from error

        return call

    return type("WrongErrors", (sound,), {method: broken(method) for method in _EVERY_METHOD})


class ForgetsEverything(Memory):
    """Reports success and stores nothing."""

    def _place_node(self, path: str, node: object, now: int) -> None:
        pass


class Shouts(Memory):
    """Reports everything wrongly."""

    def read(self, path: str, **page: Any) -> ReadResult:
        part = super().read(path, **page)
        return ReadResult(part.content + "!", part.path + "!", -1, -1, -2, not part.truncated)

    def read_bytes(self, path: str, **page: Any) -> ReadBytesResult:
        part = super().read_bytes(path, **page)
        return ReadBytesResult(part.content + b"!", path + "!", -1, -1, -2, not part.truncated)

    def exists(self, path: str) -> bool:
        return not super().exists(path)

    def stat(self, path: str) -> FileStat:
        found = super().stat(path)
        return FileStat(found.path + "!", not found.is_file, not found.is_directory, -1)

    def list(self, path: str = ".") -> Results[FileEntry]:
        found = super().list(path)
        return Results([*found, FileEntry("!", "!", True, False)], truncated=not found.truncated)

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        found = super().glob(pattern, **where)
        return Results([*found, GlobMatch("!", True)], truncated=not found.truncated)

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        return Results([*found, GrepMatch("!", 0, "!", 0, 9_999)], truncated=not found.truncated)


class Lies(Memory):
    """Reports wrong properties."""

    @property
    def root(self) -> str:
        return "nowhere"

    @property
    def read_only(self) -> bool:
        return not super().read_only

    @property
    def limits(self) -> Limits:
        return Limits()
