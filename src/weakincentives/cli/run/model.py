"""Scripts: a model's part written down in a file, for runs without a key and a network.

A script is a JSON list of steps, or a file with one step in each line. A step is a text, a
call `{"name": ..., "arguments": {...}}`, a list of calls, or a `Completion` with its `text`,
`tool_calls` and `usage`. What `--record` has recorded is played back just so.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import click

from weakincentives.adapters import (
    AdapterError,
    AuthenticationError,
    Completion,
    ProviderAdapter,
    RecordingAdapter,
    ScriptedAdapter,
    ScriptError,
    ScriptStep,
    ToolCall,
    create_adapter,
)
from weakincentives.adapters.recording import MAX_RECORDING_BYTES
from weakincentives.cli.config import AUTO, KEY_VARIABLES, LOCAL_SANDBOX, ConfigError, Settings
from weakincentives.contrib.tools.dialects import DialectName, dialect_for
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, convert


def load_script(path: Path) -> ScriptedAdapter:
    """Return what plays the script or the recording at `path`.

    A recording is played whatever is asked: the task may be another one.

    Raises:
        ScriptError: It is neither, or cannot be read.
    """
    try:
        # the person names the file, so a link to it will do
        data = read_regular(path, MAX_RECORDING_BYTES, follow_links=True)
        steps = _steps(data.decode())
    except OSError as error:
        raise ScriptError(f"The script cannot be read: {error.strerror}: {str(path)!r}") from error
    except ValueError as error:
        raise ScriptError(f"The script is not JSON: {error}: {str(path)!r}") from error
    if steps and isinstance(steps[0], dict) and "adapter" in steps[0]:
        return ScriptedAdapter.from_recording(path, strict=False)
    return ScriptedAdapter([_step(each, number, path) for number, each in enumerate(steps, 1)])


def _steps(text: str) -> list[Any]:
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return cast("list[Any]", whole) if isinstance(whole, list) else [whole]


def _step(step: Any, number: int, path: Path) -> ScriptStep:
    try:
        if isinstance(step, str):
            return step
        if isinstance(step, list):
            return [convert(each, ToolCall) for each in cast("list[object]", step)]
        if isinstance(step, dict) and "name" in step:
            return convert(cast("object", step), ToolCall)
        return convert(cast("object", step), Completion)
    except SerdeError as error:
        raise ScriptError(f"Step {number} of the script: {error}: {str(path)!r}") from error


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
        return load_script(Path(rest).expanduser())
    key = _key(settings["api_key_env"], environment)
    try:
        return create_adapter(name, api_key=key, base_url=settings["base_url"])
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
