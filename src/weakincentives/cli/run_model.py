"""Which model a run asks, and where its key comes from."""

from collections.abc import Mapping
from pathlib import Path

import click

from weakincentives.adapters import (
    AdapterError,
    AuthenticationError,
    ProviderAdapter,
    RecordingAdapter,
    adapter_for,
)
from weakincentives.cli.config import AUTO, KEY_VARIABLES, LOCAL_SANDBOX, ConfigError, Settings
from weakincentives.cli.run_script import scripted
from weakincentives.contrib.tools.dialects import DialectName, dialect_for

_SCRIPTED = "scripted"


class ModelError(click.ClickException):
    """The model that is named cannot be asked; nothing has been done."""

    exit_code = 2


def model_of(
    settings: Settings, environment: Mapping[str, str], record: Path | None = None
) -> ProviderAdapter:
    """Return what asks the model that the settings name, and records it if told to.

    Raises:
        ConfigError: No model is named, or its key is missing.
        ModelError: The model is not known, or something for it is not installed.
    """
    name = settings["model"]
    if name is None:
        raise ConfigError(
            "No model is given; say --model openai:MODEL or set WINK_MODEL;"
            " without a key: wink demo"
        )
    try:
        adapter = _adapter(name, settings, environment)
    except AdapterError as error:
        raise ModelError(str(error)) from error
    if record is None:
        return adapter
    if record.exists():
        adapter.close()
        raise ConfigError(f"There is a file already: {str(record)!r}; give --record another name")
    return RecordingAdapter(adapter, record)


def dialect_of(settings: Settings, adapter: ProviderAdapter) -> DialectName:
    """Return the dialect that the settings name, or the one that the model knows best."""
    named = settings["dialect"]
    if named is None or named == AUTO:
        return dialect_for(f"{adapter.name}:{adapter.model}")
    return named


def _adapter(name: str, settings: Settings, environment: Mapping[str, str]) -> ProviderAdapter:
    provider, _, rest = name.partition(":")
    if provider == _SCRIPTED and rest:
        _check_script(settings)
        return scripted(Path(rest).expanduser())
    key = _key(settings["api_key_env"], environment)
    try:
        return adapter_for(name, api_key=key, base_url=settings["base_url"])
    except AuthenticationError as error:
        variable = KEY_VARIABLES.get(provider)
        if key is not None or variable is None or environment.get(variable):
            raise
        raise ConfigError(
            f"No key for {provider}; set {variable}, or name another variable with --api-key-env;"
            " without a key: wink demo"
        ) from error


def _check_script(settings: Settings) -> None:
    """Refuse to run commands that a stranger has written down."""
    if settings["sandbox"] == LOCAL_SANDBOX and settings.given["model"].is_foreign:
        raise ConfigError(
            f"{settings.given['model'].source}: a script that a workspace brings cannot run"
            " commands here; say --model yourself, or --sandbox none"
        )


def _key(variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(f"The environment has no {variable!r}; set it to the key of the model")
    return environment[variable]
