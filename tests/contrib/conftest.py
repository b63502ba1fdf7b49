"""A directory to be copied and reviewed, and its copy."""

from pathlib import Path

import pytest

from weakincentives.contrib.review import (
    WorkingCopy,
    working_copy,
)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    root = tmp_path / "original"
    for name, text in {
        "README.md": "# Project\n",
        "src/app.py": "one\ntwo\nthree\n",
        "src/tool.py": "tool\n",
        ".gitignore": "*.log\n",
        "debug.log": "ignored\n",
        "old/a": "a\n",
        "old/b": "b\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "empty").mkdir(0o700)
    (root / "latest").symlink_to("src")
    (root / "run").write_bytes(b"\0binary")
    (root / "run").chmod(0o755)
    return root


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> WorkingCopy:
    return working_copy(original, place=tmp_path / "place")
