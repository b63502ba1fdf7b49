"""What a run is told beforehand: by `wink.toml`, by the environment, by options.

Each setting is one key, and is called the same everywhere: `max_tokens` in the file,
`WINK_MAX_TOKENS` in the environment, `--max-tokens` on the command line. What comes later
wins: the file of the workspace, the user's own file, the environment, the options. A value
that makes no sense is refused where it stands, whoever wins.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click

from weakincentives.adapters.registry import PROVIDERS
from weakincentives.cli.units import duration, positive_count
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.posix import read_regular

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

# whose server and key are fixed; others start a program, or find both by the name of a model
_FOREIGN_PROVIDERS = ("openai", "anthropic", "scripted")
_MAX_BYTES = 1024 * 1024


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
        workspace: Where a `wink.toml` may be that says what a workspace may say.
        file: A file that the person named; it may say everything, and no other is read.
        environment: The variables of the process.
        options: What the command line says; None is nothing.

    Raises:
        ConfigError: A key or a value is wrong, in any of them, or the file cannot be read.
    """
    named = file or environment.get("WINK_CONFIG") or None
    given = dict(_from_files(workspace, user_file(environment)) if named is None else _own(named))
    given |= _from_environment(environment)
    for key, value in options.items():
        if value is not None and value != ():
            option = f"--{key.replace('_', '-')}"
            given[key] = Setting(_read(key, value, option), option)
    _check_model(given, environment)
    return Settings(given)


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return where the user's own settings are, whether or not there are any."""
    config, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    if config.startswith("/"):
        return Path(config) / "wink" / FILE_NAME
    return Path(home) / ".config" / "wink" / FILE_NAME if home.startswith("/") else None


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


def _own(named: str) -> Iterator[tuple[str, Setting]]:
    for key, value in _entries(Path(named), is_named=True):
        yield key, Setting(_read(key, value, f"{named}: {key}"), named)


def _from_files(workspace: Path, own: Path | None) -> Iterator[tuple[str, Setting]]:
    place = workspace / FILE_NAME
    if own is None or os.path.realpath(place) != str(own):
        for key, value in _entries(place):
            if KEYS[key].is_personal:
                raise _not_for_a_workspace(place, key)
            yield key, Setting(_read(key, value, f"{place}: {key}"), str(place), is_foreign=True)
    # `os.path.exists` takes a home that is closed to this user for none, as under sudo
    for key, value in _entries(own, is_own=True) if own is not None and os.path.exists(own) else ():  # noqa: PTH110 # Path.exists raises there
        yield key, Setting(_read(key, value, f"{own}: {key}"), str(own))


def _entries(
    place: Path, *, is_named: bool = False, is_own: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield what a file says; one that is not there says nothing, unless somebody named it."""
    try:
        # a link that a workspace brings is not followed; one of the person's own is
        data = read_regular(place, _MAX_BYTES, follow_links=is_named or is_own)
        table: dict[str, Any] = tomllib.loads(data.decode())
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_named:
            return
        hint = "" if is_named else "; remove it, or name another with --config"
        raise ConfigError(f"{place} cannot be read: {error.strerror}{hint}") from error
    except ValueError as error:
        raise ConfigError(f"{place} is not TOML: {error}") from error
    run = table.pop("run", {})
    if not isinstance(run, dict):
        raise ConfigError(f"{place}: run must be a table: {run!r}; write [run]")
    for key, value in {**table, **cast("dict[str, Any]", run)}.items():
        _check_key(key, place)
        yield key, value


def _not_for_a_workspace(place: Path | str, key: str) -> ConfigError:
    return ConfigError(
        f"{place}: {key} is for you to say and not for a workspace: say"
        f" --{key.replace('_', '-')}, set {variable_of(key)} or write it to"
        f" ~/.config/wink/{FILE_NAME}; --config takes a file as your own, if you trust it"
    )


def _check_model(given: Mapping[str, Setting], environment: Mapping[str, str]) -> None:
    """Refuse a model by which a workspace would decide what runs, or where a key goes."""
    model = given.get("model")
    if model is None or not model.is_foreign:
        return
    provider = str(model.value).partition(":")[0]
    if provider in PROVIDERS and provider not in _FOREIGN_PROVIDERS:
        raise _not_for_a_workspace(model.source, "model")
    if "api_key_env" in given and "base_url" not in given and provider in PROVIDERS:
        raise ConfigError(
            f"{model.source}: model cannot decide who is sent the key that"
            f" {given['api_key_env'].source} names; say --model yourself"
        )
    variable = KEY_VARIABLES.get(provider, "")
    if "base_url" in given and "api_key_env" not in given and environment.get(variable):
        raise ConfigError(
            f"{model.source}: model cannot decide that {variable} is sent to the server that"
            f" {given['base_url'].source} names; say --model yourself"
        )


def _check_key(key: str, place: Path) -> None:
    if key in KEYS:
        return
    near = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KEYS)}"
    raise ConfigError(f"{place}: unknown key {key!r}; {hint}")


def _read(key: str, value: object, source: str) -> Any:
    try:
        return KEYS[key].read(value)
    except ValueError as error:
        raise ConfigError(f"{source} {error}") from error
