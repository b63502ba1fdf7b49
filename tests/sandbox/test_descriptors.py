"""Descriptors of a command that could not be started are closed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weakincentives.sandbox import SandboxUnavailableError
from weakincentives.sandbox.bubblewrap import BubblewrapSandbox
from weakincentives.sandbox.host import IsolatedSandbox
from weakincentives.sandbox.landlock import LandlockSandbox

RULES = "anon_inode:[landlock-ruleset]"


def descriptors() -> dict[str, str]:
    """Return what every open descriptor of this process leads to, except the one that looks."""
    with os.scandir("/proc/self/fd") as entries:
        found = {each.name: os.readlink(each.path) for each in entries}  # noqa: PTH115 # not paths
    return {name: target for name, target in found.items() if not target.startswith("/proc/")}


def fail_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that works a few times, and then finds no free descriptor."""
    left = calls

    def limited(*arguments: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return function(*arguments)

    return limited


@pytest.mark.parametrize(
    ("kind", "name", "calls"),
    [
        (BubblewrapSandbox, "memfd_create", 0),
        (BubblewrapSandbox, "memfd_create", 1),
        (LandlockSandbox, "dup", 0),
    ],
)
def test_without_a_free_descriptor_none_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[IsolatedSandbox],
    name: str,
    calls: int,
) -> None:
    with kind(tmp_path) as sandbox:
        assert sandbox.exec(["true"]).success
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail_after(calls, getattr(os, name)))
            with pytest.raises(SandboxUnavailableError, match="Too many open files"):
                sandbox.exec(["true"])
        assert descriptors() == before
        assert sandbox.exec(["true"]).success


def test_a_closed_landlock_sandbox_has_no_rules_left(tmp_path: Path) -> None:
    before = sum(each == RULES for each in descriptors().values())
    with LandlockSandbox(tmp_path):
        assert sum(each == RULES for each in descriptors().values()) == before + 1
    assert sum(each == RULES for each in descriptors().values()) == before
