"""Extras: the packages that optional features need, and the command that installs them.

The command names the packages, in the way of the tool that made this environment. It never names
our distribution with an extra: an index may have another project under a name like it.
"""

import json
import shlex
import shutil
import sys
import tomllib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "wink-workspace"
"""Our distribution: the name that `pip` and `uv` know."""
OTHER_DISTRIBUTION = "weakincentives"
"""Another project's distribution, with the same import package and command as ours."""

_SOURCE_TREE = Path(__file__).parents[2]
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Clash:
    """Another distribution that shares our files, and the commands that separate them."""

    fact: str
    fix: str


def describe_missing(feature: str, extra: str) -> str:
    """Return the sentence for a feature whose extra is not installed, with the command."""
    return f"Packages for {feature} are missing: {install_command(extra)}"


@contextmanager
def needs_extra(feature: str, extra: str) -> Generator[None, None, None]:
    """Import packages of an extra; if one is missing, the error says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(describe_missing(feature, extra), name=error.name) from error


def install_command(*extras: str) -> str:
    """Return the command that installs the packages of `extras` here; of none, what is required."""
    lines, _ = read_requirements()
    packages = dict.fromkeys(each for extra in extras or ("",) for each in _expand(lines, extra))
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        return shlex.join(("pipx", "inject", prefix.name, *packages))
    if (prefix / "uv-receipt.toml").is_file():
        return _uv_tool_command(prefix / "uv-receipt.toml", packages)
    if find_spec("pip") is None:
        return shlex.join(("uv", "pip", "install", "--python", sys.executable, *packages))
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent == Path(sys.executable).parent:
        return shlex.join(("pip", "install", *packages))
    return shlex.join((sys.executable, "-m", "pip", "install", *packages))


def read_requirements() -> tuple[list[str], list[str]]:
    """Return the requirements of this distribution and its extras, as its metadata has them."""
    metadata = _find_metadata(DISTRIBUTION)
    try:
        if metadata is None:
            return _read_source_tree()
        lines = (metadata / "METADATA").read_text("utf-8").partition("\n\n")[0].splitlines()
    except (OSError, ValueError, KeyError):
        return [], []
    fields = [line.partition(": ") for line in lines]
    return (
        [value for name, _, value in fields if name == "Requires-Dist"],
        [value for name, _, value in fields if name == "Provides-Extra"],
    )


def is_installed() -> bool:
    """Whether this runs from an installed distribution, and not from a source tree alone."""
    return _find_metadata(DISTRIBUTION) is not None


def find_clash() -> Clash | None:
    """Return what is wrong if the other distribution is installed here, with the commands."""
    if _find_metadata(OTHER_DISTRIBUTION) is None:
        return None
    names = (OTHER_DISTRIBUTION, DISTRIBUTION)
    if find_spec("pip") is None:
        uv, python = ("uv", "pip"), ("--python", sys.executable)
        remove, install = (*uv, "uninstall", *python, *names), (*uv, "install", *python)
    else:
        pip = (sys.executable, "-m", "pip")
        remove, install = (*pip, "uninstall", "--yes", *names), (*pip, "install")
    return Clash(
        f"The distribution {OTHER_DISTRIBUTION!r} is installed here: an older version of wink, or"
        " another project with the same package and command. Files of one may have replaced those"
        " of the other. Uninstall both, then install wink again",
        f"{shlex.join(remove)} && {shlex.join((*install, _source()))}",
    )


def _find_metadata(distribution: str) -> Path | None:
    """Return the directory with the metadata of a distribution that is installed here."""
    pattern = f"{distribution.replace('-', '_')}-*.dist-info"
    for directory in map(Path, sys.path):
        # anything else on the path may be a workspace
        if directory.name in _INSTALLED:
            for found in directory.glob(pattern):
                return found
    return None


def _read_source_tree() -> tuple[list[str], list[str]]:
    project = tomllib.loads((_SOURCE_TREE / "pyproject.toml").read_text("utf-8"))["project"]
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})
    lines = project.get("dependencies", []) + [
        f"{line}; extra == '{extra}'" for extra, lines in extras.items() for line in lines
    ]
    return lines, list(extras)


def _expand(lines: Sequence[str], extra: str) -> Iterator[str]:
    """Yield the requirements of an extra; one of our own extras stands for its packages."""
    for line in lines:
        requirement, _, marker = line.partition(";")
        needed = (
            f"extra == '{extra}'" in marker.replace('"', "'") if extra else "extra" not in marker
        )
        if not needed:
            continue
        name, _, inner = requirement.strip().partition("[")
        if name == DISTRIBUTION:
            for each in inner.rstrip("]").split(","):
                yield from _expand(lines, each.strip())
        else:
            yield requirement.strip()


def _uv_tool_command(receipt: Path, packages: Iterable[str]) -> str:
    """Return the command that installs the tool again, with what it has and `packages`."""
    present = tomllib.loads(receipt.read_text("utf-8")).get("tool", {}).get("requirements", [])
    kept = [_spell(each) for each in present if each.get("name") != DISTRIBUTION]
    wanted = [part for each in dict.fromkeys((*kept, *packages)) for part in ("--with", each)]
    return shlex.join(("uv", "tool", "install", "--force", *wanted, _source()))


def _spell(requirement: dict[str, Any]) -> str:
    place = requirement.get("directory") or requirement.get("url")
    extras = requirement.get("extras")
    name = requirement["name"] + (f"[{','.join(extras)}]" if extras else "")
    return f"{name} @ {place}" if place else name + requirement.get("specifier", "")


def _source() -> str:
    """Return what this was installed from: a directory or a URL, else its name."""
    metadata = _find_metadata(DISTRIBUTION)
    if metadata is not None and (metadata / "direct_url.json").is_file():
        url = str(json.loads((metadata / "direct_url.json").read_text("utf-8"))["url"])
        return unquote(urlsplit(url).path) if url.startswith("file:") else url
    return str(_SOURCE_TREE) if (_SOURCE_TREE / "pyproject.toml").is_file() else DISTRIBUTION
