"""A timeline of a container's files: every step goes into another backend and comes back."""

from pathlib import Path

import pytest

from tests.runtime.timeline.test_round_trips import LIMITS, check_round_trip
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.sandbox.container import Container, PodmanSandboxConfig
from weakincentives.sandbox.container.filesystem import ContainerFilesystem


@pytest.mark.slow
@pytest.mark.parametrize("recorded", ["container", "memory"])
def test_every_step_of_a_container_comes_back(
    podman: PodmanSandboxConfig, recorded: str, tmp_path: Path
):
    container = Container(podman, None)
    try:
        with (
            ContainerFilesystem(container, limits=LIMITS) as files,
            InMemoryFilesystem(limits=LIMITS) as memory,
        ):
            if recorded == "container":
                check_round_trip(files, memory, tmp_path)
            else:
                check_round_trip(memory, files, tmp_path)
    finally:
        container.close()
