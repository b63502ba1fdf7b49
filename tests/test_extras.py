"""Extras: the command that installs what is missing, and a distribution that clashes with ours."""

import sys
from pathlib import Path

import pytest

from weakincentives import extras
from weakincentives.extras import describe_missing, find_clash, install_command

METADATA = """\
Metadata-Version: 2.4
Name: wink-workspace
Version: 0.1.0
Provides-Extra: page
Provides-Extra: models
Provides-Extra: all
Requires-Dist: click>=8.2
Requires-Dist: starlette>=0.47; extra == 'page'
Requires-Dist: uvicorn[standard]>=0.34; (sys_platform == 'linux') and extra == "page"
Requires-Dist: openai>=3; extra == 'models'
Requires-Dist: wink-workspace[models,page]; extra == 'all'

Requires-Dist: text, not a field; extra == 'page'
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the packages of an environment that has nothing but this distribution."""
    prefix = tmp_path / "wink-workspace"
    site = prefix / "lib" / "site-packages"
    info = site / "wink_workspace-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    (site / "pip.py").touch()
    (info / "direct_url.json").write_text('{"url": "file:///src/my%20wink", "dir_info": {}}')
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    return site


def test_packages_are_named_and_never_our_own_extra(site: Path):
    python = f"{sys.prefix}/bin/python"
    assert install_command("page") == (
        f"{python} -m pip install 'starlette>=0.47' 'uvicorn[standard]>=0.34'"
    )
    assert install_command("all") == install_command("models", "page")
    assert install_command() == f"{python} -m pip install 'click>=8.2'"
    assert describe_missing("the page", "models") == (
        f"Packages for the page are missing: {python} -m pip install 'openai>=3'"
    )


def test_the_pip_of_this_environment_needs_no_path(site: Path, monkeypatch: pytest.MonkeyPatch):
    programs = Path(sys.prefix, "bin")
    programs.mkdir()
    (programs / "pip").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(programs))
    assert install_command("models") == "pip install 'openai>=3'"


def test_without_pip_it_is_uv(site: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    assert install_command("models") == f"uv pip install --python {sys.executable} 'openai>=3'"


def test_in_an_environment_of_pipx_packages_are_injected(site: Path):
    Path(sys.prefix, "pipx_metadata.json").touch()
    assert install_command("models") == "pipx inject wink-workspace 'openai>=3'"


def test_a_tool_of_uv_keeps_what_it_has(site: Path):
    Path(sys.prefix, "uv-receipt.toml").write_text(
        """
[tool]
requirements = [
    { name = "wink-workspace", directory = "/src/my wink" },
    { name = "mcp", specifier = ">=2.3" },
    { name = "mine", directory = "/src/mine" },
]
"""
    )
    assert install_command("models") == (
        "uv tool install --force --with 'mcp>=2.3' --with 'mine @ /src/mine' --with 'openai>=3'"
        " '/src/my wink'"
    )


def test_the_other_distribution_is_found_beside_ours(site: Path):
    assert find_clash() is None
    (site / "weakincentives_tools-1.dist-info").mkdir()
    assert find_clash() is None
    (site / "weakincentives-0.27.0.dist-info").mkdir()
    clash = find_clash()
    assert clash is not None
    assert "'weakincentives' is installed here" in clash.fact
    python = sys.executable
    assert clash.fix == (
        f"{python} -m pip uninstall --yes weakincentives wink-workspace"
        f" && {python} -m pip install '/src/my wink'"
    )


def test_a_workspace_on_the_path_is_not_an_environment(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "weakincentives-0.27.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    assert find_clash() is None
