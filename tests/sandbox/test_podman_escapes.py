"""An allow-list opens no way out of a container; tests/safety has all escapes without one."""

import re
from pathlib import Path

import pytest

from tests.safety import escapes
from weakincentives.sandbox import PodmanSandbox


def make(root: Path, clock: escapes.Clock) -> PodmanSandbox:
    config = escapes.podman_config()
    return PodmanSandbox(root, config=config, allow_hosts=["allowed.example"], clock=clock)


@pytest.mark.usefixtures("default_image")
def test_an_allow_list_opens_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(escapes.SANDBOXES, "podman with an allow-list", make)
    chosen = [each for each in escapes.ESCAPES if re.match("connect|reach|send|open", each.name)]
    results = escapes.attempt_all("podman with an allow-list", chosen)
    assert results == {each.name: "stopped" for each in chosen}
