"""What the rollback of a command displaces in a copy is kept and named; wink undo restores it.

A rollback replaces all files, also those that the user saved while the command ran.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.adapters import CancellationToken
from weakincentives.cli.run.recovery import changed_paths
from weakincentives.cli.runs import Displaced, read_run, update_run
from weakincentives.contrib.review import WorkingCopy
from weakincentives.contrib.tools.context import DescribedHandler, Handler, HandlerContext
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem, diff
from weakincentives.filesystem.base import is_tool_output
from weakincentives.posix import no_time_limit
from weakincentives.prompt import ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder


class RollbackKeeper:
    """Keeps the state of the files before a command is rolled back."""

    def __init__(
        self, copy: WorkingCopy, filesystem: HostFilesystem, cancellation: CancellationToken
    ) -> None:
        """Watch the commands in `copy`."""
        self._copy = copy
        self._filesystem = filesystem
        self._cancellation = cancellation
        self._before: FilesystemSnapshot | None = None
        self.displaced: dict[int, tuple[str, ...]] = {}
        """The paths that were displaced, by the step of the call."""

    def wrap(self, handlers: Mapping[type[Any], Handler]) -> dict[type[Any], Handler]:
        """Return the handlers, with those watched that run commands."""
        found = dict(handlers)
        for request, handler in handlers.items():
            if isinstance(handler, DescribedHandler) and handler.bypasses_filesystem:
                found[request] = _WatchedHandler(
                    handler.description, handler.bypasses_filesystem, handlers[request], self
                )
        return found

    def record(self, session: Session, recorder: SessionRecorder) -> Callable[[], object]:
        """Note what is displaced, from now on until the returned function is called."""
        return session.bus.subscribe(ToolInvoked, lambda event: self._note(event, recorder))

    def run(self, handler: Handler, request: Any, context: HandlerContext) -> ToolResult[Any]:
        """Run a command; if it is going to be rolled back, keep the files as they are."""
        is_done = False
        try:
            result = handler(request, context)
            is_done = result.success and not self._cancellation.is_cancelled
            return result
        finally:
            if not is_done:
                with no_time_limit():
                    self._before = self._take_snapshot("before a rollback")

    def _note(self, event: ToolInvoked, recorder: SessionRecorder) -> None:
        before, self._before = self._before, None
        if before is None or event.success:
            return
        with no_time_limit():
            now = self._take_snapshot("rolled back")
        files = self._filesystem
        changes = diff(files.view(before), files.view(now), renames=False).entries
        paths = changed_paths([each for each in changes if not is_tool_output(each.path)])
        if paths:
            self.displaced[recorder.last] = paths
            record = read_run(self._copy.place)
            known = {} if record is None else record.displaced
            update_run(self._copy.place, displaced={**known, recorder.last: Displaced(before, now)})

    def _take_snapshot(self, tag: str) -> FilesystemSnapshot:
        self._filesystem.invalidate()  # the user may have saved something
        return self._filesystem.snapshot(tag=tag)


@dataclass(frozen=True, slots=True)
class _WatchedHandler:
    """A handler of commands, run by a keeper."""

    description: str
    bypasses_filesystem: bool
    handler: Handler
    keeper: RollbackKeeper

    def __call__(self, request: Any, context: HandlerContext) -> ToolResult[Any]:
        return self.keeper.run(self.handler, request, context)
