"""What is installed of what the project can use, read from metadata: nothing is imported."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias

import click

from weakincentives import __version__
from weakincentives.adapters.http import redact_url
from weakincentives.cli.config import (
    FILE_NAME,
    KEY_VARIABLES,
    KEYS,
    ConfigError,
    load_settings,
    unknown_variables,
)
from weakincentives.cli.terminal import plain, wants_colour
from weakincentives.posix import read_regular

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


State: TypeAlias = Literal["ok", "absent", "problem"]
_PROVIDERS = {
    variable: [name for name, each in KEY_VARIABLES.items() if each == variable]
    for variable in KEY_VARIABLES.values()
}
_PYTHON = (3, 11)
_LEAST_SPACE = 500 * 1024**2
_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "absent": ("--", "yellow"),
    "problem": ("!!", "red"),
}
_TITLES = {
    "core": "Needed",
    "extras": "Extras, each for one thing",
    "programs": "Programs, none of them needed",
    "keys": "Keys, never shown",
    "settings": "Settings",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `fix` is what to do about it, a command if there is one."""

    group: str
    name: str
    state: State
    detail: str
    fix: str | None = None


@click.command(epilog="Exit code 1 if something that is needed is missing or wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Whose wink.toml to look at; the current directory if omitted.",
)
@click.option("--config", metavar="FILE", help="Look at this file instead of wink.toml.")
def command(as_json: bool, workspace: Path, config: str | None) -> None:
    """Say what is installed, what is missing and how to get it."""
    checks = list(_checks(workspace, config))
    is_well = all(check.state != "problem" for check in checks)
    if as_json:
        told = {"ok": is_well, "version": __version__, "checks": [asdict(each) for each in checks]}
        click.echo(json.dumps(told))
    else:
        _show(checks)
    if not is_well:
        raise click.exceptions.Exit(1)


def _checks(workspace: Path, config: str | None) -> Iterator[Check]:
    yield _python()
    yield from _packages()
    yield _temporary_space()
    yield from map(_key, _PROVIDERS)
    yield from _programs()
    yield from _settings(workspace, config)


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info[:2] < _PYTHON:
        wanted = ".".join(map(str, _PYTHON))
        return Check("core", "Python", "problem", version, f"use Python {wanted} or later")
    return Check("core", "Python", "ok", version)


def _packages() -> Iterator[Check]:
    how = "" if version_of(PROJECT) else ", from a source tree"
    yield Check("core", PROJECT, "ok", f"{__version__}{how}")
    for extra, group in groupby(requirements(), key=lambda each: each.extra):
        if extra is None:
            yield from map(_needed, group)
        else:
            yield _extra(extra, list(group))


def _needed(requirement: Requirement) -> Check:
    if requirement.is_met:
        return Check("core", requirement.name, "ok", str(requirement.found))
    fix = f"pip install --upgrade {PROJECT}"
    return Check("core", requirement.name, "problem", str(requirement), fix)


def _extra(extra: str, group: list[Requirement]) -> Check:
    detail = ", ".join(map(str, group))
    if all(each.is_met for each in group):
        return Check("extras", extra, "ok", detail)
    return Check("extras", extra, "absent", detail, f"pip install '{PROJECT}[{extra}]'")


def _programs() -> Iterator[Check]:
    for name, use, fix in (
        ("git", "takes the patches of wink run --patch", "install git with your package manager"),
        ("podman", "containers, which wink does not use yet", None),
    ):
        found = shutil.which(name)
        if found is None:
            yield Check("programs", name, "absent", f"not found: {use}", fix)
        else:
            yield Check("programs", name, "ok", _version(found))


def _version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{program}, which says no version"
    told = done.stdout.strip().splitlines()
    return told[0] if told else program


def _key(variable: str) -> Check:
    if os.environ.get(variable):
        return Check("keys", variable, "ok", "set")
    models = " and ".join(f"{provider}:MODEL" for provider in _PROVIDERS[variable])
    return Check(
        "keys",
        variable,
        "absent",
        "not set",
        f"export {variable}=... for {models}",
    )


def _temporary_space() -> Check:
    try:
        place = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free
    except OSError as error:
        return Check("core", "temporary space", "problem", str(error), "set TMPDIR to a directory")
    detail = f"{free / 1024**3:.1f} GiB free in {place}"
    if free < _LEAST_SPACE:
        fix = "make room, or set TMPDIR to a directory with more"
        return Check("core", "temporary space", "problem", detail, fix)
    return Check("core", "temporary space", "ok", detail)


def _settings(workspace: Path, config: str | None) -> Iterator[Check]:
    try:
        settings = load_settings(workspace, file=config, environment=os.environ, options={})
    except ConfigError as error:
        yield Check("settings", FILE_NAME, "problem", str(error), "correct it")
        return
    for key in KEYS:
        if key in settings.given:
            found = settings.given[key]
            value = redact_url(str(found.value)) if key == "base_url" else found.value
            yield Check("settings", key, "ok", f"{value} ({found.source})")
    if settings["model"] is None:
        yield Check("settings", "model", "absent", "none", "export WINK_MODEL=openai:MODEL")
    named = settings["api_key_env"]
    if named and named not in _PROVIDERS and not os.environ.get(named):
        yield Check("keys", named, "absent", "not set", f"export {named}=...")
    for name, meant in unknown_variables(os.environ):
        hint = f"did you mean {meant}?" if meant else None
        yield Check("settings", name, "absent", "nothing reads this variable", hint)


def _show(checks: Iterable[Check]) -> None:
    colour = wants_colour(sys.stdout)
    by_group = {title: [each for each in checks if each.group == title] for title in _TITLES}
    for group, found in by_group.items():
        if not found:
            continue
        click.echo(click.style(_TITLES[group], bold=True), color=colour)
        width = max(len(each.name) for each in found)
        for each in found:
            mark, look = _MARKS[each.state]
            line = plain(f"{each.name:<{width}}  {each.detail}")
            click.echo(f"  {click.style(mark, fg=look)}  {line}", color=colour)
            if each.fix:
                click.echo(f"        {' ' * width}{plain(each.fix)}", color=colour)
    if any(each.state == "problem" for each in checks):
        click.echo("\nWhat is marked !! is to be put right.", color=colour)
    else:
        click.echo("\nNothing that is needed is missing.", color=colour)
