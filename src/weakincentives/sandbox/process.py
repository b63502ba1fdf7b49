"""A running command: its pipes, its supervisor, and one poll loop that serves them.

There are no threads. Output is read for as long as any process can write it, so that no
command blocks on a full pipe; bytes beyond the limit are counted and discarded.
"""

import os
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from weakincentives.sandbox import process_tree
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.launcher import (
    RESPONSE_TIMEOUT,
    Launcher,
    SupervisorProcess,
    SupervisorReport,
)
from weakincentives.sandbox.output import OutputBuffer, Pollable, Reader, Writer
from weakincentives.sandbox.protocol import OutputListener

_MAX_POLL = 1e6  # seconds; beyond it, poll without a timeout


class RunningCommand(ABC):
    """A command that has been started by a sandbox."""

    def __init__(
        self, grace: float, max_output: int, on_output: OutputListener | None = None
    ) -> None:
        """Start without any output.

        Args:
            grace: Seconds between `SIGTERM` and `SIGKILL` when it is stopped.
            max_output: Bytes of each stream to keep.
            on_output: Called with the stream's name and every chunk as it arrives.
        """
        self.out: OutputBuffer = OutputBuffer(
            max_output, on_output and partial(on_output, "stdout")
        )
        self.err: OutputBuffer = OutputBuffer(
            max_output, on_output and partial(on_output, "stderr")
        )
        self.report: SupervisorReport = SupervisorReport()
        """What the supervisor has reported so far."""
        self._grace = grace

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether no process of it is left."""

    @abstractmethod
    def serve(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Read its output until no process is left; return False on timeout."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and everything it started; thread-safe and idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Release what it uses; kill what still runs."""

    def finish(self) -> None:
        """Stop what still runs, then close."""
        try:
            if not self.has_ended:
                self.stop()
            limit = self._grace + process_tree.KILL_TIMEOUT + RESPONSE_TIMEOUT
            self.serve(time.monotonic() + limit)
        finally:
            self.close()


class CommandProcess(RunningCommand):
    """A command with its supervisor, from start until every process is gone."""

    def __init__(
        self,
        launcher: Launcher,
        command: PreparedCommand,
        directory: int,
        max_output: int,
        on_output: OutputListener | None = None,
    ) -> None:
        """Start it in the directory with this open descriptor, with the fork server `launcher`.

        Raises:
            OSError: The supervisor process could not be created.
        """
        super().__init__(command.grace, max_output, on_output)
        self._launcher = launcher
        self._readers = Reader(self.out), Reader(self.err)
        self._stdin = Writer(command.stdin) if command.stdin else None
        self._poll = select.poll()
        self._streams: dict[int, Pollable] = {}
        self._lock = threading.RLock()  # a signal handler may stop it
        self._supervisor: SupervisorProcess | None = None
        self.is_stopped: bool = False
        """Whether somebody has stopped it, which can also be before it ran."""
        try:
            self._supervisor = launcher.take()
            self._start(self._supervisor, command, directory)
            self.report: SupervisorReport = self._supervisor.report
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether no process of it is left."""
        return self.report.is_done

    def serve(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Serve all streams until no process is left; return False on timeout."""
        served = self._supervisor
        while served is not None and not served.has_ended:
            left = until - clock()
            if left <= 0:
                return False
            for descriptor, _ in self._poll.poll(None if left > _MAX_POLL else left * 1000 + 1):
                if not self._streams[descriptor].serve():
                    self._poll.unregister(descriptor)
                    del self._streams[descriptor]
        for each in self._readers:
            each.drain()
        return True

    def stop(self) -> None:
        """Ask the supervisor to stop everything; thread-safe and idempotent."""
        with self._lock:
            self.is_stopped = True
            if self._supervisor is not None:
                self._supervisor.stop()

    def close(self) -> None:
        """Release all resources; kill what still runs."""
        with self._lock:
            taken, self._supervisor = self._supervisor, None
        if taken is not None:
            if not self.report.is_done:
                taken.kill()
            self._launcher.release(taken)
        for each in (*self._readers, self._stdin):
            if each is not None:
                each.close()

    def _start(self, taken: SupervisorProcess, command: PreparedCommand, directory: int) -> None:
        null = os.open(os.devnull, os.O_RDONLY) if self._stdin is None else -1
        stdin = null if self._stdin is None else self._stdin.remote
        streams = (stdin, *(each.remote for each in self._readers))
        try:
            taken.start(command, (directory, *streams, *command.confinement.descriptors))
        finally:
            if null >= 0:
                os.close(null)
        for each in (*self._readers, self._stdin):
            if each is not None:
                each.close_remote()
                self._add(each)
        self._add(taken)

    def _add(self, stream: Pollable) -> None:
        self._streams[stream.fileno()] = stream
        self._poll.register(stream.fileno(), stream.events)
