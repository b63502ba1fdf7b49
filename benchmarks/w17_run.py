"""W17: what `wink run` costs beside a copy: to the first request, and a run with one change.

The command runs in a fork of this process, which has imported it: the start of the program is
the same for any directory. It prints JSON lines, and the time of each ends a phase.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.corpus import Corpus
from benchmarks.goals import show, within_limit
from benchmarks.harness import Case, Contender, Fact, Workload, expect
from benchmarks.peer_git import ABSENT, GIT, git, isolated
from benchmarks.stage import Stage
from weakincentives.adapters import Completion, ScriptedAdapter
from weakincentives.cli import main as cli

# imported here, and not in each fork
from weakincentives.cli.run import command as _command
from weakincentives.cli.run import rounds as _rounds

CHANGED = "few/new.py"
GOAL = within_limit(1.3, "cp -a")
PHASES = {
    "started": "copy and first snapshot",
    "digest": "digest",
    "request": "recording begins, first request",
    "step": "first answer",
    "tool": "the change",
    "second": "second request",
    "answer": "second answer",
    "finished": "recording ends, dump, diff, discard",
}
_FORK_FAILED = 70

assert _command
assert _rounds


def cases(stage: Stage) -> Iterator[Case]:
    """Each size twice: until the model is asked, and until the copy is discarded."""
    for size in stage.sizes_or(1_000, 10_000, 100_000):
        corpus = stage.tree(size)
        run = Run(stage.scratch(), corpus, _phases.setdefault(corpus.name, []))
        run.finish(run.start())  # fills the cache of the digest, as the run before did
        run.phases.clear()
        copy = _copy(stage.scratch(), corpus)
        worktree = [] if GIT is None else [_worktree(stage.scratch(), corpus)]
        absent = (ABSENT,) if GIT is None else ()
        for name, ours in (
            ("to the first request", run.until_request()),
            ("with one change", run.until_end()),
        ):
            contenders = (ours, copy, *worktree)
            yield Case(f"a run {name}, {corpus.name}", contenders, (GOAL,), absent, size, name)


def facts(stage: Stage) -> Iterator[Fact]:
    """The phases of the runs that were measured as a whole."""
    for name, runs in _phases.items():
        for event, phase in PHASES.items():
            times = [each[event] for each in runs if event in each]
            if times:
                yield Fact(f"{name}: {phase}", show(statistics.median(times)))
    _phases.clear()


_phases: dict[str, list[dict[str, float]]] = {}  # by corpus: the seconds of each phase, by event


@dataclass(slots=True)
class Started:
    """A command that runs, and what it printed so far."""

    process: int
    output: IO[str]
    last: float
    events: dict[str, float] = field(default_factory=dict[str, float])
    lines: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    def read_until(self, wanted: str) -> None:
        """Read until an event, or the end."""
        for line in self.output:
            now = time.perf_counter()
            self.lines.append(json.loads(line))
            event = str(self.lines[-1]["event"])
            if event == "request" and event in self.events:
                event = "second"
            if event == "step" and event in self.events:
                event = "answer"
            self.events[event] = self.events.get(event, 0.0) + now - self.last
            self.last = now
            if event == wanted:
                return


class Run:
    """`wink run` with a script that changes one file, in places of its own."""

    def __init__(self, home: Path, corpus: Corpus, phases: list[dict[str, float]]) -> None:
        """Run on `corpus`; the phases of whole runs are added to `phases`."""
        self.phases = phases
        self._home = home
        self._current: Started | None = None
        places = ("tmp", "state", "cache", "config")
        for name in places:
            (home / name).mkdir()
        tmp, state, cache, config = (str(home / name) for name in places)
        self._environment = {name: os.environ[name] for name in ("PATH",) if name in os.environ} | {
            "TMPDIR": tmp,
            "HOME": str(home),
            "XDG_STATE_HOME": state,
            "XDG_CACHE_HOME": cache,
            "XDG_CONFIG_HOME": config,
        }
        call = {"name": "write_file", "arguments": {"file_path": CHANGED, "content": "few = 7\n"}}
        script = home / "script.json"
        script.write_text(json.dumps([call, "Changed."]))
        self._arguments = ["run", "change a file", "--workspace", str(corpus.root)]
        self._arguments += ["--model", f"scripted:{script}", "--dialect", "classic"]
        # no command runs, and starting a sandbox costs the same for any directory
        self._arguments += ["--sandbox", "none", "--discard", "--json"]

    def until_request(self) -> Contender:
        """Ours, timed until the model is asked."""

        def run() -> Started:
            started = self._current = self.start()
            started.read_until("request")
            return started

        return Contender(
            "wink run", "ours", run, lambda _: self._check(), self._sweep, threads=True, wall=600
        )

    def until_end(self) -> Contender:
        """Ours, timed until the program has ended."""

        def run() -> Started:
            started = self._current = self.start()
            self.finish(started)
            return started

        return Contender(
            "wink run", "ours", run, lambda _: self._check(), self._sweep, threads=True, wall=600
        )

    def start(self) -> Started:
        """Fork a process that runs the command."""
        readable, writable = os.pipe()
        began = time.perf_counter()
        process = os.fork()
        if not process:
            _run_command(self._arguments, self._environment, writable)
        os.close(writable)
        return Started(process, os.fdopen(readable), began)

    def finish(self, started: Started) -> None:
        """Wait for the end of the program."""
        started.read_until("")
        started.output.close()
        _, status = os.waitpid(started.process, 0)
        now = time.perf_counter()
        started.events["finished"] = started.events.get("finished", 0.0) + now - started.last
        started.process = 0
        expect(os.waitstatus_to_exitcode(status), 0, "exit code")
        self.phases.append(started.events)

    def _check(self) -> None:
        started = self._current
        assert started is not None
        if started.process:
            self.finish(started)
            self.phases.pop()  # this one waited for the benchmark
        last = started.lines[-1]
        expect((last["result"], last["files_changed"]), ("discarded", 1), "outcome")
        copies = [each for each in self._home.rglob("workspace") if each.is_dir()]
        expect(copies, [], "copies left")

    def _sweep(self) -> None:
        """Remove the dumps of the last sample."""
        for path in (self._home / "state").rglob("*"):
            if path.is_file():
                path.unlink()


def _announce_request(complete: Callable[..., Completion]) -> Callable[..., Completion]:
    """Return the method of the adapter that answers a request, with a line when it is called."""

    def announce(*arguments: Any, **options: Any) -> Completion:
        print(json.dumps({"event": "request"}), flush=True)
        return complete(*arguments, **options)

    return announce


def _run_command(arguments: list[str], environment: dict[str, str], output: int) -> None:
    """Run the command in this process, which ends with it."""
    code = _FORK_FAILED
    try:
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # it was taken from the environment before
        with os.fdopen(output, "w") as sys.stdout:
            ScriptedAdapter.complete = _announce_request(ScriptedAdapter.complete)
            cli.main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else _FORK_FAILED
    finally:
        os._exit(code)


def _copy(place: Path, corpus: Corpus) -> Contender:
    """`cp -a` to a directory that does not exist."""
    target = place / "copy"

    def run() -> None:
        subprocess.run(["cp", "-a", str(corpus.root), str(target)], check=True)

    return Contender(
        "cp -a",
        "limit",
        run,
        lambda _: expect(_count(target), corpus.files, "files"),
        lambda: _remove(target),
        wall=600,
    )


def _worktree(place: Path, corpus: Corpus) -> Contender:
    """`git worktree add` of a repository with the same files."""
    environment = isolated(place) | {"GIT_DIR": str(place / "git")}
    target = place / "worktree"
    git(environment, "init", "--quiet", "--bare")
    add = {"GIT_WORK_TREE": str(corpus.root), "GIT_INDEX_FILE": str(place / "index")}
    git(environment | add, "add", "-A")
    tree = git(environment | add, "write-tree")
    commit = git(environment, "commit-tree", "-m", "all", tree)

    def prepare() -> None:
        _remove(target)
        git(environment, "worktree", "prune")

    return Contender(
        "git worktree add",
        "peer",
        lambda: git(environment, "worktree", "add", "--quiet", "--detach", str(target), commit),
        lambda _: expect(_count(target), corpus.files + 1, "files and .git"),
        prepare,
        wall=600,
        threads=True,
    )


def _remove(target: Path) -> None:
    subprocess.run(["rm", "-rf", str(target)], check=True)


def _count(root: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(root))


WORKLOAD = Workload("W17", "`wink run` beside a copy", cases, facts)
