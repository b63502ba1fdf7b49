"""`wink doctor`: what is installed, what is missing, and how to install it."""

import errno
import os
import sys
import tempfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.cli.workplace import Wink
from weakincentives.cli import doctor
from weakincentives.cli.doctor import Dependency, find_dependencies
from weakincentives.extras import install_command
from weakincentives.sandbox import SandboxUnavailableError, probe

EXTRAS = ["dev", "fast", "openai"]


class Missing:
    def __init__(self, *arguments: object, **options: object) -> None:
        raise SandboxUnavailableError("it is not installed: install it")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checks(wink: Wink, *options: str) -> dict[str, dict[str, str]]:
    done = wink("doctor", "--json", *options)
    return {each["name"]: each for each in done.last["checks"]}


def test_what_is_needed_is_there(wink: Wink):
    done = wink("doctor")
    assert done.code == 0
    assert "Everything required is installed." in done.out
    assert wink("doctor", "--json").last["ok"] is True


def test_a_missing_extra_comes_with_the_command_that_gets_it(
    wink: Wink, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name == "isal" else "99")
    found = checks(wink)["fast"]
    assert (found["state"], found["detail"]) == ("absent", "isal is not installed")
    assert found["fix"] == install_command("fast")


def test_a_missing_package_that_is_needed_is_a_problem(wink: Wink, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        doctor, "installed_version", lambda name: None if name == "msgspec" else "99"
    )
    done = wink("doctor")
    assert done.code == 1
    assert "msgspec is not installed" in done.out
    assert checks(wink)["msgspec"]["fix"] == install_command()


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


def test_the_file_system_of_the_directory_is_checked_and_left_as_it_was(wink: Wink, tmp_path: Path):
    before = sorted(tmp_path.iterdir())
    found = checks(wink)
    assert (found["exchange"]["state"], found["leases"]["state"]) == ("ok", "ok")
    assert "never overwrite what you save" in found["exchange"]["detail"]
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_system_without_exchange_hard_links_or_leases_is_told(
    wink: Wink, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doctor, "exchange", refuse)
    monkeypatch.setattr(doctor, "is_written", lambda _: None)
    found = checks(wink)
    assert found["exchange"]["detail"].endswith("is replaced, and never overwritten")
    assert found["leases"]["detail"].startswith("none: a replaced file is kept for an hour")
    monkeypatch.setattr(os, "link", refuse)
    found = checks(wink)["exchange"]
    assert found["state"] == "absent"
    assert found["detail"].endswith("the moment of an apply or undo can be overwritten")
    assert found["fix"] == "save nothing meanwhile, or work on a local file system"
    assert wink("doctor").code == 0


def test_a_directory_that_does_not_exist_cannot_be_checked(wink: Wink):
    found = checks(wink, "--workspace", "missing")["exchange"]
    assert found["detail"] == "cannot be checked: No such file or directory"


def openai(specifier: str, installed: str) -> Dependency:
    return Dependency("openai", "openai", SpecifierSet(specifier), installed)


def test_a_version_that_does_not_satisfy_the_specifier_is_reported():
    old = openai(">=3.1", "3.0.9")
    assert not old.is_satisfied
    assert str(old) == "openai 3.0.9 is installed, but >=3.1 is needed"
    assert openai(">=3", "3.0.0").is_satisfied
    assert not openai(">=3", "2.9").is_satisfied


def test_upper_limits_exclusions_and_prereleases_count():
    assert not openai(">=3,<4", "4.0").is_satisfied
    assert not openai(">=3,!=3.2", "3.2").is_satisfied
    assert not openai(">=3", "3.0rc1").is_satisfied
    assert openai(">=3", "3.1rc1").is_satisfied


def test_an_invalid_version_is_reported():
    found = openai(">=2", "2-of-our-own")
    assert not found.is_satisfied
    assert str(found) == "openai 2-of-our-own is installed, but >=2 is needed"


def test_a_requirement_for_other_pythons_is_left_out(monkeypatch: pytest.MonkeyPatch):
    lines = [
        "click>=8.2",
        'tomli>=2; python_version < "3.11"',
        'openai>=3; python_version >= "3.11" and extra == "openai"',
        'isal>=1; sys_platform == "none" and extra == "fast"',
    ]
    monkeypatch.setattr(doctor, "read_requirements", lambda: (lines, EXTRAS))
    assert [each.name for each in find_dependencies()] == ["click", "openai"]


def test_requirements_are_those_of_the_metadata_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
):
    lines = ["click>=8.2", "openai>=3; extra == 'openai'", "ruff>=0.12; extra == 'dev'"]
    monkeypatch.setattr(doctor, "read_requirements", lambda: (lines, EXTRAS))
    found = [(each.name, each.extra, str(each.specifier)) for each in find_dependencies()]
    assert found == [("click", None, ">=8.2"), ("openai", "openai", ">=3")]


