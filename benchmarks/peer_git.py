"""Git's command line: what a user would take for undo, without user configuration."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Absent
from benchmarks.undo import Undo

GIT = shutil.which("git")
ABSENT = Absent("git", "not on PATH: install git")
SETTINGS = {
    # a collector in the background would work during somebody else's sample
    "gc.auto": "0",
    "maintenance.auto": "false",
    "init.defaultBranch": "main",
    "user.name": "bench",
    "user.email": "bench@localhost",
}


class Git(Undo):
    """A repository for a tree, kept apart from it as ours is."""

    name = "git"
    threads = True  # it looks at the files of its index with several

    def __init__(self, root: Path, place: Path) -> None:
        """Keep the history of `root` in `place`."""
        self.root = root
        self.git_dir = place / "git"
        self._environment = isolated(place) | {
            "GIT_DIR": str(self.git_dir),
            "GIT_WORK_TREE": str(root),
        }

    def snapshot(self) -> object:
        """`git init` the first time, `git add -A`, `git commit`: a new commit, changes or not."""
        if not self.git_dir.exists():
            self._run("init", "--quiet")
        self._run("add", "-A")
        self._run("commit", "--quiet", "--allow-empty", "--message=snapshot")
        return "HEAD"

    def restore(self, snapshot: object) -> object:
        """`git reset --hard`, then `git clean` of what was made since, ignored or not."""
        self._run("reset", "--quiet", "--hard", str(snapshot))
        return self._run("clean", "--quiet", "-xfd")

    def tree_of(self, snapshot: object) -> str:
        """The tree of the commit."""
        return self._run("rev-parse", f"{snapshot}^{{tree}}")

    def write(self, path: str, content: bytes) -> None:
        """Write to the disk: git is not told of changes."""
        (self.root / path).write_bytes(content)

    def _run(self, *arguments: str) -> str:
        return git(self._environment, *arguments)


def git_or_absent() -> tuple[list[Callable[[Path, Path], Undo]], tuple[Absent, ...]]:
    """The maker of git, or that it is absent."""
    return ([], (ABSENT,)) if GIT is None else ([Git], ())


def isolated(home: Path) -> dict[str, str]:
    """An environment in which git reads neither the user's nor the system's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings = {"GIT_CONFIG_COUNT": str(len(SETTINGS))}
    for number, (name, value) in enumerate(SETTINGS.items()):
        settings |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    alone = {"HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    return kept | settings | alone


def git(environment: dict[str, str], *arguments: str) -> str:
    """Run git and return what it printed.

    Raises:
        CalledProcessError: It failed.
    """
    command = [str(GIT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()
