"""Runs one operation on copies of a repository, and kills itself at another fault point in each.

`python -m tests.gitstore.kill_repository <operation> <git_dir> <copies>` makes the
copies `0`, `1`, ... until the operation gets to its end, and prints how many died.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from weakincentives.gitstore.repository import Repository
from weakincentives.gitstore.trees import FILE, TreeEntry, encode_tree
from weakincentives.posix import fault_hook

ROOT = Path("/workspace")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)


def snapshot(repository: Repository, name: str, content: bytes, *, wait: bool = True) -> str:
    """Make a snapshot of one file; return its commit."""
    with repository.lock(), repository.objects.begin_pack() as batch:
        blob = batch.add("blob", content)
        tree = batch.add("tree", encode_tree([TreeEntry("f", FILE, blob)]))
        return repository.commit(
            tree, snapshot_id=name, created_at=MOMENT, tag=f"tag {name}", batch=batch, wait=wait
        )


def _commit(git_dir: Path) -> None:
    snapshot(Repository.open(git_dir), "new", b"new")


OPERATIONS: dict[str, Callable[[Path], object]] = {
    "commit": _commit,
    "prune": lambda git_dir: Repository.open(git_dir).prune(["s1", "s3"]),
    "gc": lambda git_dir: Repository.open(git_dir).gc(),
    "remove": lambda git_dir: Repository.open(git_dir).remove(),
    "create": lambda git_dir: Repository.create(git_dir, root=ROOT),
}


def dies_at(index: int, operation: Callable[[Path], object], git_dir: Path) -> bool:
    """Do it in a child that is killed at the point `index`; return whether it was."""
    child = os.fork()
    if child == 0:
        reached = 0

        def hook(_: str) -> None:
            nonlocal reached
            if reached == index:
                os.kill(os.getpid(), signal.SIGKILL)
            reached += 1

        code = 1
        try:
            with fault_hook(hook):
                operation(git_dir)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def main(name: str, git_dir: Path, copies: Path) -> None:
    """Make copies and die in them until the operation gets to its end."""
    index, died = 0, True
    while died:
        copy = copies / str(index)
        if git_dir.exists():
            shutil.copytree(git_dir, copy)
        died = dies_at(index, OPERATIONS[name], copy)
        index += 1
    print(index - 1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
