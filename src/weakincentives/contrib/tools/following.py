"""Keeping what a session knows about its files in step with the files."""

from collections.abc import Callable, Set
from datetime import datetime
from typing import Any

from weakincentives.contrib.tools.projection import VirtualFileSystem, reducers, scan
from weakincentives.filesystem import (
    Filesystem,
    FilesystemEvent,
    ObservableFilesystem,
    StateReplaced,
)
from weakincentives.runtime.clock import SYSTEM_CLOCK, Clock
from weakincentives.runtime.session import Reducer, Session, publishing_session
from weakincentives.runtime.transactions import current_transaction


class FileFollower:
    """Keeps the `VirtualFileSystem` slice of one session in step with one filesystem.

    Changes inside a transaction reach the session when it is committed; those that a
    program makes past any transaction reach it at once.
    """

    def __init__(
        self,
        session: Session,
        filesystem: Filesystem,
        *,
        root_path: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Look through `filesystem`, fill the slice, and follow from now on."""
        self._session = session
        self._filesystem = filesystem
        self._root_path = root_path
        self._clock = clock
        self._is_closed = False
        self._stops: list[Callable[[], None]] = []
        is_new = session[VirtualFileSystem].latest() is None  # then installing it fills it
        session.install(VirtualFileSystem, initial=self.first_look, reducers=self._reducers())
        if not is_new:
            session[VirtualFileSystem].seed(self.first_look())
        self._stops.append(session.bus.subscribe(StateReplaced, self._replaced))
        if isinstance(filesystem, ObservableFilesystem):
            self._stops.append(filesystem.subscribe(self._changed))

    def first_look(self) -> VirtualFileSystem:
        """Return what is there as if nothing had been known."""
        return scan(self._filesystem, VirtualFileSystem(), self._root_path, self._now())

    def start_over(self) -> None:
        """Forget what was known, and look again."""
        self._session[VirtualFileSystem].seed(self.first_look())

    def close(self) -> None:
        """Follow no more; the slice stays as it is."""
        self._is_closed = True
        for stop in self._stops:
            stop()
        self._stops.clear()

    def _scanned(self, rewritten: Set[str] | None) -> VirtualFileSystem:
        known = self._session[VirtualFileSystem].latest() or VirtualFileSystem()
        return scan(self._filesystem, known, self._root_path, self._now(), rewritten)

    def _now(self) -> datetime:
        return self._clock.now()

    def _reducers(self) -> dict[type[Any], Reducer[VirtualFileSystem, Any]]:
        folds = reducers(self._now)
        return {kind: self._of_this_session(fold) for kind, fold in folds.items()}

    def _of_this_session(
        self, fold: Reducer[VirtualFileSystem, Any]
    ) -> Reducer[VirtualFileSystem, Any]:
        """Return a reducer that leaves alone what sessions on the same bus tell of their files."""

        def reducer(known: tuple[VirtualFileSystem, ...], event: Any) -> Any:
            return fold(known, event) if self._is_ours() else known

        return reducer

    def _is_ours(self) -> bool:
        if self._is_closed:
            return False
        return publishing_session() in {None, self._session.session_id}

    def _changed(self, event: FilesystemEvent) -> None:
        """Bring a change to the session, unless a transaction will."""
        around = current_transaction()
        if around is None or not around.covers(self._filesystem):
            self._session.dispatch(event)

    def _replaced(self, event: StateReplaced) -> None:
        if self._is_ours():
            self._session[VirtualFileSystem].seed(self._scanned(event.rewritten))
