"""The image that tests of containers share."""

import pytest

from tests.sandbox.container_image import build_test_image
from weakincentives.sandbox.container import PodmanSandboxConfig


@pytest.fixture(scope="session")
def podman() -> PodmanSandboxConfig:
    """Return a configuration with an image; skip where podman is missing."""
    return build_test_image()
