"""W18: a timeline of 1,000 steps over 10,000 files: its size, any step of it, and its page."""

import itertools
import random
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

try:
    from playwright.sync_api import Browser, sync_playwright

    from weakincentives.debug.server import DebugServer
except ModuleNotFoundError:  # the page is then absent from the table
    sync_playwright = DebugServer = None

from benchmarks.goals import at_most
from benchmarks.harness import Absent, Case, Contender, Fact, Workload, expect
from benchmarks.peer_git import ABSENT, GIT, git, isolated
from benchmarks.stage import Stage
from weakincentives.debug import SnapshotStore
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline

STEPS = 1_000
SEED = 18
FOLDER = 100
LINES = 40
CHROMIUM = shutil.which("chromium")
NO_BROWSER = "not installed: apt-get install chromium, pip install playwright '.[debug]'"
_FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
_WORDS = ["value", "total", "count", "name", "path", "index", "result", "line", "other", "part"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A timeline, and what it must contain."""

    path: Path
    edits: list[tuple[str, bytes]]
    tree: dict[str, bytes]


def cases(stage: Stage) -> Iterator[Case]:
    """A file at any step, the changes of any step, and the page."""
    recorded = _recorded(stage)
    timeline = stage.keep(Timeline(recorded.path))
    yield Case("a file as it was at any step", (_reader(timeline, recorded),), (at_most(0.05),))
    yield Case("the same, from a file that is opened for it", (_opener(recorded),))
    yield Case("the changes of any step", (_differ(timeline, recorded),), (at_most(0.05),))
    name = "the debug page, from its address to the summary shown"
    if sync_playwright is None or CHROMIUM is None:
        yield Case(name, (), (at_most(1.0),), (Absent("Chromium", NO_BROWSER),))
        return
    browser = stage.exits.enter_context(_browser())
    url = stage.exits.enter_context(_server(recorded.path))
    yield Case(name, (_painter(browser, url),), (at_most(1.0),))


def facts(stage: Stage) -> Iterator[Fact]:
    """The first paint; the size beside that of the tree, and of git's pack of the same states."""
    if _paints:
        paint = statistics.median(_paints)
        yield Fact("first contentful paint", f"{paint:.0f} ms, goal <= 1 s", paint <= 1_000)
    recorded = _recorded(stage)
    size = sum(each.stat().st_size for each in recorded.path.rglob("*") if each.is_file())
    tree = sum(map(len, recorded.tree.values()))
    yield Fact("timeline", f"{size / 1e6:.2f} MB, the tree {tree / 1e6:.2f} MB")
    if GIT is None:
        yield Fact("git's pack of the same states", ABSENT.reason)
        return
    pack = _git_pack(stage.scratch(), recorded)
    text = f"{pack / 1e6:.2f} MB; the timeline is {size / pack:.2f} x that, goal <= 1.2 x"
    yield Fact("git's pack of the same states, without deltas", text, size <= 1.2 * pack)


_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_paints: list[float] = []  # milliseconds, one for each time that the page was opened
_made: dict[int, Recorded] = {}


def _recorded(stage: Stage) -> Recorded:
    """Record the session of a stage, once."""
    if id(stage) not in _made:
        (files,) = stage.sizes_or(10_000) if not stage.smallest else (200,)
        steps = 20 if stage.smallest else STEPS
        _made[id(stage)] = _record(stage.scratch() / "bench.timeline", files, steps)
        stage.exits.callback(_made.pop, id(stage))
    return _made[id(stage)]


def _record(path: Path, count: int, steps: int) -> Recorded:
    chance = random.Random(SEED)
    tree = {f"d{n // FOLDER:04}/f{n:06}.py": _source(chance) for n in range(count)}
    files = InMemoryFilesystem()
    for name, content in tree.items():
        files.write_bytes(name, content)
    session, now = Session(), dict(tree)
    edits: list[tuple[str, bytes]] = []
    names = list(tree)
    with SessionRecorder(session, path, files, durable=False):
        for _ in range(steps):
            name = chance.choice(names)
            lines = now[name].split(b"\n")
            lines[chance.randrange(len(lines) - 1)] = _line(chance)
            now[name] = b"\n".join(lines)
            files.write_bytes(name, now[name])
            session.dispatch(ToolInvoked(tool="edit_file", paths=(name,), result_message="done"))
            edits.append((name, now[name]))
    return Recorded(path, edits, tree)


def _source(chance: random.Random) -> bytes:
    return b"".join(_line(chance) + b"\n" for _ in range(LINES))


def _line(chance: random.Random) -> bytes:
    words = " + ".join(chance.choice(_WORDS) for _ in range(6))
    return f"    {chance.choice(_WORDS)}_{chance.randrange(1000)} = {words}".encode()


def _any_step(recorded: Recorded) -> Iterator[int]:
    chance = random.Random(SEED)
    while True:
        yield chance.randrange(len(recorded.edits))


def _reader(timeline: Timeline, recorded: Recorded) -> Contender:
    return _read_any(recorded, lambda read: read(timeline))


def _opener(recorded: Recorded) -> Contender:
    """Every step is read and checked when a timeline is opened."""

    def run(read: Callable[[Timeline], bytes]) -> bytes:
        with Timeline(recorded.path) as timeline:
            return read(timeline)

    return _read_any(recorded, run)


def _read_any(recorded: Recorded, run: Callable[[Callable[[Timeline], bytes]], bytes]) -> Contender:
    numbers = _any_step(recorded)
    last = [0]

    def read(timeline: Timeline) -> bytes:
        last[0] = next(numbers)
        name, _ = recorded.edits[last[0]]
        return timeline.files(last[0] + 2).read_bytes(name).content

    return Contender(
        "ours",
        "ours",
        lambda: run(read),
        lambda answer: expect(answer, recorded.edits[last[0]][1], "bytes"),
    )


def _differ(timeline: Timeline, recorded: Recorded) -> Contender:
    numbers = _any_step(recorded)
    last = [0]

    def run() -> list[str]:
        last[0] = next(numbers)
        return [change.path for change in timeline.changes(last[0] + 2).entries]

    def check(answer: object) -> None:
        assert answer in ([recorded.edits[last[0]][0]], [])  # an edit may repeat a line

    return Contender("ours", "ours", run, check)


@contextmanager
def _browser() -> Iterator["Browser"]:
    assert sync_playwright is not None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def _server(path: Path) -> Iterator[str]:
    assert DebugServer is not None
    store = SnapshotStore(path)
    server = DebugServer(store)
    thread = Thread(target=server.serve)
    thread.start()
    try:
        yield server.address.url
    finally:
        server.stop()
        thread.join()
        store.close()


def _painter(browser: "Browser", url: str) -> Contender:
    """A new window each time: nothing is cached."""

    def run() -> str:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        try:
            page = context.new_page()
            page.goto(url)
            page.wait_for_selector("body[data-ready]")
            _paints.append(page.evaluate(_FIRST_PAINT))
            return page.locator(".runhead dt").first.inner_text()
        finally:
            context.close()

    return Contender(
        "Chromium",
        "ours",
        run,
        lambda answer: expect(answer, "Outcome", "first card"),
        threads=True,
    )


def _git_pack(folder: Path, recorded: Recorded) -> int:
    """Commit the same states, and return the bytes of a pack without deltas, as ours has none."""
    environment = isolated(folder) | {"GIT_DIR": str(folder / "git")}
    git(environment, "init", "--quiet", "--bare")
    command = [str(GIT), "fast-import", "--quiet"]
    stream = b"".join(_fast_import(recorded))
    subprocess.run(command, env=environment, input=stream, check=True, capture_output=True)
    git(environment, "repack", "-adf", "--window=0", "--quiet")
    packs = (folder / "git" / "objects" / "pack").glob("*.pack")
    return sum(each.stat().st_size for each in packs)


def _fast_import(recorded: Recorded) -> Iterator[bytes]:
    states = itertools.chain([list(recorded.tree.items())], ([each] for each in recorded.edits))
    for number, changed in enumerate(states):
        yield b"commit refs/heads/main\ncommitter b <b@localhost> %d +0000\ndata 0\n" % number
        for name, content in changed:
            yield b"M 100644 inline %b\ndata %d\n%b\n" % (name.encode(), len(content), content)


WORKLOAD = Workload("W18", "a timeline of 1,000 steps over 10,000 files", cases, facts)
