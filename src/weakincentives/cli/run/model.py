"""The model of a run: a provider's adapter, or a script for runs without key and network.

A script is a JSON list of steps, or JSON lines with one step per line. A step is a text, a
tool call `{"name": ..., "arguments": {...}}`, a list of tool calls, or a `Completion` with its
`text`, `tool_calls` and `usage`. A recording made with `--record` is replayed in the same way.
"""

from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import click

from weakincentives.adapters import (
    AdapterError,
    AuthenticationError,
    Completion,
    ProviderAdapter,
    RecordingAdapter,
    RunOptions,
    ScriptedAdapter,
    ScriptError,
    ScriptStep,
    TokenPrice,
    ToolCall,
    create_adapter,
)
from weakincentives.adapters.recording import MAX_RECORDING_BYTES
from weakincentives.cli.config import AUTO, KEY_VARIABLES, LOCAL_SANDBOX, ConfigError, Settings
from weakincentives.contrib.tools.dialects import DialectName, dialect_for
from weakincentives.posix import read_regular
from weakincentives.serde import SerdeError, convert, decode


def load_script(path: Path) -> ScriptedAdapter:
    """Return an adapter that replays the script or recording at `path`.

    A recording is replayed whatever the requests are, so the task may differ.

    Raises:
        ScriptError: It is neither, or cannot be read.
    """
    try:
        # the user names the file, so a link is followed
        data = read_regular(path, MAX_RECORDING_BYTES, follow_links=True)
        steps = _split_steps(data.decode())
    except OSError as error:
        raise ScriptError(f"Script cannot be read: {error.strerror}: {str(path)!r}") from error
    except ValueError as error:
        raise ScriptError(f"Script cannot be read: {error}: {str(path)!r}") from error
    if steps and isinstance(steps[0], dict) and "adapter" in steps[0]:
        return ScriptedAdapter.from_recording(path, strict=False)
    return ScriptedAdapter(
        [_parse_step(each, number, path) for number, each in enumerate(steps, 1)]
    )


def _split_steps(text: str) -> list[Any]:
    try:
        document = decode(text, object)
    except SerdeError:
        return [decode(line, object) for line in text.splitlines() if line.strip()]
    return cast("list[Any]", document) if isinstance(document, list) else [document]


def _parse_step(step: Any, number: int, path: Path) -> ScriptStep:
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


class ModelError(click.ClickException):
    """The model cannot be used; nothing was done."""

    exit_code = 2


def create_model(
    settings: Settings, environment: Mapping[str, str], record: Path | None = None
) -> ProviderAdapter:
    """Return the adapter of the model in the settings; with `record`, one that records.

    Raises:
        ConfigError: No model is set, or its key is missing.
        ModelError: The model is unknown, or its extra is not installed.
    """
    name = _require_model(settings)
    try:
        adapter = _create_adapter(name, settings, environment)
    except AdapterError as error:
        raise ModelError(str(error)) from error
    prices: Mapping[str, TokenPrice] = settings["prices"] or {}
    adapter.price = prices.get(name, adapter.price)
    if record is None:
        return adapter
    if record.exists():
        adapter.close()
        raise ConfigError(f"File exists already: {str(record)!r}; choose another name for --record")
    return RecordingAdapter(adapter, record)


def _require_model(settings: Settings) -> str:
    name: str | None = settings["model"]
    if name is None:
        raise ConfigError(
            "No model is set; use --model openai:MODEL, set WINK_MODEL, or set the key of one"
            " provider; wink demo works without a key"
        )
    return name


@contextmanager
def load_model(
    settings: Settings,
    environment: Mapping[str, str],
    options: RunOptions,
    record: Path | None = None,
) -> Generator[Future[ProviderAdapter]]:
    """Create the adapter in a thread, because its SDK takes long to import; close it at the end.

    The future raises what `create_model` does, and `ModelError` if the provider lacks an option.

    Raises:
        ConfigError: No model is set.
    """
    _require_model(settings)  # before anything is copied

    def create() -> ProviderAdapter:
        adapter = create_model(settings, environment, record)
        try:
            adapter.check_options(options)
        except AdapterError as error:
            adapter.close()
            raise ModelError(str(error)) from error
        return adapter

    with ThreadPoolExecutor(1, "wink-model") as pool:
        made = pool.submit(create)
        try:
            yield made
        finally:
            if made.exception() is None:
                made.result().close()


def choose_dialect(settings: Settings, adapter: ProviderAdapter) -> DialectName:
    """Return the dialect in the settings, or the one that the model knows best."""
    named = settings["dialect"]
    if named is None or named == AUTO:
        return dialect_for(f"{adapter.name}:{adapter.model}")
    return named


def _create_adapter(
    name: str, settings: Settings, environment: Mapping[str, str]
) -> ProviderAdapter:
    provider, _, rest = name.partition(":")
    if provider == "scripted" and rest:
        _check_script(settings)
        return load_script(Path(rest).expanduser())
    key = _read_key(settings["api_key_env"], environment)
    try:
        return create_adapter(name, api_key=key, base_url=settings["base_url"])
    except AuthenticationError as error:
        variable = KEY_VARIABLES.get(provider)
        if key is not None or variable is None or environment.get(variable):
            raise
        raise ConfigError(
            f"No key for {provider}; set {variable}, or name another variable with --api-key-env;"
            " wink demo works without a key"
        ) from error


def _check_script(settings: Settings) -> None:
    """Raise if a script from a workspace would run commands that nothing isolates."""
    if settings["sandbox"] == LOCAL_SANDBOX and settings.given["model"].is_foreign:
        raise ConfigError(
            f"{settings.given['model'].source}: a workspace's script cannot run commands"
            " without isolation; choose it with --model, or use --sandbox auto"
        )


def _read_key(variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        raise ConfigError(f"The variable {variable!r} is not set; set it to the model's API key")
    return environment[variable]
