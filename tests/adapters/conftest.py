"""Workspaces to run tool calls on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.bench import Bench
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseFilesystem]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    root = tmp_path / "workspace"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as host:
        yield host


@pytest.fixture
def bench(fs: BaseFilesystem) -> Bench:
    return Bench(fs)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing in the environment that changes a request to a provider."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
