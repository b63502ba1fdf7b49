"""The real git, isolated from the user's configuration."""

import os
import subprocess
from pathlib import Path

_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(repository: Path, *arguments: str | Path, given: bytes = b"") -> str:
    """Run git on a bare repository; return what it printed, on both channels."""
    done = subprocess.run(
        ["git", "--git-dir", repository, *arguments],
        input=given,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_ENVIRONMENT,
        cwd=repository,
    )
    printed = done.stdout.decode(errors="surrogateescape")
    assert done.returncode == 0, printed
    return printed


def new_repository(path: Path) -> Path:
    """Make an empty bare repository with git."""
    path.mkdir()
    git(path, "init", "--quiet", "--bare", "--template=", "--initial-branch=main", path)
    (path / "objects" / "pack").mkdir(exist_ok=True)
    return path


def git_hash_object(repository: Path, content: bytes) -> str:
    """Let git write a loose blob; return its id."""
    return git(repository, "hash-object", "-w", "--stdin", given=content).strip()
