"""Settings of a run from `wink.toml`, environment variables and command-line options.

Each setting has one name: `max_tokens` in a file, `WINK_MAX_TOKENS` in the environment,
`--max-tokens` on the command line. Later sources override earlier ones: the workspace's
file, the user's file, the environment, the options. An invalid value is an error in any
source, even if a later source overrides it.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import click

from weakincentives.cli.lazy import defer, load
from weakincentives.cli.state import ConfigError, parse_value
from weakincentives.cli.units import parse_count, parse_duration
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, convert

F = TypeVar("F", bound=Callable[..., Any])

FILE_NAME = "wink.toml"
PREFIX = "WINK_"
AUTO = "auto"
NO_SANDBOX, LOCAL_SANDBOX = "none", "local"
NO_ENGINE = "none"
# These names are those of packages that take longer to import than a person waits for the first
# line of a run; a test compares them.
PROVIDER_NAMES = ("anthropic", "claude-agent", "litellm", "openai")
EFFORT_CHOICES = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
DIALECT_CHOICES = (AUTO, "wink", "classic", "claude", "anthropic-editor", "openai", "gemini", "mcp")
SANDBOX_CHOICES = (NO_SANDBOX, AUTO, "bubblewrap", "landlock", "podman", LOCAL_SANDBOX)
ENGINE_CHOICES = (NO_ENGINE, AUTO, "python", "asteval", "monty")
KEY_VARIABLES: Mapping[str, str] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "claude-agent": "ANTHROPIC_API_KEY",
}
"""The variable in which each provider's client looks for an API key."""
DEFAULT_MODELS = ("openai:gpt-5", "anthropic:claude-sonnet-4-5")
"""The model of a provider whose key is in the environment, if the user names none."""
MCP_TOKEN_VARIABLE = "WINK_MCP_TOKEN"
"""The variable that holds the token of `wink mcp --http`."""
OTHER_VARIABLES = ("WINK_CONFIG", "WINK_TRACEBACK", MCP_TOKEN_VARIABLE)

SAFE_PROVIDERS = ("openai", "anthropic", "scripted")
"""Their server and key are fixed; others start a program, or derive both from the model name."""
_MAX_FILE_BYTES = 1024 * 1024
_MAX_TEMPERATURE = 2.0
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: how to parse its value, its option, and whether a workspace may set it.

    A workspace may be a repository that somebody else wrote. Only the user decides where
    an API key is sent, what runs on this machine and where files are written.
    """

    parse: Callable[[Any], Any]
    help: str = ""
    """What `--help` says about its option."""
    metavar: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else click is told about the option."""
    is_personal: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source."""

    value: Any
    source: str
    is_foreign: bool = False
    """Whether it comes from a workspace's file rather than from the user."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, each with its source."""

    given: Mapping[str, Setting] = field(default_factory=dict[str, Setting])

    def __getitem__(self, key: str) -> Any:
        """Return a value, or None if it is not set."""
        setting = self.given.get(key)
        return None if setting is None else setting.value

    @property
    def model_variable(self) -> str:
        """The variable with the key that chose the model; empty if the user did."""
        model = self.given.get("model")
        return model.source if model is not None and model.source in KEY_VARIABLES.values() else ""


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a non-empty string: {value!r}")
    return value


def _parse_list(value: Any, what: str) -> tuple[str, ...]:
    """Return the texts of a list, or of a text with commas."""
    items: Any = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"must be a list of {what}: {value!r}")
    return tuple(map(_parse_text, cast("list[Any]", items)))


def _parse_globs(value: Any) -> tuple[str, ...]:
    return tuple(map(str.strip, _parse_list(value, "globs")))


def _parse_choice(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value in choices:
            return value
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"must be one of {', '.join(choices)}: {value!r}{hint}")

    return parse


_parse_rule = defer("sandbox.allowlist", "parse_rule")


def parse_hosts(value: Any) -> tuple[str, ...]:
    """Return the rules of an allow-list, from a list or a text with commas.

    Raises:
        ValueError: One of them is not a host.
    """
    hosts = _parse_list(value, "hosts")
    try:
        return tuple(str(_parse_rule(each.strip())) for each in hosts)
    except ValueError as error:
        raise ValueError(f"is invalid: {error}") from error


def _parse_variables(value: Any) -> tuple[str, ...]:
    """Return names of variables, or names with values, from a list or a text with commas."""
    found = tuple(map(str.lstrip, _parse_list(value, "NAME or NAME=VALUE")))
    for each in found:
        if not _VARIABLE.fullmatch(each):
            # a value may be secret, and its name is what is wrong
            raise ValueError(f"must be NAME or NAME=VALUE: {each.partition('=')[0]!r}")
    return found


def _parse_temperature(value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError):
        number = None
    if number is None or not 0 <= number <= _MAX_TEMPERATURE:
        raise ValueError(f"must be a number from 0 to {_MAX_TEMPERATURE:g}: {value!r}")
    return number


def _parse_flag(value: Any) -> bool:
    flags = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    found = flags.get(str(value).lower())
    if found is None:
        raise ValueError(f"must be true or false: {value!r}")
    return found


