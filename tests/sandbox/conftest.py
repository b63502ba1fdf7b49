"""The image that tests of containers share, and every sandbox of this machine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.sandbox.container_image import build_test_image
from weakincentives.sandbox import (
    BubblewrapSandbox,
    LandlockSandbox,
    LocalSandbox,
    PodmanSandbox,
)
from weakincentives.sandbox.container import PodmanSandboxConfig

HostSandboxes: TypeAlias = LocalSandbox | BubblewrapSandbox | LandlockSandbox
AnySandbox: TypeAlias = HostSandboxes | PodmanSandbox
MakeSandbox: TypeAlias = Callable[..., AnySandbox]

_KINDS: dict[str, Callable[..., AnySandbox]] = {
    "local": LocalSandbox,
    "bubblewrap": BubblewrapSandbox,
    "landlock": LandlockSandbox,
    "podman": PodmanSandbox,
}


@pytest.fixture(scope="session")
def podman() -> PodmanSandboxConfig:
    """Return a configuration with an image; skip where podman is missing."""
    return build_test_image()


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
