"""The calls of earlier sessions: kept on disk, so that they can be undone after a restart.

Each session appends its calls to a file of its own, one JSON object per line, so that several
servers on one directory do not disturb each other. The states themselves are in the snapshot store.
A command that runs is in a locked file: if the server is killed, the lock is gone, and the next one
knows what was interrupted.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from weakincentives.mcp.clients import McpClient
from weakincentives.mcp.steps import Step
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, decode, encode

MAX_SESSIONS = 100
"""Sessions whose calls are kept; the files of older ones are removed."""
MAX_LOADED = 1_000
"""Calls of earlier sessions that can be undone."""
_SUFFIX = ".calls"
_RUNNING = ".running"
_EARLIER = ", earlier session"
_MAX_FILE = 64 * 1024 * 1024
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Line:
    """A call on disk; numbers are those of its session, so others are named by their state."""

    step: Step
    undone: tuple[UUID, ...] = ()


class HistoryLog:
    """The calls of the sessions on one directory.

    Not thread-safe, as `History`.
    """

    def __init__(self, directory: Path) -> None:
        """Keep the calls in files in `directory`, which is created when there is one."""
        self._directory = directory
        self._path = directory / f"{time.time_ns():020}-{os.getpid()}{_SUFFIX}"
        self._states: dict[int, UUID] = {}
        self._running: int | None = None

    def begin(self, step: Step) -> None:
        """Note a call that begins, in case that this session is killed before it ends.

        Raises:
            OSError: It could not be written.
        """
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        self._running = os.open(new, _NEW_FILE | os.O_TRUNC, 0o600)
        try:
            fcntl.flock(self._running, fcntl.LOCK_EX)
            os.write(self._running, encode(step))
            new.rename(self._path.with_suffix(_RUNNING))  # locked before another server sees it
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def end(self) -> None:
        """Note that the call has ended."""
        if self._running is not None:
            self._path.with_suffix(_RUNNING).unlink(missing_ok=True)
            os.close(self._running)
            self._running = None

    def interrupted(self) -> Iterator[Step]:
        """Return the calls whose session was killed before they ended; each is returned once."""
        for file in sorted(self._directory.glob(f"*{_RUNNING}")):
            with suppress(OSError), file.open("rb") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its server runs
                with suppress(SerdeError):  # a full disk
                    step = decode(opened.read(_MAX_FILE), Step)
                    yield replace(step, client=_earlier(step.client), is_interrupted=True)
                file.unlink(missing_ok=True)

    def load(self) -> list[Step]:
        """Return the calls of earlier sessions, numbered from 1, the oldest first."""
        lines = list(self._read_lines())[-MAX_LOADED:]
        numbers: dict[UUID, int] = {}
        found: list[Step] = []
        for number, line in enumerate(lines, 1):
            step = line.step
            undoes = tuple(numbers[each] for each in line.undone if each in numbers)
            step = replace(step, number=number, client=_earlier(step.client), undoes=undoes)
            found.append(step)
            self._remember(step)
            numbers[self._states[number]] = number
        return found

    def append(self, step: Step) -> None:
        """Add a call of this session; one that changed nothing is left out.

        Raises:
            OSError: It could not be written.
        """
        if step.after is None:
            return
        self._remember(step)
        undone = tuple(self._states[each] for each in step.undoes if each in self._states)
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, _NEW_FILE, 0o600)
        try:
            os.write(descriptor, encode(_Line(step, undone)) + b"\n")
        finally:
            os.close(descriptor)

    def _remember(self, step: Step) -> None:
        assert step.after is not None
        self._states[step.number] = step.after.snapshot_id

    def _read_lines(self) -> Iterator[_Line]:
        files = sorted(self._directory.glob(f"*{_SUFFIX}"))
        for old in files[:-MAX_SESSIONS]:
            with suppress(OSError):
                old.unlink()
        for file in files[-MAX_SESSIONS:]:
            with suppress(OSError):
                for line in read_regular(file, _MAX_FILE).splitlines():
                    with suppress(SerdeError):  # the end of a line is missing after a crash
                        found = decode(line, _Line)
                        if found.step.before is not None and found.step.after is not None:
                            yield found


def _earlier(client: McpClient) -> McpClient:
    """Return a client with a name that says that it is gone."""
    name = client.name.removesuffix(_EARLIER)
    return McpClient(f"{name}{_EARLIER}", client.number)