def _parse_prices(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"must be a table of models: {value!r}; write [prices] in a file")
    table, price = cast("dict[str, Any]", value), load("adapters", "TokenPrice")
    try:
        return {str(model): convert(each, price) for model, each in table.items()}
    except SerdeError as error:
        example = '"openai:gpt-5" = { input = 1.25, cached = 0.125, output = 10 }'
        raise ValueError(
            f"must have dollars per million tokens, such as {example}: {error}"
        ) from error


def _choice(choices: tuple[str, ...], text: str, **facts: Any) -> Key:
    return Key(_parse_choice(choices), text, attributes={"type": click.Choice(choices)}, **facts)


KEYS: Mapping[str, Key] = {
    "model": Key(
        _parse_text,
        f"{', '.join(f'{each}:MODEL' for each in PROVIDER_NAMES)}, or scripted:FILE for a script"
        " (default: by the API key that is set).",
        "NAME",
    ),
    "dialect": _choice(DIALECT_CHOICES, "Tool names to offer (default: auto, by model)."),
    "effort": _choice(EFFORT_CHOICES, "How much the model reasons (default: the provider's)."),
    "temperature": Key(
        _parse_temperature, "Sampling temperature, 0 to 2 (default: the provider's).", "NUMBER"
    ),
    "max_tokens": Key(parse_count, "Limit of input and output tokens, such as 200k.", "N"),
    "deadline": Key(parse_duration, "Time limit, such as 90s, 10m or 1h30m.", "TIME"),
    "max_steps": Key(parse_count, "Limit of model requests (default: 100).", "N"),
    "context_window": Key(
        parse_count,
        "Context window of the model, such as 32k (default: known for common models). Before it is"
        " full, old tool results are dropped and old turns summarized.",
        "N",
        is_personal=True,
    ),
    "sandbox": _choice(
        SANDBOX_CHOICES,
        "Sandbox for commands (default: the first that works; if none does, no commands).",
        is_personal=True,
    ),
    "evaluate": Key(
        _parse_choice(ENGINE_CHOICES),
        "Offer to run Python code; optionally name the engine (default: none).",
        attributes={"type": click.Choice(ENGINE_CHOICES), "is_flag": False, "flag_value": AUTO},
        is_personal=True,
    ),
    "command_timeout": Key(parse_duration, "Time limit of each command (default: 2m).", "TIME"),
    "test_cmd": Key(
        _parse_text,
        "Run COMMAND when the model is done; send failures back to the model.",
        "COMMAND",
        is_personal=True,
    ),
    "test_rounds": Key(
        parse_count,
        "How often a failure of --test-cmd is sent back (default: 3).",
        "N",
    ),
    "env": Key(
        _parse_variables,
        "Set a variable for commands; NAME alone passes on yours. Repeatable.",
        "NAME[=VALUE]",
        attributes={"multiple": True},
        is_personal=True,
    ),
    "allow_host": Key(
        parse_hosts,
        "Let commands reach this host, such as pypi.org. Repeatable.",
        "HOST",
        attributes={"multiple": True},
        is_personal=True,
    ),
    "exclude": Key(
        _parse_globs,
        "Do not copy matching files. Repeatable.",
        "GLOB",
        attributes={"multiple": True},
    ),
    "digest": Key(_parse_flag, "Start the prompt with a digest of the files (default: on)."),
    "project_instructions": Key(
        _parse_flag, "Put AGENTS.md, CLAUDE.md and the like into the prompt (default: on)."
    ),
    "base_url": Key(
        _parse_text, "Server to use instead of the provider's.", "URL", is_personal=True
    ),
    "api_key_env": Key(
        _parse_text, "Environment variable with the API key.", "NAME", is_personal=True
    ),
    "dump": Key(_parse_text, is_personal=True),
    "dump_all": Key(_parse_flag),
    "prices": Key(_parse_prices, is_personal=True),
}
"""Every setting by its name."""


def setting_options(*names: str) -> Callable[[F], F]:
    """Return a decorator that adds the options of settings to a command, in this order."""

    def decorate(command: F) -> F:
        for name in reversed(names):
            key, option = KEYS[name], option_name(name)
            if key.parse is _parse_flag:
                option = f"{option}/{option_name(f'no_{name}')}"
            facts: dict[str, Any] = {"help": key.help, "metavar": key.metavar, **key.attributes}
            command = click.option(option, default=None, **facts)(command)
        return command

    return decorate


def option_name(key: str) -> str:
    """Return the command-line option of a setting."""
    return f"--{key.replace('_', '-')}"


def load_settings(
    workspace: Path | None,
    *,
    file: str | None = None,
    environment: Mapping[str, str],
    options: Mapping[str, object],
) -> Settings:
    """Return the settings of a run.

    Args:
        workspace: The directory whose `wink.toml` is read, if it has one; None reads none.
        file: A file that the user named; it may set every key, and no other file is read.
        environment: The environment variables.
        options: The command-line options; None and `()` mean not given.

    Raises:
        ConfigError: A key or value is invalid in any source, or a file cannot be read.
    """
    named = file or environment.get("WINK_CONFIG") or None
    given = dict(
        _read_default_files(workspace, user_file(environment))
        if named is None
        else _read_file(Path(named), is_named=True)
    )
    given |= _read_environment(environment)
    for key, value in options.items():
        if value is not None and value != ():
            option = option_name(key)
            given[key] = Setting(parse_value(option, KEYS[key].parse, value), option)
    _check_model(given, environment)
    if not given.keys() & {"model", "base_url", "api_key_env"}:
        given |= _default_model(environment)
    return Settings(given)


