"""How long a container takes to start, and a command in it, beside podman and plain processes.

    python -m scripts.container_times [IMAGE]

All are measured in one run, in turns, so that a busy machine slows all of them.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from statistics import median

from weakincentives.sandbox import DEFAULT_IMAGE, PodmanSandbox, PodmanSandboxConfig
from weakincentives.sandbox.container import PodmanEngine

ROUNDS, PER_ROUND = 10, 30
# what some hosts need, and nothing else of what a sandbox asks for
_RUN = ("run", "--rm", "--detach", "--pull", "never", "--network", "none")
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")


def fork_and_execute() -> None:
    """Start a program as a plain fork does."""
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    os.waitpid(pid, 0)


class Times:
    """Seconds that each action took."""

    def __init__(self) -> None:
        """Start without any."""
        self._found: dict[str, list[float]] = {}

    def record(self, name: str, action: Callable[[], object], count: int) -> None:
        """Run an action `count` times."""
        for _ in range(count):
            started = time.perf_counter()
            action()
            self._found.setdefault(name, []).append(time.perf_counter() - started)

    def show(self, names: list[str]) -> None:
        """Print the median of each, and how many times the first it is."""
        first = median(self._found[names[0]])
        for name in names:
            found = median(self._found[name])
            print(f"{name:28}{found * 1000:9.2f} ms{found / first:9.2f} x")


def measure_commands(times: Times, sandbox: PodmanSandbox) -> None:
    """Measure each way to run `true` once."""
    command = ["podman", "exec", str(sandbox.container_name), "true"]
    times.record("warm command", lambda: sandbox.exec(["true"]), PER_ROUND)
    times.record("subprocess", lambda: subprocess.run(["/bin/true"], check=True), PER_ROUND)
    times.record("fork and exec", fork_and_execute, PER_ROUND)
    times.record("podman exec", lambda: _run(command), 1)


def measure_start(times: Times, root: str, config: PodmanSandboxConfig, run: list[str]) -> None:
    """Measure the start of a container, ours and podman's own."""
    with PodmanSandbox(root, config=config) as sandbox:
        times.record("start to first result", lambda: sandbox.exec(["true"]), 1)
    name = f"wink-times-{os.getpid()}"
    command = [*run, "--name", name, sandbox.image, "sleep", "1000"]
    times.record("podman run --detach", lambda: _run(command), 1)
    _run(["podman", "rm", "-f", "-t", "0", name])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def find_run(config: PodmanSandboxConfig, image: str) -> list[str]:
    """Return the start of a command line that starts a container, with a runtime that works."""
    engine = PodmanEngine(config)
    for runtime in engine.runtimes():
        command = [*engine.command(*_RUN, runtime=runtime), *_LIMITS]
        done = subprocess.run([*command, image, "true"], check=False, capture_output=True)
        if done.returncode == 0:
            return command
    raise SystemExit("podman cannot start a container")


def main() -> None:
    """Print both tables."""
    times = Times()
    config = PodmanSandboxConfig(image=sys.argv[1] if len(sys.argv) > 1 else DEFAULT_IMAGE)
    with tempfile.TemporaryDirectory() as root, PodmanSandbox(root, config=config) as sandbox:
        sandbox.exec(["true"])
        run = find_run(config, sandbox.image)
        for _ in range(ROUNDS):
            measure_commands(times, sandbox)
            measure_start(times, root, config, run)
    times.show(["warm command", "subprocess", "fork and exec", "podman exec"])
    times.show(["start to first result", "podman run --detach"])


if __name__ == "__main__":
    main()
