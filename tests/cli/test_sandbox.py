"""`wink sandbox`: what is promised, and commands in a sandbox."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.workplace import Script, Wink, shell, write
from weakincentives.sandbox import LandlockSandbox, SandboxUnavailableError, probe
from weakincentives.sandbox.bubblewrap import find_bubblewrap

pytestmark = pytest.mark.usefixtures("default_sandbox")


class Missing:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise SandboxUnavailableError("it is not installed: install it")


class Unlimited(LandlockSandbox):
    """A sandbox on a host without control groups."""

    @property
    def limited(self) -> frozenset[str]:
        return frozenset()


@pytest.mark.usefixtures("default_image")
def test_a_probe_prints_every_promise(wink: Wink) -> None:
    done = wink("sandbox", "probe")
    assert done.code == 0
    assert done.out.startswith("bubblewrap: available\n")
    assert "ok  network: reaches no network" in done.out
    assert done.out.endswith("--sandbox auto uses bubblewrap\n")
    found = json.loads(wink("sandbox", "probe", "--json").out)
    assert [each["name"] for each in found] == ["bubblewrap", "landlock", "podman"]
    assert all(each["promises"]["files"] and each["problem"] is None for each in found)


def test_no_sandbox_is_a_failure_that_names_the_fix(
    wink: Wink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"bubblewrap": Missing})
    done = wink("sandbox", "probe")
    assert done.code == 1
    assert "it is not installed: install it" in done.out
    assert "refuses to run commands here" in done.out
    done = wink("sandbox", "run", "--", "true")
    assert (done.code, done.out) == (125, "")
    assert "it is not installed: install it" in done.err


@pytest.mark.parametrize("name", ["auto", "bubblewrap"])
def test_a_run_that_is_asked_to_isolate_and_cannot_starts_nothing(
    wink: Wink,
    monkeypatch: pytest.MonkeyPatch,
    project: Path,
    script: Script,
    copies: Callable[[], list[Path]],
    name: str,
) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"bubblewrap": Missing})
    steps = script(shell("touch", "planted"), "Done.")
    done = wink("run", "x", "--workspace", project, "--model", steps, "--sandbox", name)
    assert (done.code, copies()) == (2, [])
    assert "it is not installed: install it" in done.err


def test_a_run_without_a_sandbox_says_so_and_offers_no_commands(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, project: Path, script: Script
) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"bubblewrap": Missing})
    options = ("--workspace", project, "--model", script(shell("touch", "planted"), "Done."))
    done = wink("run", "x", *options)
    assert done.code == 0
    assert done.err.splitlines()[1] == (
        "The model cannot run commands. No sandbox can isolate commands on this host."
        " bubblewrap: it is not installed: install it"
    )
    done = wink("run", "x", *options, "--json")
    started, call = done.events[0], done.call
    assert (started["sandbox"], started["isolation"]) == ("none", None)
    assert "it is not installed" in started["sandbox_reason"]
    assert not call["success"]


def test_a_run_says_why_an_earlier_sandbox_is_not_used(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, project: Path, script: Script
) -> None:
    sandboxes = {"bubblewrap": Missing, "landlock": Unlimited}
    monkeypatch.setattr(probe, "ISOLATED", sandboxes)
    done = wink("run", "x", "--workspace", project, "--model", script("Done."))
    assert done.err.splitlines()[1] == (
        "The model's commands run isolated by landlock. Not promised here: memory, process count."
        " Not used: bubblewrap: it is not installed: install it"
    )


@pytest.mark.parametrize("name", ["auto", "bubblewrap", "landlock", "podman", "local"])
@pytest.mark.usefixtures("default_image")
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
    assert done.err == "wink: the command timed out after 500 ms and was stopped\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timeout", "soon", "--", "true"), "--timeout must be a duration like 90s"),
        (("--timeout", "0", "--", "true"), "--timeout must be more than 0"),
        (("--", ""), "Command has no program name"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(
    wink: Wink, project: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = wink("sandbox", "run", "--sandbox", "local", "--workspace", project, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"wink: {message}")


def test_a_current_directory_that_was_removed_is_named(
    wink: Wink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = wink("sandbox", "run", "--sandbox", "local", "--", "true")
    assert done.code == 2
    assert "The current directory no longer exists; name another with --workspace" in done.err


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream_does_not_change_the_exit_code(
    wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    monkeypatch.setattr(sys, stream, None)
    program = "echo out; echo err >&2; exit 3"
    options = ("--sandbox", "local", "--workspace", project)
    assert wink("sandbox", "run", *options, "--", "sh", "-c", program).code == 3


@pytest.mark.parametrize("name", ["", "auto", "landlock", "podman"])
@pytest.mark.usefixtures("default_image")
def test_a_model_runs_isolated_commands(
    wink: Wink, project: Path, script: Script, name: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    line = f"echo fixed >> calc.py; echo x > {outside}; true"
    steps = script(shell("sh", "-c", line), "Done.")
    options = ("--sandbox", name) if name else ()
    done = wink("run", "x", "--workspace", project, "--model", steps, "--apply", *options)
    assert done.code == 0
    isolated = "bubblewrap" if name in {"", "auto"} else name
    assert f"The model's commands run isolated by {isolated}." in done.err
    assert (project / "calc.py").read_text().endswith("fixed\n")
    assert not outside.exists()


def test_a_sandbox_that_fails_during_a_run_costs_no_work(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, project: Path, script: Script, tmp_path: Path
) -> None:
    real = find_bubblewrap()
    broken = tmp_path / "programs" / "bwrap"
    broken.parent.mkdir()
    # the probe and one command work, then the machine changes
    broken.write_text(
        f'#!/bin/sh\ncd {tmp_path}\n[ "$1" = --help ] && exec {real} --help\n'
        '[ -e 2 ] && { echo "no namespaces" >&2; exit 1; }; [ -e 1 ] && : > 2; : > 1\n'
        f'exec {real} "$@"\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
    steps = script(shell("touch", "first"), write("second"), shell("touch", "third"), "Done.")
    done = wink("run", "x", "--workspace", project, "--model", steps)
    assert done.code == 1, done.err
    [line] = [each for each in done.err.splitlines() if each.startswith("wink:")]
    assert line == (
        "wink: bubblewrap could not set up the sandbox: no namespaces; see wink doctor, or choose"
        " another sandbox with --sandbox; the changes so far are kept"
    )
    assert "added first (+0, -0)\nadded second (+1, -0)\n" in done.err


def test_test_runs_leave_no_caches_in_the_changes(
    wink: Wink, project: Path, script: Script
) -> None:
    (project / "test_calc.py").write_text("def test_nothing():\n    import calc\n")
    command = shell(sys.executable, "-m", "pytest", "--quiet")
    model = script(command, "Done.")
    done = wink("run", "x", "--workspace", project, "--model", model, "--json")
    assert "1 passed" in done.call["message"], done.call
    assert done.last["changes"] == []


@pytest.mark.usefixtures("default_image")
def test_pruning_says_what_was_removed(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEAKINCENTIVES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.node", lambda: "a-machine-without-containers")
    assert wink("sandbox", "prune").out == "Nothing to remove\n"
    left = tmp_path / "cache" / "podman" / "left"
    (left / "workspace").mkdir(parents=True)
    done = wink("sandbox", "prune")
    assert (done.code, done.out) == (0, f"Removed the workspace {str(left)!r}\n")
    left.mkdir()
    found = json.loads(wink("sandbox", "prune", "--json").out)
    assert found == {"containers": [], "workspaces": [str(left)], "problem": None}


def test_pruning_works_without_podman(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEAKINCENTIVES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "cache" / "podman" / "left").mkdir(parents=True)
    done = wink("sandbox", "prune")
    assert done.code == 0
    removed, problem = done.out.splitlines()
    assert removed.startswith("Removed the workspace ")
    assert problem.startswith("Containers were not looked for: podman is not installed")


def test_an_image_needs_tools_that_are_named(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = wink("sandbox", "pull-image")
    assert (done.code, "apt install podman" in done.err) == (1, True)
    options = ("--suite", "sid", "--mirror", "http://mirror.example/debian")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    done = wink("sandbox", "build-image", *options)
    assert (done.code, "apt install debootstrap" in done.err) == (1, True)


def test_an_image_is_built_as_the_options_say(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real bootstrap is in tests/sandbox/test_container_image.py."""
    (tmp_path / "debootstrap").write_text('#!/bin/sh\necho "$*"; exit 1\n')
    (tmp_path / "debootstrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    options = ("--suite", "sid", "--mirror", "http://mirror.example/debian", "--package", "g++")
    done = wink("sandbox", "build-image", *options)
    assert done.code == 1
    command = done.err.splitlines()[0].split()
    assert (command[-3], command[-1]) == ("sid", "http://mirror.example/debian")
    packages = command[1].removeprefix("--include=").split(",")
    assert {"python3-pip", "python3-venv", "git", "g++"} <= {*packages}
    wrong = wink("sandbox", "build-image", "--package", "a,b")
    assert (wrong.code, "'a,b'" in wrong.err) == (2, True)


def test_a_program_that_a_command_has_planted_in_the_workspace_is_not_run(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    programs = workspace / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("bwrap", "podman"):
        planted = programs / name
        planted.write_text(f"#!/bin/sh\necho --disable-userns\ntouch {tmp_path}/ran\n")
        planted.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    before = os.environ["PATH"]
    done = wink("sandbox", "run", "--workspace", workspace, "--", "true")
    assert done.code == 0, done.err
    assert not (tmp_path / "ran").exists()
    assert os.environ["PATH"] == before
