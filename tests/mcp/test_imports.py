"""What an import loads: a program that may become a server waits for the SDK, and for us later."""

import json
import subprocess
import sys
from typing import Any

import pytest

_MAX_RATIO = 1.3  # in modules, which no busy machine changes
_LOADED = "; import json, sys; print(json.dumps(list(sys.modules)))"
_WITHOUT = "import sys; sys.modules['mcp'] = None; import weakincentives.mcp"
_NAMES = (
    "import weakincentives.mcp as found; print([getattr(found, each).__name__ for each in"
    " dir(found) if each in found.__all__])"
)


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def _load(module: str) -> set[Any]:
    return set(json.loads(_python(f"import {module}{_LOADED}").stdout))


def test_an_import_loads_little_beside_the_sdk() -> None:
    sdk = _load("mcp.server.lowlevel")
    assert len(_load("weakincentives.mcp")) <= _MAX_RATIO * len(sdk)
    assert len(_load("weakincentives.mcp.workspace")) > _MAX_RATIO * len(sdk)  # it is measurable


def test_names_load_when_they_are_used() -> None:
    assert _python(_NAMES).stdout == "['McpClient', 'McpWorkspace', 'serve_stdio']\n"


@pytest.mark.parametrize("code", [_WITHOUT, f"{_WITHOUT}.workspace"])
def test_without_the_sdk_the_error_names_what_to_install(code: str) -> None:
    assert "Packages for the MCP server are missing: " in _python(code).stderr
