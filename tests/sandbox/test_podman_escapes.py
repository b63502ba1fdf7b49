"""No known way out of a container works."""

import re
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

    def make_with_hosts(root: Path) -> PodmanSandbox:
        return ContainerPython(root, config=config, allow_hosts=["allowed.example"])

    monkeypatch.setitem(escapes.SANDBOXES, "podman", make)
    monkeypatch.setitem(escapes.SANDBOXES, "podman with an allow-list", make_with_hosts)


@pytest.mark.usefixtures("sandboxes")
@pytest.mark.parametrize("escape", escapes.ESCAPES, ids=lambda each: each.name)
def test_an_escape_is_stopped(escape: escapes.Escape) -> None:
    assert escapes.attempt(escape, "podman") == "stopped"


@pytest.mark.usefixtures("sandboxes")
@pytest.mark.parametrize(
    "escape",
    [each for each in escapes.ESCAPES if re.match("connect|reach|send|open", each.name)],
    ids=lambda each: each.name,
)
def test_an_allow_list_opens_nothing_else(escape: escapes.Escape) -> None:
    assert escapes.attempt(escape, "podman with an allow-list") == "stopped"
