"""`wink sandbox`: what is promised, and commands in a sandbox."""

import json
from pathlib import Path

import pytest

from tests.cli.workplace import Script, Wink, shell
from weakincentives.sandbox import SandboxUnavailableError, probe


class Missing:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise SandboxUnavailableError("it is not installed: install it")


def test_a_probe_prints_every_promise(wink: Wink) -> None:
    done = wink("sandbox", "probe")
    assert done.code == 0
    assert done.out.startswith("bubblewrap: available\n")
    assert "ok  network: reaches no network" in done.out
    assert done.out.endswith("--sandbox auto uses bubblewrap\n")
    found = json.loads(wink("sandbox", "probe", "--json").out)
    assert [each["name"] for each in found] == ["bubblewrap", "landlock"]
    assert all(each["promises"]["files"] and each["problem"] is None for each in found)


def test_no_sandbox_is_a_failure_that_names_the_fix(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, project: Path, script: Script
) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"bubblewrap": Missing})
    done = wink("sandbox", "probe")
    assert done.code == 1
    assert "it is not installed: install it" in done.out
    assert "refuses to run commands here" in done.out
    done = wink("sandbox", "run", "--", "true")
    assert (done.code, done.out) == (125, "")
    assert "it is not installed: install it" in done.err
    options = ("--workspace", project, "--model", script("Done."), "--sandbox", "auto")
    done = wink("run", "x", *options)
    assert done.code == 1
    assert "it is not installed: install it" in done.err


@pytest.mark.parametrize("name", ["auto", "bubblewrap", "landlock", "local"])
def test_a_commands_streams_and_exit_code_are_passed_on(
    wink: Wink, project: Path, name: str
) -> None:
    options = ("--sandbox", name, "--workspace", project)
    done = wink("sandbox", "run", *options, "--", "sh", "-c", "ls; echo oops >&2; exit 3")
    assert (done.code, done.out, done.err) == (3, "calc.py\ndocs\n", "oops\n")
    done = wink("sandbox", "run", *options, "--", "no-such-program")
    assert (done.code, done.err) == (127, "No such program on PATH: 'no-such-program'\n")


def test_much_output_is_passed_on_whole(wink: Wink, project: Path) -> None:
    done = wink("sandbox", "run", "--workspace", project, "--", "seq", "300000")
    assert done.out.splitlines() == [str(each) for each in range(1, 300_001)]


def test_a_timeout_is_reported(wink: Wink, project: Path) -> None:
    done = wink("sandbox", "run", "--timeout", "0.5", "--workspace", project, "--", "sleep", "60")
    assert done.code == 124
    assert done.err == "wink: the command timed out after 0.5 and was stopped\n"


@pytest.mark.parametrize("name", ["auto", "landlock"])
def test_a_model_runs_isolated_commands(
    wink: Wink, project: Path, script: Script, name: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    line = f"echo fixed >> calc.py; echo x > {outside}; true"
    steps = script(shell("sh", "-c", line), "Done.")
    done = wink(
        *("run", "x", "--workspace", project, "--model", steps, "--sandbox", name, "--apply")
    )
    assert done.code == 0
    isolated = "bubblewrap" if name == "auto" else name
    assert f"The model's commands run isolated by {isolated}." in done.err
    assert (project / "calc.py").read_text().endswith("fixed\n")
    assert not outside.exists()
