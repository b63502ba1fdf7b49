"""Directories to attack, removed afterwards however deep, wide or full they are."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.safety.places import Opener, Place, opened, temporary
from weakincentives.filesystem import HostFilesystem


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory; pytest's own would keep what is in it, and cannot remove it all."""
    with temporary() as path:
        yield path


@pytest.fixture
def light_directory() -> Iterator[Path]:
    """An empty directory that no disk slows down, where there is such a thing."""
    with temporary(light=True) as path:
        yield path


@pytest.fixture
def place(directory: Path) -> Place:
    """A workspace, a twin beside it, and a directory outside that holds a secret."""
    return Place.laid_out(directory)


@pytest.fixture(params=["openat2", "steps"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """How a host workspace opens paths: in one call, or segment by segment."""
    return request.param


@pytest.fixture
def fs(place: Place, opener: Opener) -> Iterator[HostFilesystem]:
    with opened(place.workspace, opener) as filesystem:
        yield filesystem


@pytest.fixture(autouse=True)
def dev_null_is_still_a_device() -> Iterator[None]:
    """Renaming over a device is what a careless program run by root does."""
    yield
    found = Path("/dev/null").stat()
    assert stat.S_ISCHR(found.st_mode)
    assert (os.major(found.st_rdev), os.minor(found.st_rdev)) == (1, 3)
