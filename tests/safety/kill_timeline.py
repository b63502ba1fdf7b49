"""Forks a recorded run of an agent, kills it anywhere, and reads its timeline.

Run as a program, so that the process is warm and has one thread:
`python -m tests.safety.kill_timeline <rounds> <root>` prints a summary in JSON.
"""

import json
import mmap
import os
import random
import select
import shutil
import signal
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from weakincentives.adapters import Completion, ScriptedAdapter, ToolCall, UserMessage
from weakincentives.adapters.messages import complete_results, load_messages
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.filesystem import HostFilesystem
from weakincentives.prompt import Prompt
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline, TimelineError

CALLS = 30
_NEAR = 3
"""So many steps before the end, the parent watches: it wakes too late to kill at any moment."""
_PAUSE = 0.001
BEFORE = {f"old/{number}.txt": f"{number}\n" * 50 for number in range(20)}


@dataclass
class Summary:
    """What was seen."""

    rounds: int = 0
    steps: int = 0
    torn: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    defects: list[str] = field(default_factory=list[str])


def content(number: int) -> str:
    return f"{number}\n" * (number % 7 * 2_000 + 1)


def expected(calls: int) -> dict[str, str]:
    """Return the files after so many calls: each writes a file of its own, and a common one."""
    files = dict(BEFORE)
    for number in range(calls):
        files["same.txt" if number % 3 == 0 else f"new/{number}.txt"] = content(number)
    return files


def run(place: Path, progress: mmap.mmap) -> None:
    """Record a run of an agent that writes without pause."""
    session = Session()
    calls = [
        ToolCall(
            "write_file",
            {
                "file_path": "same.txt" if number % 3 == 0 else f"new/{number}.txt",
                "content": content(number),
                "mode": "overwrite" if number % 3 == 0 and number else "create",
            },
        )
        for number in range(CALLS)
    ]
    steps = [Completion("", tuple(calls[start : start + 2])) for start in range(0, CALLS, 2)]
    files = HostFilesystem(place / "root", git_dir=place / "history")
    section = FilesystemSection(filesystem=files, session=session)
    prompt = Prompt[None](ns="t", key="t", sections=[section])
    recorder = SessionRecorder(session, place / "history", files, base=files.snapshot())
    progress[:8] = struct.pack("Q", recorder.last)
    session.bus.subscribe(
        ToolInvoked, lambda _: progress.__setitem__(slice(8), struct.pack("Q", recorder.last))
    )
    ScriptedAdapter([*steps, "Done."]).evaluate(
        prompt, session=session, messages=[UserMessage("write")]
    )
    signal.pause()


def kill_at_random(place: Path, choice: random.Random) -> int:
    """Fork a run, kill it anywhere; return how many steps it knew to be on disk."""
    progress = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        try:
            run(place, progress)
        finally:
            os._exit(1)
    wanted = choice.randrange(CALLS)
    _sleep_until(wanted - _NEAR, child, progress)
    while struct.unpack("Q", progress[:8])[0] < wanted:
        if os.waitpid(child, os.WNOHANG)[0]:
            raise AssertionError("the run failed by itself")
    for _ in range(choice.randrange(50_000)):
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the run failed by itself"
    return struct.unpack("Q", progress[:8])[0]


def _sleep_until(number: int, child: int, progress: mmap.mmap) -> None:
    """Leave the processor to the child until it is so far, or has ended."""
    descriptor = os.pidfd_open(child)
    try:
        while struct.unpack("Q", progress[:8])[0] < number:
            if select.select([descriptor], [], [], _PAUSE)[0]:
                return
    finally:
        os.close(descriptor)


def check(path: Path, known: int, summary: Summary) -> None:
    """Read every step that there is, and continue after the last."""
    try:
        timeline = Timeline(path)
    except (TimelineError, FileNotFoundError):
        assert known == 0, "the whole timeline is lost"
        summary.kinds["nothing"] += 1
        return
    with timeline:
        count = len(timeline.steps)
        assert count >= known, f"{known - count} steps that were on disk are lost"
        summary.steps += count
        summary.torn += timeline.problem is not None
        summary.kinds[timeline.steps[-1].kind if count else "nothing"] += 1
        assert len(timeline.verify()) == (timeline.problem is not None)
        calls = 0
        for step in timeline.steps:
            calls += step.kind == "tool"
            assert read(timeline, step.number) == expected(calls), f"files of step {step.number}"
            complete_results(load_messages(timeline.messages(step.number)))
            assert len(timeline.session(step.number)[ToolInvoked].all()) == calls
        if not count:
            return
        last = timeline.last
        session = timeline.session(last)
    with SessionRecorder(session, path, at=last):
        pass
    with Timeline(path) as again:
        assert (again.problem, again.verify(), again.last) == (None, [], last + 1)


def read(timeline: Timeline, number: int) -> dict[str, str]:
    files = timeline.files(number)
    return {each.path: files.read(each.path, limit=-1).content for each in files.glob("**/*")}


def loop(rounds: int, root: Path) -> Summary:
    summary = Summary()
    choice = random.Random(rounds)
    for number in range(rounds):
        place = root / str(number)
        for path, text in BEFORE.items():
            (place / "root" / path).parent.mkdir(parents=True, exist_ok=True)
            (place / "root" / path).write_text(text)
        try:
            check(place / "history", kill_at_random(place, choice), summary)
        except (AssertionError, OSError, ValueError) as error:
            summary.defects.append(f"round {number}: {error!r}")
        shutil.rmtree(place)
        summary.rounds += 1
    return summary


if __name__ == "__main__":
    rounds, root = sys.argv[1:]
    print(json.dumps(vars(loop(int(rounds), Path(root)))))
