"""An allow-list opens no way out of a container; tests/safety has all escapes without one."""

import re
from pathlib import Path

import pytest

from tests.safety import escapes
from weakincentives.sandbox import PodmanSandbox


def make(root: Path) -> PodmanSandbox:
    return PodmanSandbox(root, config=escapes.podman_config(), allow_hosts=["allowed.example"])


@pytest.mark.usefixtures("default_image")
@pytest.mark.parametrize(
    "escape",
    [each for each in escapes.ESCAPES if re.match("connect|reach|send|open", each.name)],
    ids=lambda each: each.name,
)
def test_an_allow_list_opens_nothing_else(
    escape: escapes.Escape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(escapes.SANDBOXES, "podman with an allow-list", make)
    assert escapes.attempt(escape, "podman with an allow-list") == "stopped"
