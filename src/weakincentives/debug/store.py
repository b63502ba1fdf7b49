"""The sessions that `wink debug` shows, and the files of the last state of one of them."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from weakincentives.debug.recording import RecordedSession, RecordingError, find_sessions
from weakincentives.filesystem import VERSION, ArchiveManifest, FileStat, ReadableFilesystem
from weakincentives.filesystem.archive import ArchiveFilesystem
from weakincentives.filesystem.base import State
from weakincentives.serde import to_builtins


class SnapshotStore:
    """The sessions at a path: a dump, a timeline, or a folder of them.

    The `get_filesystem_` methods read the last state of the files: from the archive of a dump, or
    else from the timeline. Without a session's name, they read those of the session that the store
    begins with. Content is verified, and only what is in the workspace can be read. They raise
    `ArchiveError` if the archive is damaged or unsafe, and `RecordingError` if there is no session
    of this name, or no archive and its timeline cannot be read.
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
            each.title: known.get(each.title) or RecordedSession(each) for each in found
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

    def get_filesystem_archive(self, session: str | None = None) -> Path | None:
        """Return the archive of a session, None if there is none."""
        archive = self._choose(session).files.archive
        return archive if archive.is_file() else None

    def get_filesystem_manifest(self, session: str | None = None) -> dict[str, Any] | None:
        """Return the manifest of the last files, None if there are none."""
        archive = self.get_filesystem_archive(session)
        if archive is not None:
            with ArchiveFilesystem(archive) as files:
                return cast("dict[str, Any]", to_builtins(files.manifest))
        with self._last_files(session) as files:
            if files is None:
                return None
            sizes = [each.size_bytes for each in _list_files(files)]
            date = self._choose(session).open().steps[-1].created_at
            manifest = ArchiveManifest(VERSION, date, len(sizes), sum(sizes))
            return cast("dict[str, Any]", to_builtins(manifest))

    def get_filesystem_tree(self, session: str | None = None) -> list[dict[str, Any]]:
        """Return the path and size of each of the last files, sorted; empty without any."""
        with self._last_files(session) as files:
            if files is None:
                return []
            found = [
                {"path": each.path, "size_bytes": each.size_bytes} for each in _list_files(files)
            ]
        return sorted(found, key=lambda each: cast("str", each["path"]))

    def get_filesystem_file(self, path: str, session: str | None = None) -> str | None:
        """Return one of the last files as text; None if it is not there, or is not UTF-8.

        Raises:
            InvalidPathError, PathEscapeError: It is not a path in a workspace.
        """
        with self._last_files(session) as files:
            if files is None:
                return None
            try:
                return files.read_bytes(path).content.decode()
            except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
                return None

    @contextmanager
    def _last_files(self, session: str | None) -> Generator[ReadableFilesystem | None, None, None]:
        """Open the last files of a session: those of its archive, or of its timeline."""
        chosen, archive = self._choose(session), self.get_filesystem_archive(session)
        if archive is not None:
            with ArchiveFilesystem(archive) as files:
                yield files
        elif chosen.files.timeline.exists():
            with chosen.lock:
                recording = chosen.open()
                yield recording.files(len(recording.steps)) if recording.steps else None
        else:
            yield None

    def _choose(self, session: str | None) -> RecordedSession:
        return self._current if session is None else self.session(session)

    def close(self) -> None:
        """Close all files."""
        for each in self._sessions.values():
            each.close()


def _list_files(files: ReadableFilesystem) -> list[FileStat]:
    directories = State(files).directories("Tree")
    return [each for _, found in directories for each in found.values() if each.is_file]
