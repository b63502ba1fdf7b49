"""Moments: the points of an operation at which a person acts, or at which it is killed.

The operation runs in a child. Before every system call that it makes about files, and at every
fault point, the child counts a moment; at those of its schedule it waits until the person, who is
the parent, has done a step, or it dies, is interrupted, or finds the disk full. So there is no
window in an operation that luck has to find.
"""

import errno
import functools
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Literal

from weakincentives.posix import atomic, fault_hook

Action = Literal["act", "kill", "interrupt", "fill"]
Work = Callable[["Moments"], str]

TraceFunction = Callable[[FrameType, str, object], Any]

TIMEOUT = 60
"""Seconds until an operation that does not end is killed; none needs them."""
CHANGING = frozenset(
    {
        *("chmod", "fchmod", "link", "mkdir", "removexattr", "rename", "replace", "rmdir"),
        *("setxattr", "symlink", "truncate", "unlink", "_renameat2"),
    }
)
"""The calls that change a directory: what is done just before one is lost most easily."""
_READING = frozenset(
    {
        *("close", "copy_file_range", "fstat", "fsync", "getxattr", "listdir", "listxattr"),
        *("lstat", "open", "pread", "read", "readlink", "scandir", "sendfile", "stat", "write"),
    }
)
_GROWING = ("copy_file_range", "sendfile", "setxattr", "write")
_RENAME = "_renameat2"  # by ctypes, and not in os
_ACT, _DONE, _RESULT = b"?", b"!", b"="
_MAX_RESULT = 60_000
_MAX_LINES = 40


@dataclass(slots=True)
class Moments:
    """Counts the moments of an operation, and does what is scheduled for them."""

    schedule: Mapping[int, list[Action]]
    channel: socket.socket
    place: Path
    names: list[str] = field(default_factory=list[str])
    _is_open: bool = False
    _is_full: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _busy: set[int] = field(default_factory=set[int])

    def mark(self, name: str) -> None:
        """Count a moment, and do what is scheduled for it."""
        this = threading.get_ident()
        if not self._is_open or this in self._busy:
            return
        with self._lock:
            self._busy.add(this)
            try:
                actions = self.schedule.get(len(self.names), ())
                self.names.append(name)
                for action in actions:
                    self._do(action)
                if self._is_full and name.startswith(_GROWING):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                self._busy.discard(this)

    @contextmanager
    def count(self) -> Generator[None]:
        """Count the moments of this block, in all threads that `watch` has seen begin."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    @contextmanager
    def pause(self) -> Generator[None]:
        """Count no moment in this block."""
        was_open, self._is_open = self._is_open, False
        try:
            yield
        finally:
            self._is_open = was_open

    @contextmanager
    def watch(self) -> Generator[None]:
        """Notice the system calls of this process; for the rest of its life."""
        for name in sorted((CHANGING | _READING) - {_RENAME}):
            _replace(os, name, self)
        _replace(atomic, _RENAME, self)
        with fault_hook(self.mark):
            yield

    def _do(self, action: Action) -> None:
        if action == "act":
            self.channel.send(_ACT)
            self.channel.recv(1)
        elif action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "interrupt":
            _interrupt_after(len(self.names) % _MAX_LINES)
        elif self.place.is_mount():
            fill_disk(self.place)
        else:  # we may not mount a small one
            self._is_full = True


@dataclass(frozen=True, slots=True)
class Ending:
    """How an operation ended."""

    code: int
    text: str
    is_hung: bool = False

    @property
    def is_killed(self) -> bool:
        """Whether it was killed."""
        return self.code == -signal.SIGKILL


def run(
    work: Work, place: Path, schedule: Mapping[int, list[Action]], act: Callable[[], object]
) -> Ending:
    """Do `work` in a child, and call `act` here at the moments that are scheduled for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        ours.close()
        _work(work, Moments(schedule, theirs, place))
    theirs.close()
    with ours:
        return _accompany(child, ours, act)


def _work(work: Work, moments: Moments) -> None:
    code = 1
    log = StringIO()
    logging.basicConfig(stream=log, force=True)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with moments.watch():
            text = work(moments)
        text += log.getvalue()  # what a person is told
        moments.channel.send(_RESULT + text.encode(errors="replace")[:_MAX_RESULT])
        code = 0
    except BaseException:  # noqa: BLE001 # the parent is told
        text = traceback.format_exc()
        with suppress(OSError):
            moments.channel.send(_RESULT + text.encode(errors="replace")[-_MAX_RESULT:])
    finally:
        os._exit(code)


def _accompany(child: int, ours: socket.socket, act: Callable[[], object]) -> Ending:
    """Act whenever the child asks for it, until it has ended."""
    text, is_hung = "", False
    descriptor = os.pidfd_open(child)
    try:
        while True:
            # its own children may hold the other end longer than it lives
            ready, _, _ = select.select([ours, descriptor], [], [], TIMEOUT)
            if ours in ready:
                message = ours.recv(_MAX_RESULT + 1)
                if message == _ACT:
                    act()
                    with suppress(OSError):
                        ours.send(_DONE)
                    continue
                if message:
                    text = message[1:].decode(errors="replace")
                    continue
            if not ready:
                is_hung = True
                os.kill(child, signal.SIGKILL)
            break
    finally:
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ending(code, text, is_hung)


def _replace(module: ModuleType, name: str, moments: Moments) -> None:
    """Let a function of a module begin with a moment."""
    function = getattr(module, name)

    @functools.wraps(function)
    def call(*arguments: object, **options: object) -> object:
        moments.mark(f"{name} {_last_name(arguments)}" if name in CHANGING else name)
        return function(*arguments, **options)

    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in supported:
            supported.add(call)
    setattr(module, name, call)


def _last_name(arguments: tuple[object, ...]) -> str:
    """Return the name of the entry that a call is about: of a rename, the new one."""
    for each in reversed(arguments):
        found = each[1] if isinstance(each, tuple) and len(each) == 2 else each
        if isinstance(found, str | bytes | os.PathLike):
            return os.path.basename(os.fsdecode(found))  # noqa: PTH119 # bytes too
    return ""


def _interrupt_after(lines: int) -> None:
    """Send Ctrl-C to this process some lines from now: also between two system calls."""
    left = lines

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal left
        if not frame.f_globals.get("__name__", "").startswith("weakincentives"):
            return None
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGINT)
            return None
        return trace

    frame = sys._getframe()
    while frame is not None:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)


def fill_disk(place: Path) -> None:
    """Write until there is no room left; on a small disk only."""
    with suppress(OSError), (place / "filler").open("ab", buffering=0) as filler:
        for size in (65_536, 4_096, 512, 1):
            with suppress(OSError):
                while filler.write(bytes(size)) == size:
                    pass


def free_disk(place: Path) -> None:
    """Make room again."""
    (place / "filler").unlink(missing_ok=True)
