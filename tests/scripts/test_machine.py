"""What the machine has: only Pythons that work count, and what is missing is installed at once."""

import os
import sys
from pathlib import Path

import pytest

from scripts.machine import interpreter_at, offer_programs, other_interpreters, require_program
from scripts.steps import StepFailedError


def pretender(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that is all of PATH, on a machine with no other Python."""
    for variable in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "nothing"))
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def test_the_running_python_answers_with_its_version():
    found = interpreter_at(sys.executable)
    assert found is not None
    assert found.version == sys.version_info[:2]


@pytest.mark.parametrize("script", ["exit 127", "echo hello", "echo '[3, 12]'", "exit 0"])
def test_a_program_that_only_looks_like_python_is_none(script: str, tmp_path: Path):
    assert interpreter_at(str(pretender(tmp_path / "python3.12", script))) is None
    assert interpreter_at(str(tmp_path / "missing")) is None


def test_a_shim_that_fails_does_not_hide_the_real_one(
    only_on_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answer = "echo '[3, 99, \"/real\", true, true]'"
    pretender(only_on_path / "python3.99", "exit 127")
    pretender(tmp_path / "pyenv/versions/3.99.1/bin/python3.99", answer)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    found = [each for each in other_interpreters((3, 11)) if each.version == (3, 99)]
    assert [each.executable for each in found] == ["/real"]


@pytest.mark.parametrize("variable", ["PATH", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"])
def test_a_place_that_cannot_be_read_is_left_out_with_a_sentence(
    variable: str,
    only_on_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    pretender(only_on_path / "python3.99", "echo '[3, 99, \"/x\", true, true]'")
    loop = tmp_path / "loop"  # a closed directory is open to root
    loop.symlink_to("loop")
    closed = f"{loop}:{only_on_path}" if variable == "PATH" else str(loop)
    monkeypatch.setenv(variable, closed)
    assert (3, 99) in {each.version for each in other_interpreters((3, 11))}
    err = capsys.readouterr().err
    assert err.startswith(str(loop))
    assert err.endswith(" is left out: Too many levels of symbolic links\n")


def test_a_version_is_tested_once_and_the_running_one_not_again(only_on_path: Path):
    pretender(only_on_path / "python3.98", "echo '[3, 98, \"/first\", true, true]'")
    pretender(only_on_path / "python3.99", "echo '[3, 98, \"/second\", true, true]'")
    pretender(only_on_path / "python3.97", "echo '[3, 97, \"/running\", true, true]'")
    found = {each.version: each.executable for each in other_interpreters((3, 97))}
    assert found.get((3, 98)) == "/first"
    assert (3, 97) not in found


@pytest.mark.parametrize(("complete", "final"), [("false", "true"), ("true", "false")])
def test_a_python_that_cannot_make_environments_or_is_unfinished_is_left_out(
    complete: str, final: str, only_on_path: Path
):
    answer = f"echo '[3, 99, \"/x\", {complete}, {final}]'"
    pretender(only_on_path / "python3.99", answer)
    assert (3, 99) not in {each.version for each in other_interpreters((3, 11))}


def test_a_missing_program_is_told_with_its_package(
    only_on_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(StepFailedError, match=r"nonesuch is missing.*apt-get install none-such"):
        require_program("nonesuch", "none-such")


def test_a_missing_program_is_not_installed_unless_asked_for(only_on_path: Path, tmp_path: Path):
    pretender(only_on_path / "apt-get", f": > {tmp_path}/ran")
    with pytest.raises(StepFailedError, match="nonesuch is missing"):
        require_program("nonesuch", "none-such")
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def as_root_on_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/etc/debian_version").exists():
        pytest.skip("packages are installed on Debian only")
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("as_root_on_debian")
def test_what_is_missing_is_installed_by_one_command(only_on_path: Path, tmp_path: Path):
    pretender(only_on_path / "apt-get", f'echo "$@" >> {tmp_path}/ran')
    pretender(only_on_path / "present", "exit 0")
    offer_programs({"one": "first", "present": "second", "two": "third"})
    ran = (tmp_path / "ran").read_text().splitlines()
    installed = [each for each in ran if "install" in each]
    assert installed == ["-qq install --yes --no-remove --no-install-recommends first third"]


@pytest.mark.usefixtures("as_root_on_debian")
def test_nothing_is_run_where_nothing_is_missing(only_on_path: Path, tmp_path: Path):
    pretender(only_on_path / "apt-get", f": > {tmp_path}/ran")
    pretender(only_on_path / "present", "exit 0")
    offer_programs({"present": "package"})
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("as_root_on_debian")
def test_a_failed_installation_is_reported_and_the_task_goes_on(
    only_on_path: Path, capsys: pytest.CaptureFixture[str]
):
    pretender(only_on_path / "apt-get", "echo no mirror; exit 100")
    offer_programs({"one": "first"})
    assert "no mirror" in capsys.readouterr().err


def test_other_users_are_told_what_to_install_and_the_task_goes_on(
    only_on_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    pretender(only_on_path / "apt-get", f": > {tmp_path}/ran")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    offer_programs({"one": "first", "two": "second"})
    assert not (tmp_path / "ran").exists()
    assert "one, two are missing" in capsys.readouterr().err
