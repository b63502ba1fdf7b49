"""What a run is told beforehand: by `wink.toml`, by the environment, by options.

Each setting is one key, and is called the same everywhere: `max_tokens` in the file,
`WINK_MAX_TOKENS` in the environment, `--max-tokens` on the command line. What comes later
wins. A value that makes no sense is refused where it stands, whoever wins.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click

from weakincentives.cli.quantities import duration, positive_count
from weakincentives.contrib.tools.dialects import DIALECTS

FILE_NAME = "wink.toml"
PREFIX = "WINK_"
AUTO = "auto"
NO_SANDBOX, LOCAL_SANDBOX = "none", "local"
DIALECT_CHOICES = (AUTO, *DIALECTS)
SANDBOX_CHOICES = (NO_SANDBOX, LOCAL_SANDBOX)
KEY_VARIABLES: Mapping[str, str] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "claude-agent": "ANTHROPIC_API_KEY",
}
"""Where each provider's own client looks for a key."""
OTHER_VARIABLES = ("WINK_CONFIG", "WINK_TRACEBACK")

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ConfigError(click.UsageError):
    """Something that a person has said cannot be used; the message says where it stands."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: how its value is read, and whether a workspace may bring it.

    A workspace may be a repository that somebody else wrote. What decides where a key is
    sent, what runs on this machine or where files go is for the person to say.
    """

    read: Callable[[Any], Any]
    is_personal: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and where it comes from."""

    value: Any
    source: str
    is_foreign: bool = False
    """Whether a workspace brought it, and no person has said it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is told beforehand, and where each part of it comes from."""

    given: Mapping[str, Setting] = field(default_factory=dict[str, Setting])

    def __getitem__(self, key: str) -> Any:
        """Return a value, or None if nobody gave one."""
        found = self.given.get(key)
        return None if found is None else found.value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a text that is not empty: {value!r}")
    return value


def _globs(value: Any) -> tuple[str, ...]:
    found: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        raise ValueError(f"must be a list of globs: {value!r}")
    return tuple(_text(each).strip() for each in cast("list[Any]", found))


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value in choices:
            return value
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"must be one of {', '.join(choices)}: {value!r}{hint}")

    return read


KEYS: Mapping[str, Key] = {
    "model": Key(_text),
    "dialect": Key(_one_of(DIALECT_CHOICES)),
    "max_tokens": Key(positive_count),
    "max_steps": Key(positive_count),
    "deadline": Key(duration),
    "exclude": Key(_globs),
    "sandbox": Key(_one_of(SANDBOX_CHOICES), is_personal=True),
    "base_url": Key(_text, is_personal=True),
    "api_key_env": Key(_text, is_personal=True),
    "dump": Key(_text, is_personal=True),
}
"""Every setting by its name."""


def load_settings(
    workspace: Path,
    *,
    file: str | None = None,
    environment: Mapping[str, str],
    options: Mapping[str, object],
) -> Settings:
    """Return the settings of a run.

    Args:
        workspace: Where `wink.toml` is, unless `file` says another place.
        file: A file that the person named; it may say everything.
        environment: The variables of the process.
        options: What the command line says; None is nothing.

    Raises:
        ConfigError: A key or a value is wrong, in any of them, or the file cannot be read.
    """
    named = file or environment.get("WINK_CONFIG") or None
    place = Path(named) if named else workspace / FILE_NAME
    given = dict(_from_file(place, is_named=named is not None))
    given |= _from_environment(environment)
    for key, value in options.items():
        if value is not None and value != ():
            option = f"--{key.replace('_', '-')}"
            given[key] = Setting(_read(key, value, option), option)
    return Settings(given)


def unknown_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield the `WINK_` variables that nothing reads, each with what was probably meant."""
    known = [*(variable_of(key) for key in KEYS), *OTHER_VARIABLES]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            yield name, next(iter(difflib.get_close_matches(name, known, n=1)), None)


def variable_of(key: str) -> str:
    """Return the name of the environment variable of a key."""
    return PREFIX + key.upper()


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    for key in KEYS:
        name = variable_of(key)
        if environment.get(name):
            yield key, Setting(_read(key, environment[name], name), name)


def _from_file(place: Path, *, is_named: bool) -> Iterator[tuple[str, Setting]]:
    if not is_named and place.exists() and not place.is_file():
        raise ConfigError(f"{place} is not a file; remove it, or name another with --config")
    try:
        table: dict[str, Any] = tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_named:
            return
        raise ConfigError(f"{place} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{place} is not TOML: {error}") from error
    run = table.pop("run", {})
    if not isinstance(run, dict):
        raise ConfigError(f"{place}: run must be a table: {run!r}; write [run]")
    for key, value in {**table, **cast("dict[str, Any]", run)}.items():
        _check_key(key, place)
        if KEYS[key].is_personal and not is_named and not _stays_here(key, value):
            raise ConfigError(
                f"{place}: {key} is for you to say and not for a workspace:"
                f" say --{key.replace('_', '-')} or set {variable_of(key)}, or name the file"
                " with --config if you trust it"
            )
        yield key, Setting(_read(key, value, f"{place}: {key}"), str(place), not is_named)


def _check_key(key: str, place: Path) -> None:
    if key in KEYS:
        return
    near = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KEYS)}"
    raise ConfigError(f"{place}: unknown key {key!r}; {hint}")


def _stays_here(key: str, value: object) -> bool:
    """Say whether it is an address on this machine, which no stranger can listen at."""
    try:
        return key == "base_url" and urlsplit(str(value)).hostname in _LOOPBACK
    except ValueError:
        return False


def _read(key: str, value: object, source: str) -> Any:
    try:
        return KEYS[key].read(value)
    except ValueError as error:
        raise ConfigError(f"{source} {error}") from error
