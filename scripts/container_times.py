"""How long a command takes in a container, beside plain processes and `podman exec`.

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

ROUNDS, PER_ROUND, SLOW_PER_ROUND = 10, 30, 1


def fork_and_execute() -> None:
    """Start a program as a plain fork does."""
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    os.waitpid(pid, 0)


def measure(image: str) -> dict[str, float]:
    """Return the median milliseconds of each way to run `true`."""
    times: dict[str, list[float]] = {}

    def record(name: str, action: Callable[[], object], count: int) -> None:
        for _ in range(count):
            started = time.perf_counter()
            action()
            times.setdefault(name, []).append((time.perf_counter() - started) * 1000)

    config = PodmanSandboxConfig(image=image)
    with tempfile.TemporaryDirectory() as root, PodmanSandbox(root, config=config) as sandbox:
        sandbox.exec(["true"])
        command = ["podman", "exec", str(sandbox.container_name), "true"]
        for _ in range(ROUNDS):
            record("runner", lambda: sandbox.exec(["true"]), PER_ROUND)
            record("subprocess", lambda: subprocess.run(["/bin/true"], check=True), PER_ROUND)
            record("fork and exec", fork_and_execute, PER_ROUND)
            record("podman exec", lambda: subprocess.run(command, check=True), SLOW_PER_ROUND)
            record("start to first result", lambda: start_and_run(root, config), SLOW_PER_ROUND)
    return {name: median(found) for name, found in times.items()}


def start_and_run(root: str, config: PodmanSandboxConfig) -> None:
    """Start a container, run a command, and remove the container."""
    with PodmanSandbox(root, config=config) as sandbox:
        sandbox.exec(["true"])


def main() -> None:
    """Print the table."""
    found = measure(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_IMAGE)
    for name, milliseconds in found.items():
        print(f"{name:24}{milliseconds:9.2f} ms{milliseconds / found['runner']:9.1f} x")


if __name__ == "__main__":
    main()
