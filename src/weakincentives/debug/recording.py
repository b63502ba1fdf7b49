"""A session on disk: its timeline, or else the last state that its dump has."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any, TypeAlias
from uuid import UUID

from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    ARCHIVE_SUFFIX,
    Diff,
    InMemoryFilesystem,
    ReadableFilesystem,
    diff,
)
from weakincentives.filesystem.archive import ArchiveError, ArchiveFilesystem
from weakincentives.runtime import timeline
from weakincentives.runtime.session import DumpError, DumpFiles, read_dump
from weakincentives.runtime.timeline import MAIN
from weakincentives.serde import SerdeError

TEXT_SUFFIX = ".jsonl"
_RUN_HISTORY = "history"  # in the directory of a run
SUFFIXES = (timeline.SUFFIX, ARCHIVE_SUFFIX, TEXT_SUFFIX)


class RecordingError(WinkError, ValueError):
    """Nothing to show: there is no session at a path, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class SessionFiles:
    """The files of one session: they have one name and differ in their suffix."""

    directory: Path
    name: str

    @property
    def timeline(self) -> Path:
        """The directory of the history, or an exported one; it may be missing."""
        history = self.directory / self.name
        is_history = history.is_dir() and timeline.has_steps(history)
        return history if is_history else history.with_name(f"{self.name}{timeline.SUFFIX}")

    @property
    def text(self) -> Path:
        """The `.jsonl` file of the dump; it may be missing."""
        return self.directory / f"{self.name}{TEXT_SUFFIX}"

    @property
    def archive(self) -> Path:
        """The archive with the last state of the files; it may be missing."""
        return self.directory / f"{self.name}{ARCHIVE_SUFFIX}"

    @property
    def title(self) -> str:
        """The name to show: that of the directory for a run, whose history has a fixed name."""
        return self.directory.absolute().name if self.name == _RUN_HISTORY else self.name

    @property
    def run(self) -> Path | None:
        """The directory of the run, if it is one."""
        return self.directory if self.name == _RUN_HISTORY else None

    @property
    def main(self) -> Path:
        """The file to name in commands: the timeline if there is one."""
        found = (each for each in (self.timeline, self.text, self.archive) if each.exists())
        return next(found, self.timeline)


def split_suffix(path: Path) -> SessionFiles | None:
    """Return the session that a file belongs to; None if its suffix is that of no such file."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return SessionFiles(path.parent, path.name.removesuffix(suffix))
    return None


def find_sessions(path: str | os.PathLike[str]) -> list[SessionFiles]:
    """Return the sessions at a path: one of their files, its name without suffix, or a folder.

    Raises:
        RecordingError: There is none.
    """
    place = Path(path)
    if place.is_dir() and split_suffix(place) is None and not timeline.has_steps(place):
        found = {each for child in place.iterdir() if (each := split_suffix(child)) is not None}
        if not found:
            raise RecordingError(
                f"Folder has no session dumps: {str(place)!r}"
                f" (they are files with the suffix {', '.join(SUFFIXES)})"
            )
        return sorted(found, key=_modified_at, reverse=True)
    session = split_suffix(place) or SessionFiles(place.parent, place.name)
    if not session.main.exists():
        raise RecordingError(
            f"No session dump: {str(place)!r}"
            f" (name a folder, or a file with the suffix {', '.join(SUFFIXES)})"
        )
    return [session]


class _LastState:
    """A dump without a timeline: one step, with the last state of session and files.

    It has what the page reads of a timeline. A dump does not grow, and has no conversation.
    """

    problem = "There is no timeline beside this dump: only its last state"
    branches: Mapping[str, int] = {MAIN: 1}
    is_recording = False

    def __init__(self, files: SessionFiles) -> None:
        """Read the dump; its archive is verified.

        Raises:
            DumpError: It is damaged, or its two files belong to different dumps.
            ArchiveError: The archive is damaged.
        """
        self._sessions: dict[UUID, timeline.StoredSession] = {}
        self._files: ArchiveFilesystem | InMemoryFilesystem = InMemoryFilesystem()
        date: datetime | None = None
        if files.text.is_file():
            header, stored = read_dump(DumpFiles(files.text))
            date, self._sessions = header.created_at, {each.session_id: each for each in stored}
        if files.archive.is_file():
            self._files = archive = ArchiveFilesystem(files.archive)
            date = date or archive.manifest.created_at
        if date is None:
            raise RecordingError(f"No session dump: {str(files.text)!r}")
        self.steps: tuple[timeline.StepRecord, ...] = (
            timeline.StepRecord(1, None, "end", date, "last state of the session"),
        )

    def ancestors(self, number: int) -> list[int]:
        return [self.step(number).number]

    def refresh(self) -> int:
        return 0

    def step(self, number: int) -> timeline.StepRecord:
        if number != 1:
            raise timeline.TimelineError(
                f"There is no step {number}: a dump has its last state only"
            )
        return self.steps[0]

    def files(self, _number: int) -> ReadableFilesystem:
        return self._files

    def sessions(self, _number: int) -> Mapping[UUID, timeline.StoredSession]:
        return self._sessions

    def session_values(self, _number: int) -> Mapping[str, Any]:
        return {}

    def messages(self, _number: int) -> Sequence[Any]:
        return ()

    def diff(self, before: int, after: int) -> Diff:
        return diff(self.files(before), self.files(after), path=[])

    def close(self) -> None:
        self._files.close()


Recording: TypeAlias = timeline.Timeline | _LastState
"""The steps of a session, with the files, slices and messages at each of them."""


class RecordedSession:
    """A session whose files are opened when they are needed; one thread at a time uses it."""

    def __init__(self, files: SessionFiles) -> None:
        """Show these files."""
        self.files = files
        self.lock: AbstractContextManager[bool] = RLock()
        self._recording: Recording | None = None
        self._identity: object = None

    @property
    def name(self) -> str:
        """Its name: that of its files without their suffix, or of the directory of a run."""
        return self.files.title

    @property
    def is_open(self) -> bool:
        """Whether its files are open."""
        return self._recording is not None

    @property
    def version(self) -> tuple[int, int, int] | None:
        """Return what differs after every change of its main file; None if that is gone."""
        try:
            found = timeline.steps_file(self.files.main).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def open(self) -> Recording:
        """Return the recording with the steps that there are now.

        Raises:
            RecordingError: It cannot be read.
        """
        try:
            identity = self._identify()
            if self._recording is None or identity != self._identity:
                self.close()
                self._recording, self._identity = self._load(), identity
            else:
                self._recording.refresh()
        except (OSError, DumpError, timeline.TimelineError, ArchiveError, SerdeError) as error:
            raise RecordingError(f"Session cannot be read: {error}") from error
        return self._recording

    def close(self) -> None:
        """Close the files; they can be opened again."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def _identify(self) -> object:
        """Return what changes when the file is replaced; a timeline grows without that."""
        path = self.files.main
        found = path.stat()
        return path, found.st_ino, 0 if path == self.files.timeline else found.st_mtime_ns

    def _load(self) -> Recording:
        if self.files.timeline.exists():
            return timeline.Timeline(self.files.timeline)
        return _LastState(self.files)


def _modified_at(session: SessionFiles) -> tuple[float, str]:
    try:
        return session.main.stat().st_mtime, session.name
    except OSError:
        return 0.0, session.name
