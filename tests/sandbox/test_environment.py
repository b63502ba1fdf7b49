"""The environment of a command: its variables have no effect outside, its home goes away."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.sandbox.conftest import AnySandbox
from weakincentives.filesystem import HostFilesystem
from weakincentives.sandbox import (
    BubblewrapSandbox,
    LocalSandbox,
    PodmanSandboxConfig,
    SandboxUnavailableError,
    choose_sandbox,
    create_sandbox,
)
from weakincentives.sandbox.bubblewrap import find_bubblewrap
from weakincentives.sandbox.container import PodmanEngine

NOT_UTF8 = b"\xff".decode(errors="surrogateescape")


@pytest.mark.parametrize("value", ["", "two words", "a=b", "line\nline", "--setenv", "é", NOT_UTF8])
def test_a_variable_arrives_as_it_is(any_sandbox: AnySandbox, value: str) -> None:
    done = any_sandbox.exec(["sh", "-c", 'printf %s "$VALUE"'], env={"VALUE": value})
    assert (done.exit_code, done.out.data) == (0, value.encode(errors="surrogateescape"))


def test_no_variable_reaches_bubblewrap_outside_of_the_sandbox(tmp_path: Path) -> None:
    """Else `LD_PRELOAD=./library` would load a library of the workspace there."""
    with BubblewrapSandbox(tmp_path) as sandbox:
        done = sandbox.exec(["true"], env={"LD_DEBUG": "files", "LD_PRELOAD": "./library"})
    assert done.exit_code == 0
    assert "initialize program: true" in done.stderr
    assert "bwrap" not in done.stderr


def test_too_many_or_too_long_words_are_a_failure_of_the_command(tmp_path: Path) -> None:
    with BubblewrapSandbox(tmp_path) as sandbox:
        for argv, env in (
            (["true", *("x" * 10_000)], {}),
            (["true", "x" * 200_000], {}),
            (["true"], {"VALUE": "x" * 200_000}),
        ):
            done = sandbox.exec(argv, env=env)
            assert (done.exit_code, done.stderr) == (126, "Argument list too long: 'true'\n")


def test_a_bubblewrap_in_the_current_directory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "bwrap"
    planted.write_text("#!/bin/sh\necho --disable-userns\ntouch ran\n")
    planted.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".:", prepend=":")
    assert find_bubblewrap() not in {"./bwrap", str(planted)}
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a `bwrap` and a `podman` that are first in `PATH`."""
    workspace = tmp_path / "workspace"
    programs = workspace / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("bwrap", "podman", "runc"):
        program = programs / name
        program.write_text(f"#!/bin/sh\necho --disable-userns\ntouch {tmp_path}/ran\n")
        program.chmod(0o755)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "bwrap").symlink_to(programs / "bwrap")
    path = f"{programs}:{tmp_path}/links:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return workspace


def test_a_program_in_the_workspace_never_starts_a_sandbox(planted: Path, tmp_path: Path) -> None:
    with create_sandbox("auto", planted) as sandbox:
        assert sandbox.exec(["true"]).success
    with create_sandbox("bubblewrap", HostFilesystem(planted)) as sandbox:
        assert sandbox.exec(["true"]).success
    copy = tmp_path / "copy"
    copy.mkdir()
    with create_sandbox("auto", copy, original=planted) as sandbox:
        assert sandbox.exec(["true"]).success
    assert choose_sandbox(untrusted=[planted]).name
    assert not (tmp_path / "ran").exists()


def test_podman_in_the_workspace_is_not_podman(planted: Path, tmp_path: Path) -> None:
    engine = PodmanEngine(PodmanSandboxConfig(), [planted])
    try:
        program, *_ = engine.command("version")
    except SandboxUnavailableError:  # there is no other one
        program = ""
    assert not program.startswith(str(planted))
    with suppress(SandboxUnavailableError):
        engine.run("--version")
    chosen = PodmanEngine(PodmanSandboxConfig(program=f"{planted}/.venv/bin/podman"), [planted])
    assert chosen.command("version")[0] == f"{planted}/.venv/bin/podman"
    assert not (tmp_path / "ran").exists()


KILLED = """
import os, sys
from weakincentives.sandbox import LocalSandbox
sandbox = LocalSandbox(sys.argv[1])
os.kill(os.getpid(), 9)
"""


def test_the_home_of_a_killed_process_is_removed_by_the_next_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path],
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )
    (left,) = temporary.iterdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    other = temporary / "wink-sandbox-of-somebody"
    other.mkdir()
    with LocalSandbox(tmp_path), LocalSandbox(tmp_path):
        assert not left.exists()
        assert len(list(temporary.iterdir())) == 3
    assert list(temporary.iterdir()) == [other]
