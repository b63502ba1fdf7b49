"""Steps: one line each, with its duration; the output of a step only when it fails."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

ROOT = Path(__file__).resolve().parents[1]


class StepFailedError(Exception):
    """A step cannot go on; the text is what the user needs to see."""


@contextmanager
def step(name: str) -> Generator[None]:
    """Print `name`, and after the block how long it took."""
    started = time.monotonic()
    print(f"{name:<24}", end="", flush=True)
    ended = Event()
    clock = Thread(target=_show_seconds, args=(name, started, ended), daemon=True)
    if sys.stdout.isatty():
        clock.start()
    duration = "failed  "  # as long as the seconds that it covers
    try:
        yield
        duration = f"{time.monotonic() - started:6.1f} s"
    finally:
        ended.set()
        if clock.is_alive():
            clock.join()
        print(duration, flush=True)


def _show_seconds(name: str, started: float, ended: Event) -> None:
    """Show on a terminal that a step goes on, until it ends."""
    while not ended.wait(1):
        print(f"\r{name:<24}{time.monotonic() - started:6.0f} s", end="", flush=True)
        print(f"\r{name:<24}", end="", flush=True)


def run_side_by_side(steps: Mapping[str, Callable[[], object]]) -> None:
    """Run all steps at the same time, and print a line for each when it ends.

    Raises:
        StepFailedError: Steps failed; the text holds the output of each.
    """
    failures: list[str] = []
    with ThreadPoolExecutor(len(steps)) as pool:
        started = time.monotonic()
        running = {pool.submit(work): name for name, work in steps.items()}
        for done in as_completed(running):
            failure = done.exception()
            duration = "failed" if failure else f"{time.monotonic() - started:6.1f} s"
            print(f"{running[done]:<24}{duration}", flush=True)
            if isinstance(failure, StepFailedError):
                failures.append(str(failure))
            elif failure:
                raise failure
    if failures:
        raise StepFailedError("\n".join(failures))


def output_of(
    command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None
) -> str:
    """Run `command` in the project's directory and return all that it printed.

    Raises:
        StepFailedError: The command failed; the text holds its output.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        shown = " ".join(str(word) for word in command)
        raise StepFailedError(f"{done.stdout}\n{shown}\nended with exit code {done.returncode}")
    return done.stdout


def hand_over_to(command: Sequence[str | Path]) -> None:
    """Run `command` with this terminal as its own, and leave with its exit code if it fails."""
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)
