"""Every sandbox of this machine, one after the other."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from weakincentives.sandbox import (
    BubblewrapSandbox,
    LandlockSandbox,
    LocalSandbox,
    PodmanSandbox,
)

HostSandboxes: TypeAlias = LocalSandbox | BubblewrapSandbox | LandlockSandbox
AnySandbox: TypeAlias = HostSandboxes | PodmanSandbox
MakeSandbox: TypeAlias = Callable[..., AnySandbox]

_KINDS: dict[str, Callable[..., AnySandbox]] = {
    "local": LocalSandbox,
    "bubblewrap": BubblewrapSandbox,
    "landlock": LandlockSandbox,
    "podman": PodmanSandbox,
}


@pytest.fixture(params=_KINDS)
def make_sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeSandbox]:
    """Return a function that makes a sandbox on `tmp_path / "workspace"`, of each kind in turn."""
    root = tmp_path / "workspace"
    root.mkdir()
    fixed = {"config": request.getfixturevalue("podman")} if request.param == "podman" else {}
    with ExitStack() as stack:

        def make(**options: Any) -> AnySandbox:
            return stack.enter_context(_KINDS[request.param](root, **fixed, **options))

        yield make


@pytest.fixture
def any_sandbox(make_sandbox: MakeSandbox) -> AnySandbox:
    """Return a sandbox, of each kind in turn."""
    return make_sandbox()
