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
from weakincentives.runtime.session import (
    Reducer,
    Session,
    TransactionEndedError,
    publishing_session,
)
from weakincentives.runtime.transactions import Transaction, current_transaction, look_at


class FileFollower:
    """Keeps the `VirtualFileSystem` slice of one session in step with one filesystem.

    Changes inside a transaction reach the session when it is committed; those that a
    program makes past any transaction reach it at once. When the session goes back alone,
    the files are looked at again.
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
        self._is_closed = self._is_following = False
        self._awaited: set[Transaction] = set()
        self._stops: list[Callable[[], None]] = []
        is_new = session[VirtualFileSystem].latest() is None  # then installing it fills it
        session.install(
            VirtualFileSystem,
            initial=self.first_look,
            reducers=self._reducers(),
            refresh=self._look_again,
        )
        if not is_new:
            self.start_over()
        self._is_following = True
        self._stops.append(session.bus.subscribe(StateReplaced, self._replaced))
        if isinstance(filesystem, ObservableFilesystem):
            self._stops.append(filesystem.subscribe(self._changed))

    def first_look(self) -> VirtualFileSystem:
        """Return what is there as if nothing had been known."""
        return self._look(None)

    def start_over(self) -> None:
        """Forget what was known, and look again."""
        self._session.refresh(VirtualFileSystem, lambda _: self.first_look())

    def close(self) -> None:
        """Follow no more; the slice stays as it is."""
        self._is_closed = True
        for stop in self._stops:
            stop()
        self._stops.clear()

    def _look(
        self, known: VirtualFileSystem | None, rewritten: Set[str] | None = None
    ) -> VirtualFileSystem:
        """Return what is there, compared with what was known."""

        def look() -> VirtualFileSystem:
            return scan(
                self._filesystem,
                known or VirtualFileSystem(),
                self._root_path,
                self._now(),
                rewritten,
                sniff=self._is_following,
            )

        found, unsettled = look_at(self._filesystem, look)
        for each in unsettled:
            self._await(each)
        return found

    def _look_again(self, known: VirtualFileSystem | None) -> VirtualFileSystem:
        """Return what is there after the session went back to `known`."""
        if self._is_closed:
            return known or VirtualFileSystem(self._root_path)
        return self._look(known or VirtualFileSystem())

    def _await(self, unsettled: Transaction) -> None:
        """Look again when it is certain whether what a transaction has changed stays."""
        if unsettled in self._awaited:
            return
        self._awaited.add(unsettled)

        def settle() -> None:
            self._awaited.discard(unsettled)
            self._bring_up_to_date()

        unsettled.when_over(settle)

    def _bring_up_to_date(self, rewritten: Set[str] | None = None) -> None:
        if not self._is_closed:
            self._session.refresh(
                VirtualFileSystem,
                lambda known: self._look(known or VirtualFileSystem(), rewritten),
            )

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
        if around is not None and around.covers(self._filesystem):
            if around.session is not self._session:
                self._await(around.outermost)  # it tells its own session
            return
        try:
            self._session.dispatch(event)
        except TransactionEndedError:
            self._bring_up_to_date()  # the work of a call that was given up, but it is done

    def _replaced(self, event: StateReplaced) -> None:
        if self._is_ours():
            self._bring_up_to_date(event.rewritten)
