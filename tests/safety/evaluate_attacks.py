"""The attack table of `evaluate_python`: hogs and ways out, tried in each engine.

    python -m tests.safety.evaluate_attacks [ENGINE...]

A hog must end in a result within six seconds, while this process stays small and responsive, and
leave no process. A way out must not get anything: no secret, no file outside, no connection.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from tests.safety.escapes import KEY_VARIABLE, SECRET, Stage, make_stage
from tests.safety.hostile_code import ESCAPES, HOGS, STOLEN
from weakincentives.contrib.evaluation import (
    DEFAULT_EVAL_LIMITS,
    ENGINES,
    EvalLimits,
    EvalParams,
    EvalResult,
    Evaluator,
    FilesystemWorkspace,
    create_engine,
    render_result,
)
from weakincentives.filesystem import HostFilesystem

MAX_GROWTH = 50 * 1024**2
MAX_SECONDS = 6.0
PATIENCE = 60.0
"""Seconds until a process that was stopped must be gone; only a failure waits so long."""
_BEAT = 0.02
_STEADY = 25  # beats
_SPARES = 8  # processes that engines and sandboxes may keep ready beyond those at first
_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Arena:
    """An engine on a workspace with links to a secret outside."""

    evaluator: Evaluator
    workspace: FilesystemWorkspace
    stage: Stage

    def run(self, code: str) -> EvalResult:
        """Evaluate code on the stage."""
        return self.evaluator.evaluate(EvalParams(self.fill(code)), self.workspace)

    def fill(self, code: str) -> str:
        """Return code with the places of the stage filled in."""
        for name, value in {
            "home": str(self.stage.home),
            "directory": str(self.stage.directory),
            "port": str(self.stage.port),
            "pid": str(self.stage.bystander),
            "variable": KEY_VARIABLE,
        }.items():
            code = code.replace(f"{{{name}}}", value)
        return code

    def try_escape(self, code: str) -> str | None:
        """Return what code got that tries to get out; None if nothing."""
        return self.find_loot(self.run(code))

    def find_loot(self, result: EvalResult) -> str | None:
        """Return what code got by a result, or did outside; None if nothing."""
        text = self._read_text(result)
        planted = self.stage.directory / "planted"
        if planted.exists():
            planted.rmdir() if planted.is_dir() else planted.unlink()
            return "wrote outside"
        if self.stage.connections:
            self.stage.connections.clear()
            return "connected"
        if self.stage.secret.read_text() != SECRET:
            self.stage.secret.write_text(SECRET)
            return "changed the secret"
        # what it reaches within its own process is nothing special
        return "got the secret" if SECRET in text or STOLEN in text else None

    def _read_text(self, result: EvalResult) -> str:
        """Return everything that a model or a log could get to read."""
        shown = render_result(result, self.evaluator.engine.language)
        return f"{shown}\n{astuple(result)}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call cost the host.

    Args:
        seconds: How long it took.
        growth: By how many bytes this process grew at most.
        beats: How often another thread could run meanwhile.
    """

    seconds: float
    growth: int
    beats: int


@contextmanager
def open_arena(
    name: str, *, limits: EvalLimits = DEFAULT_EVAL_LIMITS
) -> Generator[Arena, None, None]:
    """Open an engine on a new stage; raise if a process of it is left at the end."""
    with adopt_orphans(), make_stage() as stage:
        (stage.workspace / "link").symlink_to(Path("../home", stage.secret.name))
        (stage.workspace / "out").symlink_to("..")
        before = len(find_processes())
        with ExitStack() as exits:
            engine = create_engine(name)
            exits.callback(engine.close)
            fs = HostFilesystem(stage.workspace)
            yield Arena(Evaluator(engine, limits=limits), FilesystemWorkspace(fs), stage)
        await_count(before)


def measure(arena: Arena, code: str) -> tuple[EvalResult, Cost]:
    """Evaluate code, and return what it cost this process."""
    stop = threading.Event()
    beats = 0

    def beat() -> None:
        nonlocal beats
        while not stop.wait(_BEAT):
            beats += 1

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        start = time.monotonic()
        result = arena.run(code)
        seconds = time.monotonic() - start
        growth = _resident("VmHWM") - before
    finally:
        stop.set()
        thread.join()
    return result, Cost(seconds, growth, beats)


@contextmanager
def adopt_orphans() -> Generator[None, None, None]:
    """Make this process the parent of daemons that its children leave, to see them."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_SUBREAPER, 0, 0, 0, 0)


def find_processes() -> set[int]:
    """Return the living descendants of this process."""
    parents = dict(_parents())
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def find_idle(arena: Arena) -> list[str]:
    """Return the command lines of the descendants that wait for the next call."""
    arena.run("1")
    pause = threading.Event()
    seen: list[list[str]] = []
    while len(seen) < _STEADY or any(each != seen[-1] for each in seen[-_STEADY:]):
        seen.append(sorted(map(_command, find_processes())))
        pause.wait(_BEAT)
    return seen[-1]


def await_idle(idle: Sequence[str]) -> None:
    """Wait until all descendants are of the idle kind, and only a few more than there were.

    Raises:
        AssertionError: Another kind stays, or too many.
    """
    known = set(idle)
    await_condition(
        lambda left: len(left) <= len(idle) + _SPARES and known.issuperset(map(_command, left))
    )


def await_count(count: int) -> None:
    """Wait until this process has no more than `count` descendants.

    Raises:
        AssertionError: There are more for too long.
    """
    await_condition(lambda left: len(left) <= count)


def await_condition(holds: Callable[[set[int]], bool]) -> None:
    """Wait until a condition holds for the descendants of this process.

    Raises:
        AssertionError: It does not for too long.
    """
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not holds(left := find_processes()):
        assert time.monotonic() < deadline, f"processes left: {[_command(each) for each in left]}"
        pause.wait(_BEAT)


def _parents() -> Iterator[tuple[int, int]]:
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                state, parent = (each / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    yield int(each.name), int(parent)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "?"


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def _hog(name: str, code: str) -> str:
    with open_arena(name) as arena:
        result, cost = measure(arena, code)
    if cost.seconds > MAX_SECONDS or cost.growth > MAX_GROWTH:
        return f"**{cost.seconds:.1f} s, {cost.growth / 1024**2:.0f} MiB**"
    outcome = "stopped" if result.timed_out else result.error.type if result.error else "result"
    return f"{outcome}, {cost.seconds:.1f} s"


def render(names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of two Markdown tables."""
    titles = " | ".join(f"`{name}`" for name in names)
    yield f"| hog | {titles} |"
    yield "|---|" + "---|" * len(names)
    for title, code in HOGS.items():
        yield f"| {title} | " + " | ".join(_hog(name, code) for name in names) + " |"
    yield ""
    yield f"| way out | {titles} |"
    yield "|---|" + "---|" * len(names)
    with ExitStack() as exits:
        arenas = [exits.enter_context(open_arena(name)) for name in names]
        for title, code in ESCAPES.items():
            loot = (arena.try_escape(code) for arena in arenas)
            yield f"| {title} | " + " | ".join(each or "stopped" for each in loot) + " |"


if __name__ == "__main__":
    for row in render(sys.argv[1:] or list(ENGINES)):
        print(row, flush=True)
