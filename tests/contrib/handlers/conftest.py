"""A workspace on each kind of backend."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contrib.handlers.calls import Workspace, make
from tests.contrib.handlers.requests import WORKSPACES
from weakincentives.filesystem import BaseFilesystem, Filesystem


@pytest.fixture(params=WORKSPACES)
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filesystem]:
    made = WORKSPACES[request.param](tmp_path)
    yield made
    if isinstance(made, BaseFilesystem):
        made.close()


@pytest.fixture(params=["memory", "host"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseFilesystem]:
    """One of our own backends, for links and for files that are large."""
    made = WORKSPACES[request.param](tmp_path)
    assert isinstance(made, BaseFilesystem)
    with made:
        yield made


@pytest.fixture(params=["memory", "host"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    """One of our own backends, with tools that change it."""
    with make(request.param, tmp_path) as made:
        yield Workspace(made)
