"""Virtual environments: made when missing, renewed when what they are made of changes."""

import hashlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.machine import Interpreter, interpreter_at
from scripts.steps import ROOT, StepFailedError, output_of


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment of the project."""

    path: Path

    def program(self, name: str) -> Path:
        """Return the path of one of its programs."""
        return self.path / "bin" / name

    def install(self, *requirements: str | Path) -> None:
        """Install `requirements`: with uv where it is there and can, else with its pip."""
        python = self.program("python")
        if _UV.program("uv").exists():
            # it does not read the configuration of pip, so where that matters it fails
            with suppress(StepFailedError):
                output_of(
                    [
                        *(_UV.program("uv"), "pip", "install", "--quiet"),
                        *("--python", python, *requirements),
                    ]
                )
                return
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        output_of([*pip, "install", "--quiet", *requirements])


_UV = Environment(ROOT / ".venv-uv")


def offer_uv(interpreter: Interpreter) -> None:
    """Make uv available: it fills an environment several times as fast as pip."""
    environment(_UV.path.name, interpreter, ["uv"])


def environment(name: str, interpreter: Interpreter, requirements: Sequence[str]) -> Environment:
    """Return the environment `name` of the project with `requirements` installed."""
    made = Environment(ROOT / name)
    stamp = made.path / "stamp"
    wanted = _fingerprint(made.path, interpreter, requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return made
    present = interpreter_at(str(made.program("python")))
    renamed = any(made.path.glob("lib/python*/site-packages/weakincentives-*.dist-info"))
    if renamed or present is None or present.version != interpreter.version:
        create(made.path, interpreter)
    made.install(*requirements)
    stamp.write_text(wanted)
    return made


def create(path: Path, interpreter: Interpreter) -> Environment:
    """Make an empty environment at `path`, in the place of whatever is there."""
    output_of([interpreter.executable, "-m", "venv", "--clear", path])
    return Environment(path)


def _fingerprint(path: Path, interpreter: Interpreter, requirements: Sequence[str]) -> str:
    # the path counts because scripts inside hold it: a moved project needs new ones
    facts = (str(path), interpreter.name, sys.platform, *requirements)
    contents = [(ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256("\n".join((*facts, *contents)).encode()).hexdigest()