def test_an_engine_that_is_absent_is_said_and_is_no_failure(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert wink("doctor").code == 0
    assert {checks(wink)[name]["state"] for name in ("podman", "git")} == {"absent"}


def test_sandboxes_are_shown_with_what_they_promise(wink: Wink, monkeypatch: pytest.MonkeyPatch):
    done = wink("doctor")
    assert "isolates commands: files, attributes, network, processes, privileges" in done.out
    assert "uses bubblewrap, and so does wink run by default" in done.out
    monkeypatch.setattr(probe, "ISOLATED", {"missing": Missing})
    done = wink("doctor")
    assert (done.code, "it is not installed: install it" in done.out) == (0, True)
    found = checks(wink)
    assert (found["missing"]["group"], found["missing"]["state"]) == ("sandbox", "absent")
    assert found["auto"]["state"] == "absent"


def test_a_key_is_never_shown(wink: Wink, monkeypatch: pytest.MonkeyPatch):
    assert checks(wink)["OPENAI_API_KEY"]["state"] == "absent"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    done = wink("doctor")
    assert "very-secret" not in done.out + done.err
    assert checks(wink)["OPENAI_API_KEY"]["detail"] == "set"


def test_settings_are_shown_with_where_they_come_from(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "wink.toml").write_text('deadline = "10m"\n')
    monkeypatch.setenv("WINK_MODEL", "openai:gpt-5")
    monkeypatch.setenv("WINK_MODLE", "x")
    found = checks(wink)
    assert found["model"]["detail"] == "openai:gpt-5 (WINK_MODEL)"
    assert found["deadline"]["detail"] == "600.0 (wink.toml)"
    assert found["WINK_MODLE"]["fix"] == "did you mean WINK_MODEL?"


def test_no_provider_is_said_plainly_with_what_to_do(wink: Wink, monkeypatch: pytest.MonkeyPatch):
    ending = wink("doctor").out.partition("Everything required is installed.\n")[2]
    assert ending.startswith("But no provider is configured, so wink run cannot start:\n")
    assert "export OPENAI_API_KEY=... WINK_MODEL=openai:" in ending
    assert "or export ANTHROPIC_API_KEY=... WINK_MODEL=anthropic:" in ending
    assert "pip install" not in ending
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    found = checks(wink)["wink run"]
    assert found["state"] == "absent"
    assert f"{install_command('openai', 'anthropic')}; export OPENAI_API_KEY" in found["fix"]


@pytest.mark.parametrize(
    ("environment", "state", "says"),
    [
        ({"ANTHROPIC_API_KEY": "x"}, "ok", "asks anthropic:claude-sonnet-4-5"),
        (
            {"ANTHROPIC_API_KEY": "x", "OPENAI_API_KEY": "x"},
            "absent",
            "no model is chosen",
        ),
        ({"WINK_MODEL": "openai:a"}, "absent", "openai:a needs a key, which is not set"),
        ({"WINK_MODEL": "openai:a", "OPENAI_API_KEY": "x"}, "ok", "asks openai:a"),
        ({"WINK_MODEL": "openai:a", "WINK_BASE_URL": "http://localhost"}, "ok", "asks openai:a"),
        ({"WINK_MODEL": "scripted:x.json"}, "ok", "asks scripted:x.json"),
        ({"WINK_DEADLINE": "x"}, "absent", "the settings are wrong; see below"),
    ],
)
def test_the_model_of_a_run_is_checked(
    wink: Wink,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    state: str,
    says: str,
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(doctor, "probe_sandboxes", lambda: ())
    found = checks(wink)["wink run"]
    assert (found["state"], found["detail"]) == (state, says)


def test_a_model_without_its_extra_names_the_extra(wink: Wink, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WINK_MODEL", "anthropic:x")
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    monkeypatch.setattr(doctor, "probe_sandboxes", lambda: ())
    found = checks(wink)["wink run"]
    assert "needs the extra anthropic" in found["detail"]
    assert found["fix"] == install_command("anthropic")


def test_a_url_is_shown_without_what_is_secret_in_it(wink: Wink, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WINK_BASE_URL", "https://me:hidden@host.example/v1?key=hidden")
    assert checks(wink)["base_url"]["detail"] == "https://host.example/v1 (WINK_BASE_URL)"


def test_wrong_settings_are_a_problem(wink: Wink, tmp_path: Path):
    (tmp_path / "wink.toml").write_text("modle = 1\n")
    done = wink("doctor")
    assert done.code == 1
    assert "did you mean 'model'?" in done.out


def test_a_temporary_directory_that_is_not_there_is_a_problem(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
        found = checks(wink)["temporary space"]
    assert (found["state"], found["fix"]) == ("problem", "set TMPDIR to a writable directory")


def test_every_command_but_doctor_is_refused_beside_the_other_distribution(
    wink: Wink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / "site-packages"
    (other / "weakincentives-0.27.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    for arguments in (("review",), ("log", "last"), ("run", "x"), ("sandbox",)):
        done = wink(*arguments)
        assert (done.code, done.out) == (1, "")
        assert "pip uninstall" in done.err
    done = wink("doctor", "--json")
    assert done.code == 1
    found = next(each for each in done.last["checks"] if each["name"] == "weakincentives")
    assert (found["state"], "pip uninstall" in found["fix"]) == ("problem", True)
    assert wink("--version").code == 0
