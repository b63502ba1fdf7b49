"""What the rollback of a command displaces in a copy is kept and named; wink undo restores it.

A rollback restores all files, also those that the user saved while the command ran. The state
before it is in the snapshot store of the copy.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from weakincentives.cli.run.recovery import changed_paths
from weakincentives.cli.runs import Displaced, read_run, update_run
from weakincentives.contrib.review import WorkingCopy
from weakincentives.filesystem import HostFilesystem, diff
from weakincentives.filesystem.base import is_tool_output
from weakincentives.posix import no_time_limit
from weakincentives.runtime import ToolInvoked, rollback
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder


class DisplacedFiles:
    """The paths that rollbacks displaced in a copy, by the step of the call."""

    def __init__(self, copy: WorkingCopy, filesystem: HostFilesystem) -> None:
        """Begin with none."""
        self._copy = copy
        self._filesystem = filesystem
        self._seen = filesystem.replaced
        self.paths: dict[int, tuple[str, ...]] = {}

    @contextmanager
    def record(self, session: Session, recorder: SessionRecorder) -> Generator[None]:
        """Note what is displaced until the context ends; `recorder` knows the steps."""
        log = logging.getLogger(rollback.__name__)
        log.addFilter(_hide)  # the report names the paths, with the command to restore them
        unsubscribe = session.bus.subscribe(ToolInvoked, lambda each: self._note(each, recorder))
        try:
            yield
        finally:
            unsubscribe()
            log.removeFilter(_hide)

    def _note(self, event: ToolInvoked, recorder: SessionRecorder) -> None:
        files, before = self._filesystem, self._filesystem.replaced
        if event.success or before is None or before == self._seen:
            return
        self._seen = before
        with no_time_limit():
            now = files.snapshot(tag="rolled back")
        changes = diff(files.view(before), files.view(now), renames=False).entries
        paths = changed_paths([each for each in changes if not is_tool_output(each.path)])
        if paths:
            step = recorder.last
            self.paths[step] = paths
            record = read_run(self._copy.place)
            known = {} if record is None else record.displaced
            update_run(self._copy.place, displaced={**known, step: Displaced(before, now)})


def _hide(_: logging.LogRecord) -> bool:
    return False
