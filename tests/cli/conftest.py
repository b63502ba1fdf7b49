"""Fixtures for commands: a project, scripts, and `wink` in this process."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import CALC, Done, Script, Wink
from weakincentives.cli import main as cli


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep copies, dumps and settings of the machine out of a test."""
    for name in [each for each in os.environ if each.startswith("WINK_")]:
        monkeypatch.delenv(name)
    # they take most of a short run, and have tests of their own
    monkeypatch.setenv("WINK_DIGEST", "off")
    monkeypatch.setenv("WINK_SANDBOX", "none")
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "PAGER", "LESS"):
        monkeypatch.delenv(name, raising=False)
    places = tmp_path / "places"
    (places / "tmp").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(places / "tmp"))
    monkeypatch.setenv("TMPDIR", str(places / "tmp"))
    monkeypatch.setenv("XDG_STATE_HOME", str(places / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(places / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "cache"))


@pytest.fixture
def default_sandbox(own_places: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs have the sandbox that they have for users."""
    monkeypatch.delenv("WINK_SANDBOX")


@pytest.fixture
def home_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no path of a test be shown as below `~`, wherever temporary files are."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[], list[Path]]:
    """Return what finds the working copies that there are."""
    runs = tmp_path / "places" / "state" / "wink" / "runs"
    return lambda: sorted(
        each.parent for depth in ("*", "*/copy-*") for each in runs.glob(f"{depth}/workspace")
    )


@pytest.fixture
def wink(capfdbinary: pytest.CaptureFixture[bytes], own_places: None) -> Wink:
    """Return what runs a command in this process."""

    def run(*arguments: str | Path) -> Done:
        with pytest.raises(SystemExit) as exit_:
            cli.main([str(each) for each in arguments])
        out, err = capfdbinary.readouterr()
        return Done(exit_.value.code, out.decode(), err.decode())

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small project with a fault."""
    made = tmp_path / "project"
    (made / "docs").mkdir(parents=True)
    (made / "calc.py").write_text(CALC)
    (made / "docs" / "notes.md").write_text("# Notes\n")
    return made


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return what writes a script, and says which model plays it."""

    def write(*steps: object) -> str:
        path = tmp_path / "script.json"
        path.write_text(json.dumps(steps))
        return f"scripted:{path}"

    return write
