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


@pytest.fixture(scope="session")
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty directory."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, no_certificates: Path) -> None:
    """Leave nothing in the environment that changes a request to a provider.

    Nobody is trusted: to load the usual certificates takes each adapter 17 ms.
    """
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(no_certificates))
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
