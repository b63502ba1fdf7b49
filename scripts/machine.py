"""What the machine has: programs, Debian packages, and Pythons that really run."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.steps import StepFailedError, output_of

OLDEST = (3, 11)

# a pyenv shim exists for every version and fails for most: only an answer counts
_QUESTION = """
import json, platform, sys
try:
    import ensurepip, ssl, venv
    complete = True
except ImportError:
    complete = False
final = sys.version_info.releaselevel == "final" and platform.python_implementation() == "CPython"
print(json.dumps([sys.version_info[0], sys.version_info[1], sys.executable, complete, final]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that answered, with its version; `complete` means that it can make environments."""

    version: tuple[int, int]
    executable: str
    complete: bool
    final: bool

    @property
    def name(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))


def running_interpreter() -> Interpreter:
    """Return the Python that runs this, able to make environments.

    Raises:
        StepFailedError: It is too old, or lacks a module that only its owner can add.
    """
    found = _running()
    if not found.complete:
        _check_nothing_missing(dict([_venv_of(found)]))
    return found


def install_missing() -> None:
    """Install what every task needs, git and venv, where they are missing and that is possible.

    Raises:
        StepFailedError: Something is missing and cannot be installed from here.
    """
    found = _running()
    needed = {} if found.complete else dict([_venv_of(found)])
    _install_debian_packages(needed | _missing_packages({"git": "git"}))


def offer_programs(packages: Mapping[str, str]) -> None:
    """Install the Debian package of each program that is missing; if that fails, say so and go on.

    Args:
        packages: For each program the name of its package.
    """
    try:
        _install_debian_packages(_missing_packages(packages))
    except StepFailedError as problem:
        # the step that this belongs to has begun the line
        print(f"\n{problem}", file=sys.stderr, flush=True)


def other_interpreters(version: tuple[int, int]) -> list[Interpreter]:
    """Return one working Python of each supported minor version except `version`."""
    found: dict[tuple[int, int], Interpreter] = {}
    for named, path in _candidates():
        if named == version or named in found:
            continue
        interpreter = interpreter_at(str(path))
        if interpreter and interpreter.complete and interpreter.final:
            found.setdefault(interpreter.version, interpreter)
    return [found[key] for key in sorted(found) if key != version]


def interpreter_at(executable: str) -> Interpreter | None:
    """Return the Python at `executable`, or None where nothing of the kind answers."""
    try:
        done = subprocess.run(
            [executable, "-I", "-c", _QUESTION],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=30,
            check=True,
        )
        major, minor, path, complete, final = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return Interpreter((major, minor), path, complete, final)


def require_program(program: str, package: str) -> None:
    """Check that `program` is there; nothing is installed.

    Raises:
        StepFailedError: It is missing; the text names Debian's `package`.
    """
    _check_nothing_missing(_missing_packages({program: package}))


def _running() -> Interpreter:
    found = interpreter_at(sys.executable)
    if found is None or found.version < OLDEST:
        raise StepFailedError("Python 3.11 or newer is needed: make PYTHON=/path/to/python3")
    return found


def _venv_of(interpreter: Interpreter) -> tuple[str, str]:
    """Return what to call the `venv` of a Python, and its Debian package."""
    return f"Python {interpreter.name} with venv", f"python{interpreter.name}-venv"


def _missing_packages(packages: Mapping[str, str]) -> dict[str, str]:
    return {name: package for name, package in packages.items() if not shutil.which(name)}


def _check_nothing_missing(missing: Mapping[str, str]) -> None:
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise StepFailedError(
            f"{', '.join(missing)} {verb} missing: install with your package manager"
            f" (on Debian: apt-get install {' '.join(missing.values())})"
        )


def _install_debian_packages(missing: Mapping[str, str]) -> None:
    """Install the packages of what is missing, all at once, as root on Debian."""
    if not (Path("/etc/debian_version").exists() and shutil.which("apt-get") and os.geteuid() == 0):
        _check_nothing_missing(missing)
    elif missing:
        _update_package_lists()
        _apt_get("install", "--yes", "--no-remove", "--no-install-recommends", *missing.values())


@cache
def _update_package_lists() -> None:
    _apt_get("update")


def _apt_get(*arguments: str) -> None:
    output_of(["apt-get", "-qq", *arguments], environment={"DEBIAN_FRONTEND": "noninteractive"})


def _candidates() -> Iterator[tuple[tuple[int, int], Path]]:
    """Yield the files named like a Python 3.11 or newer, those on PATH first."""
    on_path = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    for directory in (*on_path, *_version_managers()):
        for path in _entries(directory):
            named = re.fullmatch(r"python3\.(\d+)", path.name)
            if named and int(named[1]) >= OLDEST[1]:
                yield (3, int(named[1])), path


def _version_managers() -> Iterator[Path]:
    """Yield the `bin` directories where pyenv, uv, asdf and mise keep their Pythons."""
    home = Path.home()
    homes = (
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python")),
        home / ".asdf/installs/python",
        home / ".local/share/mise/installs/python",
        Path("/opt/python"),
    )
    for directory in homes:
        for version in _entries(directory):
            yield version / "bin"


def _entries(directory: Path) -> list[Path]:
    """Return what is in `directory`, in order: nothing where it is missing or closed."""
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # often the variables of another user, kept by su or sudo
        print(f"{directory} is left out: {error.strerror}", file=sys.stderr, flush=True)
        return []
