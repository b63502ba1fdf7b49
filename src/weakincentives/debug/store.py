"""The sessions that `wink debug` shows, and the files of the last state of one of them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from weakincentives.debug.recording import (
    RecordedSession,
    RecordingError,
    find_sessions,
    split_suffix,
)
from weakincentives.filesystem.archive import ArchiveFilesystem
from weakincentives.filesystem.base import State
from weakincentives.serde import to_builtins


class SnapshotStore:
    """The sessions at a path: a dump, a timeline, or a folder of them.

    The `get_filesystem_` methods read the archive beside a dump: the last state of its files.
    They verify the archive, and only what is in the workspace can be read.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        """Show what is at `path`.

        Args:
            path: A `.jsonl`, `.fs.zip` or `.timeline` file, or a folder.
            name: The session to begin with; by default the newest.

        Raises:
            RecordingError: There is no session.
        """
        self._path = Path(path)
        self._sessions: dict[str, RecordedSession] = {}
        self.refresh()
        self._current = self.session(name)

    @property
    def sessions(self) -> Sequence[RecordedSession]:
        """The sessions, the newest first."""
        return tuple(self._sessions.values())

    def refresh(self) -> None:
        """Look for sessions that are new, and drop those that are gone."""
        known = self._sessions
        found = find_sessions(self._path)
        self._sessions = {
            each.name: known.get(each.name) or RecordedSession(each) for each in found
        }
        for name, session in known.items():
            if name not in self._sessions:
                with session.lock:
                    session.close()

    def session(self, name: str | None = None) -> RecordedSession:
        """Return a session by its name, by default the newest.

        Raises:
            RecordingError: There is none of that name.
        """
        if name is None:
            return next(iter(self._sessions.values()))
        found = self._sessions.get(name)
        if found is None:
            raise RecordingError(f"No session of this name: {name!r}")
        return found

    def get_filesystem_archive(self) -> Path | None:
        """Return the archive of the current session, None if there is none."""
        archive = self._current.files.archive
        return archive if archive.is_file() else None

    def get_filesystem_manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the archive, None if there is no archive.

        Raises:
            ArchiveError: The archive is damaged or unsafe.
        """
        archive = self.get_filesystem_archive()
        if archive is None:
            return None
        with ArchiveFilesystem(archive) as files:
            return cast("dict[str, Any]", to_builtins(files.manifest))

    def get_filesystem_tree(self) -> list[dict[str, Any]]:
        """Return the path and size of every file in the archive, sorted; empty without one.

        Raises:
            ArchiveError: The archive is damaged or unsafe.
        """
        archive = self.get_filesystem_archive()
        if archive is None:
            return []
        with ArchiveFilesystem(archive) as files:
            found = [
                {"path": each.path, "size_bytes": each.size_bytes}
                for _, children in State(files).directories("Tree")
                for each in children.values()
                if each.is_file
            ]
        return sorted(found, key=lambda each: cast("str", each["path"]))

    def get_filesystem_file(self, path: str) -> str | None:
        """Return a file of the archive as text; None if it is not there, or is not UTF-8.

        Raises:
            InvalidPathError, PathEscapeError: It is not a path in a workspace.
            ArchiveError: The archive is damaged or unsafe.
        """
        archive = self.get_filesystem_archive()
        if archive is None:
            return None
        with ArchiveFilesystem(archive) as files:
            try:
                return files.read_bytes(path).content.decode()
            except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
                return None

    def close(self) -> None:
        """Close all files."""
        for each in self._sessions.values():
            each.close()


def session_name(path: str | os.PathLike[str]) -> str | None:
    """Return the name of the session that a file belongs to, None for another file."""
    found = split_suffix(Path(path))
    return None if found is None else found.name
