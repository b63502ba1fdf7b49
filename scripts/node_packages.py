"""Programs from npm that tests and benchmarks run: the MCP inspector and the reference server.

    python -m scripts.node_packages    # install them

Their versions, and that of the Node which runs them, are pinned in `scripts/node`; they are
installed below `build/`, and again when the pins change.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

from scripts.machine import offer_programs
from scripts.steps import ROOT, StepFailedError, output_of

INSPECTOR = "mcp-inspector"
REFERENCE_SERVER = "mcp-server-filesystem"

_PINS = ROOT / "scripts" / "node"
_INSTALLED = ROOT / "build" / "node"
_FILES = ("package.json", "package-lock.json")
_ADVICE = "install it with python -m scripts.node_packages, which needs npm and its registry"
_PROGRAMS = {"npm": "npm"}
_QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
# npm tries each of hundreds of packages three times, and waits for up to a minute in between
_IMPATIENT = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")


def offer_node_packages() -> None:
    """Install the programs as pinned; where that fails, say so and go on."""
    if _stamp().exists() and _stamp().read_text() == _fingerprint():
        return
    offer_programs(_PROGRAMS)
    if shutil.which("npm"):
        try:
            _install()
        except StepFailedError as problem:
            # the step that this belongs to has begun the line
            print(f"\n{problem}", file=sys.stderr, flush=True)


def find_node_program(name: str) -> list[str] | None:
    """Return the words that start a program, or None where it is not installed as pinned."""
    script = _INSTALLED / "node_modules" / ".bin" / name
    nodes = sorted(_INSTALLED.glob("node_modules/node-linux-*/bin/node"))
    is_current = _stamp().exists() and _stamp().read_text() == _fingerprint()
    return [str(nodes[0]), str(script.resolve())] if is_current and nodes else None


def explain_missing(name: str) -> str:
    """Return one sentence about a program that is not installed."""
    return f"{name} is not installed: {_ADVICE}"


def _install() -> None:
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(_PINS / name, _INSTALLED / name)
    # not `npm ci`, which refuses a lock without the builds for other operating systems
    output_of(["npm", "install", "--prefix", _INSTALLED, *_QUIET, *_IMPATIENT])
    _stamp().write_text(_fingerprint())


def _stamp() -> Path:
    return _INSTALLED / "stamp"


def _fingerprint() -> str:
    contents = b"".join(
        (_PINS / name).read_bytes() for name in ("package.json", "package-lock.json")
    )
    return hashlib.sha256(os.fsencode(_INSTALLED) + contents).hexdigest()


if __name__ == "__main__":
    offer_node_packages()
