"""What is installed of what the project can use, read from metadata: nothing is imported."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from weakincentives.filesystem.regular import read_regular

PROJECT = "weakincentives"

_MAX_BYTES = 1024 * 1024
_SOURCE_TREE = Path(__file__).parents[3]
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(\[[^\]]*\])?\s*([^;]*?)\s*(?:;\s*(.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_AT_LEAST = re.compile(r">=\s*([0-9][^,\s]*)")
_FOR_DEVELOPERS = frozenset({"all", "bench", "dev", "suite"})


@dataclass(frozen=True, slots=True)
class Requirement:
    """A distribution that is needed, always or for an extra, and what there is of it."""

    name: str
    extra: str | None
    least: str | None
    found: str | None

    @property
    def is_met(self) -> bool:
        """Whether it is there, and new enough."""
        if self.found is None:
            return False
        return self.least is None or _numbers(self.found) >= _numbers(self.least)

    def __str__(self) -> str:
        """Return the name and what there is."""
        if self.found is None:
            return f"{self.name} is not installed"
        if not self.is_met:
            return f"{self.name} {self.found} is older than {self.least}"
        return f"{self.name} {self.found}"


def requirements(project: str = PROJECT) -> tuple[Requirement, ...]:
    """Return what the project needs; extras for people who work on it are left out."""
    try:
        lines = metadata.requires(project) or []
    except metadata.PackageNotFoundError:
        lines = _declared(_SOURCE_TREE / "pyproject.toml")
    return tuple(_requirements(lines, project))


def version_of(name: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _declared(place: Path) -> list[str]:
    """Return what the metadata of a source tree would be, where nobody has installed it."""
    try:
        data = read_regular(place, _MAX_BYTES, follow_links=True)
        project = tomllib.loads(data.decode())["project"]
    except (OSError, KeyError, ValueError):
        return []
    extras = project.get("optional-dependencies", {})
    return project.get("dependencies", []) + [
        f"{line}; extra == '{extra}'" for extra, lines in extras.items() for line in lines
    ]


def _requirements(lines: list[str], project: str) -> Iterator[Requirement]:
    for line in lines:
        found = _REQUIREMENT.fullmatch(line.strip())
        if found is None or found[1] == project:
            continue
        extra = _EXTRA.search(found[4] or "")
        if extra and extra[1] in _FOR_DEVELOPERS:
            continue
        least = _AT_LEAST.search(found[3])
        yield Requirement(
            found[1],
            extra[1] if extra else None,
            least[1] if least else None,
            version_of(found[1]),
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version; `2.0.0` is no less than `2`."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(each) for each in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
