"""Shared by the tests of reviews: changes to an original and its copy."""

import os
import subprocess
from pathlib import Path

from tests.filesystem.trees_on_disk import State


def change_everything(root: Path) -> None:
    """Do what an agent could do to the original of the tests."""
    (root / "src/app.py").write_text("one\n2\nthree\n")
    (root / "src/tool.py").rename(root / "src/tools.py")
    (root / "run").write_bytes(b"\0other\xff")
    (root / "debug.log").unlink()
    (root / "README.md").chmod(0o600)
    (root / "latest").unlink()
    (root / "latest").symlink_to("/nowhere")
    for name in ("old/a", "old/b"):
        (root / name).unlink()
    (root / "old").rmdir()
    (root / "old").write_text("a file now\n")
    (root / "empty").chmod(0o755)
    (root / "new/deep").mkdir(parents=True)
    (root / "new/deep/file").write_text("new\n")
    (root / "new").chmod(0o750)
    (root / "new/deep/link").symlink_to("file")
    (root / os.fsdecode(b"\xff\n")).write_bytes(b"odd")


def git(root: Path, *arguments: str | Path) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def changes(before: State, after: State) -> set[bytes]:
    return {path for path in before.keys() | after if before.get(path) != after.get(path)}
