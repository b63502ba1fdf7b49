"""No known way out of a container works."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts import escapes
from weakincentives.sandbox import ExecResult, PodmanSandbox, PodmanSandboxConfig


class ContainerPython(PodmanSandbox):
    """Runs programs with the Python of the image."""

    def exec(self, argv: Sequence[str], **options: Any) -> ExecResult:
        return super().exec(["python3", *argv[1:]], **options)


@pytest.fixture
def sandboxes(podman: PodmanSandboxConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the container to the sandboxes of the table."""
    limits = escapes.LIMITS
    config = replace(
        podman, memory=limits.memory, processes=limits.processes, file_size=limits.file_size
    )

    def make(root: Path) -> PodmanSandbox:
        return ContainerPython(root, config=config)

    monkeypatch.setitem(escapes.SANDBOXES, "podman", make)


@pytest.mark.usefixtures("sandboxes")
@pytest.mark.parametrize("escape", escapes.ESCAPES, ids=lambda each: each.name)
def test_an_escape_is_stopped(escape: escapes.Escape) -> None:
    assert escapes.attempt(escape, "podman") == "stopped"
