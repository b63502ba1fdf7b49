"""Variables of a command have their effect in the sandbox, and none outside."""

from pathlib import Path

import pytest

from tests.sandbox.conftest import AnySandbox
from weakincentives.sandbox import BubblewrapSandbox
from weakincentives.sandbox.bubblewrap import find_bubblewrap

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
