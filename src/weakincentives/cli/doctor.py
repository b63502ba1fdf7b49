"""`wink doctor`: check dependencies, keys, programs and settings.

Versions are read from package metadata; no optional package is imported.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from weakincentives import __version__
from weakincentives.adapters import PROVIDERS
from weakincentives.cli.config import (
    FILE_NAME,
    KEY_VARIABLES,
    KEYS,
    ConfigError,
    load_settings,
    unknown_variables,
    user_file,
    user_instructions,
)
from weakincentives.cli.state import state_directory
from weakincentives.cli.terminal import escape_controls, wants_colour
from weakincentives.contrib.evaluation import ENGINES, find_problem
from weakincentives.extras import (
    DISTRIBUTION,
    OTHER_DISTRIBUTION,
    find_clash,
    install_command,
    is_installed,
    read_requirements,
)
from weakincentives.history import is_written
from weakincentives.posix import exchange, open_directory, temporary_name
from weakincentives.redaction import redact_url
from weakincentives.sandbox import probe_sandboxes

_DEVELOPER_EXTRAS = frozenset({"all", "bench", "dev", "docs", "run", "suite"})
_NO_PROVIDER = "no provider is configured"


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package that is needed, always or for an extra, and its installed version."""

    name: str
    extra: str | None
    specifier: SpecifierSet
    installed: str | None

    @property
    def is_satisfied(self) -> bool:
        """Whether it is installed in an accepted version."""
        if self.installed is None:
            return False
        try:
            return self.specifier.contains(self.installed, prereleases=True)
        except InvalidVersion:  # older releases of packaging raise it
            return False

    def __str__(self) -> str:
        """Return the name with the installed version, or what is wrong with it."""
        if self.installed is None:
            return f"{self.name} is not installed"
        if not self.is_satisfied:
            return f"{self.name} {self.installed} is installed, but {self.specifier} is needed"
        return f"{self.name} {self.installed}"


def find_dependencies() -> tuple[Dependency, ...]:
    """Return the dependencies of wink on this Python; extras for developers are left out."""
    return tuple(_parse_dependencies(*read_requirements()))


