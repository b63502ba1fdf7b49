"""Run a command as an ordinary user: `python -m scripts.ordinary_user COMMAND`, started by root.

The user has a number and no name, no groups, and a home that is removed afterwards, when all of
the user's processes are ended. The user may only read the project. Where that, or the Python, is in
a directory that is closed to others, such as `/root`, the command sees an empty, open one instead,
with nothing but the two in it.
"""

import os
import pwd
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.steps import ROOT

_PATIENCE = 60.0
"""Seconds for a killed process to end."""

_NUMBERS = range(20_000, 30_000)
"""Systems rarely give one of these to a person or a service; two runs at once take two."""


def _free_number() -> int:
    taken = {each.pw_uid for each in pwd.getpwall()}
    free = [number for number in _NUMBERS if number not in taken]
    return free[os.getpid() % len(free)]


_USER = _free_number()


def main(command: Sequence[str]) -> int:
    """Run `command` in the project's directory; 0 too where that cannot be, but not in CI."""
    needed = [ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent]
    with _home() as home:
        environment = _environment(home)
        problem = _run(["test", "-r", "pyproject.toml"], needed, home, environment, quiet=True)
        problem = problem or _run([sys.executable, "-c", ""], needed, home, environment, quiet=True)
        if not problem:
            return _run(command, needed, home, environment)
    print(f"left out: {ROOT} or {sys.prefix} is closed to others")
    return 1 if os.environ.get("CI") else 0


@contextmanager
def _home() -> Generator[Path]:
    memory = Path("/dev/shm")
    light = memory.is_dir() and shutil.disk_usage(memory).free > 4e9
    with tempfile.TemporaryDirectory(prefix="wink-", dir=memory if light else "/tmp") as directory:
        Path(directory).chmod(0o711)
        home = Path(directory, "home")
        for made in (home, home / "tmp"):
            made.mkdir(mode=0o700)
            os.chown(made, _USER, _USER)
        try:
            yield home
        finally:
            _end_processes()
            # and its locks, outside of every home
            Path(f"/dev/shm/libpod_rootless_lock_{_USER}").unlink(missing_ok=True)


def _end_processes() -> None:
    """End what the user still runs: podman leaves a process for the next of its commands."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if f"\nUid:\t{_USER}\t" in (process / "status").read_text():
                ended = os.pidfd_open(int(process.name))
                os.kill(int(process.name), signal.SIGKILL)
                select.select([ended], [], [], _PATIENCE)  # the home goes next
                os.close(ended)


def _environment(home: Path) -> Mapping[str, str]:
    """Return the variables of a fresh user, of PATH only what everybody may enter."""
    entries = [Path(each) for each in os.environ["PATH"].split(os.pathsep) if each]
    return {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        "LANG": "C.UTF-8",
        "PATH": os.pathsep.join(str(each) for each in entries if not _closed_above(each)),
    }


def _closed_above(path: Path) -> Path | None:
    """Return the uppermost directory on the way to `path` that is closed to others."""
    for each in (*reversed(path.parents), path):
        if each.exists() and not each.stat().st_mode & stat.S_IXOTH:
            return each
    return None


def _run(
    command: Sequence[str],
    needed: Sequence[Path],
    home: Path,
    environment: Mapping[str, str],
    *,
    quiet: bool = False,
) -> int:
    user = ("setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups")
    lines = ["set -e", "umask 022", *_mounts(needed, home.parent), f"cd {shlex.quote(str(ROOT))}"]
    script = "\n".join([*lines, f"exec {shlex.join([*user, *command])}"])
    apart = ("unshare", "--mount", "--propagation", "private") if len(lines) > 3 else ()
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run(
        [*apart, "sh", "-c", script], env=environment, stdout=output, stderr=output, check=False
    )
    return done.returncode


def _mounts(needed: Sequence[Path], aside: Path) -> Iterator[str]:
    """Yield the commands that open the closed directories, for these processes only."""
    closed = {path: found for path in needed if (found := _closed_above(path))}
    places = {path: str(aside / f"place{number}") for number, path in enumerate(closed)}
    for path, place in places.items():
        yield f"mkdir -p {place} && mount --bind {shlex.quote(str(path))} {place}"
    for found in sorted({*closed.values()} - {*closed}):
        yield f"mount -t tmpfs -o mode=755 none {shlex.quote(str(found))}"
    for path, place in places.items():
        quoted = shlex.quote(str(path))
        yield f"mkdir -p {quoted} && mount --move {place} {quoted}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