def describe_server(url: str | None) -> str | None:
    """Return the address of a server without credentials."""
    if url is None:
        return None
    server = urlsplit(url)
    return f"{server.scheme}://{server.netloc.rpartition('@')[2]}{server.path}"


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's `wink.toml`, whether or not it exists."""
    config, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    if config.startswith("/"):
        return Path(config) / "wink" / FILE_NAME
    return Path(home) / ".config" / "wink" / FILE_NAME if home.startswith("/") else None


def user_instructions(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own `AGENTS.md`, beside `wink.toml`; it need not exist."""
    beside = user_file(environment)
    return None if beside is None else beside.with_name("AGENTS.md")


def unknown_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield the unknown `WINK_` variables, each with the name that was probably meant."""
    known = [*(variable_name(key) for key in KEYS), *OTHER_VARIABLES]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            yield name, next(iter(difflib.get_close_matches(name, known, n=1)), None)


def variable_name(key: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + key.upper()


def _read_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    for key in KEYS:
        name = variable_name(key)
        if environment.get(name):
            yield key, Setting(parse_value(name, KEYS[key].parse, environment[name]), name)


def _read_default_files(workspace: Path | None, own: Path | None) -> Iterator[tuple[str, Setting]]:
    path = None if workspace is None else workspace / FILE_NAME
    if path is not None and (own is None or os.path.realpath(path) != str(own)):
        yield from _read_file(path, is_foreign=True)
    # under sudo the home may be unreadable: `os.path.exists` returns False, `Path.exists` raises
    if own is not None and os.path.exists(own):  # noqa: PTH110 # Path.exists raises there
        yield from _read_file(own)


def _read_file(
    path: Path, *, is_named: bool = False, is_foreign: bool = False
) -> Iterator[tuple[str, Setting]]:
    """Yield the settings of a file; a missing file is an error only if it was named."""
    try:
        # a link in a workspace is not followed; one of the user's own is
        data = read_regular(path, _MAX_FILE_BYTES, follow_links=not is_foreign)
        table: dict[str, Any] = tomllib.loads(data.decode())
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_named:
            return
        hint = "" if is_named else "; remove it, or choose another file with --config"
        raise ConfigError(f"{path} cannot be read: {error.strerror}{hint}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    run = table.pop("run", {})
    if not isinstance(run, dict):
        raise ConfigError(f"{path}: run must be a table: {run!r}; write [run]")
    for key, value in {**table, **cast("dict[str, Any]", run)}.items():
        _check_key(key, path)
        if is_foreign and KEYS[key].is_personal:
            raise _workspace_error(path, key)
        found = parse_value(f"{path}: {key}", KEYS[key].parse, value)
        yield key, Setting(found, str(path), is_foreign=is_foreign)


def _workspace_error(path: Path | str, key: str) -> ConfigError:
    return ConfigError(
        f"{path}: {key} cannot be set by a workspace's {FILE_NAME}; use"
        f" {option_name(key)}, {variable_name(key)} or ~/.config/wink/{FILE_NAME},"
        " or pass the file with --config if you trust it"
    )


def _check_model(given: Mapping[str, Setting], environment: Mapping[str, str]) -> None:
    """Raise if a workspace's choice of model would decide what runs or where a key is sent."""
    model = given.get("model")
    if model is None or not model.is_foreign:
        return
    provider = str(model.value).partition(":")[0]
    if provider in PROVIDER_NAMES and provider not in SAFE_PROVIDERS:
        raise _workspace_error(model.source, "model")
    if "api_key_env" in given and "base_url" not in given and provider in PROVIDER_NAMES:
        raise ConfigError(
            f"{model.source}: a workspace's model cannot receive the key that"
            f" {given['api_key_env'].source} names; choose the model with --model"
        )
    variable = KEY_VARIABLES.get(provider, "")
    if "base_url" in given and "api_key_env" not in given and environment.get(variable):
        raise ConfigError(
            f"{model.source}: a workspace's model cannot send {variable} to the server that"
            f" {given['base_url'].source} names; choose the model with --model"
        )


def _default_model(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Return the model of the one provider whose key is in the environment; nothing if unclear."""
    models = {KEY_VARIABLES[model.partition(":")[0]]: model for model in DEFAULT_MODELS}
    found = [name for name in models if environment.get(name)]
    return {"model": Setting(models[found[0]], found[0])} if len(found) == 1 else {}


def _check_key(key: str, path: Path) -> None:
    if key in KEYS:
        return
    near = difflib.get_close_matches(key.replace("-", "_"), KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(KEYS)}"
    raise ConfigError(f"{path}: unknown key {key!r}; {hint}")