def installed_version(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _parse_dependencies(lines: Sequence[str], extras: Sequence[str]) -> Iterator[Dependency]:
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        extra = _find_extra(requirement, extras)
        is_own = canonicalize_name(requirement.name) == DISTRIBUTION
        if extra is None or is_own or extra in _DEVELOPER_EXTRAS:
            continue
        name = requirement.name
        yield Dependency(name, extra or None, requirement.specifier, installed_version(name))


def _find_extra(requirement: Requirement, extras: Sequence[str]) -> str | None:
    """Return the extra that needs it, "" if it is always needed, None if not on this Python."""
    if requirement.marker is None:
        return ""
    marker = requirement.marker
    return next((each for each in ("", *extras) if marker.evaluate({"extra": each})), None)


State: TypeAlias = Literal["ok", "absent", "problem"]
_EXAMPLES = {"openai": "openai:gpt-5", "anthropic": "anthropic:claude-sonnet-4-5"}
_PROVIDERS_BY_KEY = {
    variable: [name for name, each in KEY_VARIABLES.items() if each == variable]
    for variable in KEY_VARIABLES.values()
}
_MIN_FREE_BYTES = 500 * 1024**2
_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "absent": ("--", "yellow"),
    "problem": ("!!", "red"),
}
_TITLES = {
    "model": "Model of wink run",
    "core": "Required",
    "files": "File system of the directory",
    "extras": "Optional extras",
    "sandbox": "Sandboxes for commands",
    "engines": "Engines for evaluate_python",
    "programs": "Optional programs",
    "keys": "API keys (values are never shown)",
    "settings": "Settings",
}


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `fix` says what to do, as a command where possible."""

    group: str
    name: str
    state: State
    detail: str
    fix: str | None = None


@click.command(epilog="Exit codes: 0 ready, 1 something required is missing or wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory whose settings are checked (default: the current one).",
)
@click.option("--config", metavar="FILE", help="Check this file instead of wink.toml.")
def command(*, as_json: bool, workspace: Path, config: str | None) -> None:
    """Check what is installed, what is missing and how to get it."""
    checks = list(_run_checks(workspace, config))
    is_ok = all(check.state != "problem" for check in checks)
    if as_json:
        data = {"ok": is_ok, "version": __version__, "checks": [asdict(each) for each in checks]}
        click.echo(json.dumps(data))
    else:
        _print_checks(checks)
    if not is_ok:
        raise click.exceptions.Exit(1)


def _run_checks(workspace: Path, config: str | None) -> Iterator[Check]:
    yield _check_model(workspace, config)
    yield Check("core", "Python", "ok", platform.python_version())
    yield from _check_packages()
    yield _check_space("temporary space", Path(tempfile.gettempdir()), "TMPDIR")
    yield _check_space("space for runs", _existing(state_directory()), "XDG_STATE_HOME")
    yield from _check_file_system(workspace)
    yield from map(_check_key, _PROVIDERS_BY_KEY)
    yield from _check_sandboxes()
    yield from _check_engines()
    yield _check_git()
    yield from _check_settings(workspace, config)


def _check_model(workspace: Path, config: str | None) -> Check:
    """Check whether `wink run` has a model to ask: named, with its extra and its key."""
    try:
        settings = load_settings(workspace, file=config, environment=os.environ, options={})
    except ConfigError:
        return Check("model", "wink run", "absent", "the settings are wrong; see below")
    model: str | None = settings["model"]
    if model is None:
        return _check_providers()
    provider = model.partition(":")[0]
    entry = PROVIDERS.get(provider)
    if entry is not None and find_spec(entry.package) is None:
        detail = f"{model} needs the extra {entry.extra}, which is not installed"
        return Check("model", "wink run", "absent", detail, install_command(entry.extra))
    variable = settings["api_key_env"] or KEY_VARIABLES.get(provider)
    needs_key = provider in _EXAMPLES and settings["base_url"] is None
    if variable and needs_key and not os.environ.get(variable):
        detail = f"{model} needs a key, which is not set"
        return Check("model", "wink run", "absent", detail, f"export {variable}=...")
    return Check("model", "wink run", "ok", f"asks {model}")


def _check_providers() -> Check:
    """Say which models could be used, or that no provider is configured and how to do that."""
    ready = [
        example
        for provider, example in _EXAMPLES.items()
        if os.environ.get(KEY_VARIABLES[provider]) and find_spec(PROVIDERS[provider].package)
    ]
    if ready:
        detail = "no model is chosen"
        fix = f"wink run --model {ready[0]}, or export WINK_MODEL={ready[0]}"
        return Check("model", "wink run", "absent", detail, fix)
    steps = [
        f"export {KEY_VARIABLES[provider]}=... WINK_MODEL={example}"
        for provider, example in _EXAMPLES.items()
    ]
    if any(find_spec(PROVIDERS[provider].package) is None for provider in _EXAMPLES):
        steps.insert(0, install_command("openai", "anthropic"))
    detail = f"{_NO_PROVIDER}, so wink run cannot start"
    fix = "; ".join((*steps[:-1], f"or {steps[-1]}"))
    return Check("model", "wink run", "absent", detail, fix)


def _check_packages() -> Iterator[Check]:
    source = "" if is_installed() else ", from a source tree"
    yield Check("core", DISTRIBUTION, "ok", f"{__version__}{source}")
    if clash := find_clash():
        yield Check("core", OTHER_DISTRIBUTION, "problem", clash.fact, clash.fix)
    by_extra: dict[str, list[Dependency]] = {}
    for each in find_dependencies():
        if each.extra is not None:
            by_extra.setdefault(each.extra, []).append(each)
        elif each.is_satisfied:
            yield Check("core", each.name, "ok", str(each.installed))
        else:
            yield Check("core", each.name, "problem", str(each), install_command())
    for extra, group in by_extra.items():
        detail = ", ".join(map(str, group))
        if all(each.is_satisfied for each in group):
            yield Check("extras", extra, "ok", detail)
        else:
            yield Check("extras", extra, "absent", detail, install_command(extra))


def _check_sandboxes() -> Iterator[Check]:
    used = None
    for each in probe_sandboxes():
        kept = ", ".join(name for name, holds in each.promises.items() if holds)
        broken = f"; not kept: {', '.join(each.broken)}" if each.broken else ""
        if each.is_available:
            used = used or each.name
            yield Check("sandbox", each.name, "ok", f"isolates commands: {kept}{broken}")
        else:
            yield Check("sandbox", each.name, "absent", each.problem)
    if used is None:
        detail = "finds none of them, so wink run offers no commands to the model"
        yield Check("sandbox", "auto", "absent", detail)
    else:
        yield Check("sandbox", "auto", "ok", f"uses {used}, and so does wink run by default")


def _check_engines() -> Iterator[Check]:
    for name, entry in ENGINES.items():
        problem = find_problem(name)
        if problem is None:
            yield Check("engines", name, "ok", f"can be used: wink run --evaluate {name}")
        else:
            fix = install_command(entry.extra) if entry.extra is not None else None
            yield Check("engines", name, "absent", problem, fix)


def _check_git() -> Check:
    path = shutil.which("git")
    if path is None:
        detail = "not found; applies the patches of wink run --patch"
        return Check("programs", "git", "absent", detail, "install git with your package manager")
    return Check("programs", "git", "ok", _program_version(path))


def _program_version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{program}, version unknown"
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else program


def _check_key(variable: str) -> Check:
    if os.environ.get(variable):
        return Check("keys", variable, "ok", "set")
    models = " and ".join(f"{provider}:MODEL" for provider in _PROVIDERS_BY_KEY[variable])
    return Check("keys", variable, "absent", "not set", f"export {variable}=... for {models}")


def _check_space(name: str, directory: Path, variable: str) -> Check:
    try:
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        fix = f"set {variable} to a writable directory"
        return Check("core", name, "problem", str(error), fix)
    detail = f"{free / 1024**3:.1f} GiB free in {directory}"
    if free < _MIN_FREE_BYTES:
        fix = f"free some space (wink clean), or set {variable} to a directory with more"
        return Check("core", name, "problem", detail, fix)
    return Check("core", name, "ok", detail)


def _check_file_system(workspace: Path) -> Iterator[Check]:
    """Yield what the file system can do for saves at the moment of an apply or undo."""
    place = workspace / temporary_name()
    try:
        place.mkdir(0o700)
        try:
            yield _check_exchange(place)
            yield _check_leases(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        yield Check("files", "exchange", "absent", f"cannot be checked: {error.strerror}")


def _check_exchange(place: Path) -> Check:
    for name in "ab":
        (place / name).write_text(name)
    try:
        with open_directory(place) as directory:
            exchange((directory, "a"), (directory, "b"))
        promise = "apply, undo and restore never overwrite what you save meanwhile"
        return Check("files", "exchange", "ok", f"RENAME_EXCHANGE works: {promise}")
    except OSError:
        with suppress(OSError):
            os.link(place / "a", place / "c")
            detail = "no RENAME_EXCHANGE: a file is absent for a moment while it is replaced"
            return Check("files", "exchange", "absent", f"{detail}, and never overwritten")
    detail = "neither RENAME_EXCHANGE nor hard links: what you save at the moment of an apply or"
    fix = "save nothing meanwhile, or work on a local file system"
    return Check("files", "exchange", "absent", f"{detail} undo can be overwritten", fix)


def _check_leases(place: Path) -> Check:
    with (place / "a").open() as file:
        if is_written(file.fileno()) is not None:
            detail = "work: a replaced file that a program still writes to is kept"
            return Check("files", "leases", "ok", detail)
    detail = "none: a replaced file is kept for an hour, also without a program that writes to it"
    return Check("files", "leases", "absent", detail)


def _existing(path: Path) -> Path:
    """Return the path, or the first directory above it that exists."""
    return next((each for each in (path, *path.parents) if each.is_dir()), path)


def _check_settings(workspace: Path, config: str | None) -> Iterator[Check]:
    try:
        settings = load_settings(workspace, file=config, environment=os.environ, options={})
    except ConfigError as error:
        yield Check("settings", FILE_NAME, "problem", str(error), "correct the setting")
        return
    for key in KEYS:
        if key in settings.given:
            setting = settings.given[key]
            shown = _display_value(key, setting.value)
            yield Check("settings", key, "ok", f"{shown} ({setting.source})")
    variable = settings["api_key_env"]
    if variable and variable not in _PROVIDERS_BY_KEY and not os.environ.get(variable):
        yield Check("keys", variable, "absent", "not set", f"export {variable}=...")
    for name, suggestion in unknown_variables(os.environ):
        hint = f"did you mean {suggestion}?" if suggestion else None
        yield Check("settings", name, "absent", "unknown variable", hint)
    yield from _check_user_files()


def _display_value(key: str, value: Any) -> str:
    """Return a setting as text, without secrets."""
    if key == "base_url":
        return redact_url(str(value))
    if key == "env":
        return ", ".join(str(each).partition("=")[0] for each in value)
    return str(value)


def _check_user_files() -> Iterator[Check]:
    """Yield whether the user has settings and instructions for every project."""
    for name, path in (
        ("your settings", user_file(os.environ)),
        ("your instructions", user_instructions(os.environ)),
    ):
        if path is not None:
            # under sudo the home may be unreadable, where `Path.exists` raises
            exists = os.path.exists(path)  # noqa: PTH110 # see above
            detail = str(path) if exists else f"{path} does not exist"
            yield Check("settings", name, "ok" if exists else "absent", detail)


def _print_checks(checks: Sequence[Check]) -> None:
    colour = wants_colour(sys.stdout)
    by_group = {title: [each for each in checks if each.group == title] for title in _TITLES}
    for group, members in by_group.items():
        if not members:
            continue
        click.echo(click.style(_TITLES[group], bold=True), color=colour)
        width = max(len(each.name) for each in members)
        for each in members:
            mark, mark_colour = _MARKS[each.state]
            line = escape_controls(f"{each.name:<{width}}  {each.detail}")
            click.echo(f"  {click.style(mark, fg=mark_colour)}  {line}", color=colour)
            if each.fix:
                click.echo(f"        {' ' * width}{escape_controls(each.fix)}", color=colour)
    if any(each.state == "problem" for each in checks):
        click.echo("\nFix the items marked !!", color=colour)
        return
    click.echo("\nEverything required is installed.", color=colour)
    model = next(each for each in checks if each.group == "model")
    if model.state != "ok":
        click.echo(f"But {escape_controls(model.detail)}:", color=colour)
        click.echo(f"  {escape_controls(model.fix or 'correct the settings')}", color=colour)
