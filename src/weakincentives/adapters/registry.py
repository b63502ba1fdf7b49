"""Provider registry: create an adapter from a model name such as `openai:gpt-5`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import AdapterError
from weakincentives.adapters.recording.scripted import ScriptedAdapter
from weakincentives.extras import describe_missing

_SCRIPTED = "scripted"


class UnknownModelError(AdapterError, ValueError):
    """The model name does not start with a known provider."""


class MissingExtraError(AdapterError, ImportError):
    """The adapter needs an extra that is not installed."""


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """The adapter class of a provider, and the extra that it needs.

    The class takes a model name, and the keywords `api_key` and `base_url`.

    Args:
        module: Module of the class.
        name: Name of the class.
        package: Package that the module imports.
        extra: Extra that installs this package.
    """

    module: str
    name: str
    package: str
    extra: str


PROVIDERS: Mapping[str, ProviderEntry] = {
    "anthropic": ProviderEntry(
        "weakincentives.adapters.anthropic",
        "AnthropicAdapter",
        package="anthropic",
        extra="anthropic",
    ),
    "claude-agent": ProviderEntry(
        "weakincentives.adapters.claude_code",
        "ClaudeAgentAdapter",
        package="claude_agent_sdk",
        extra="claude-agent-sdk",
    ),
    "litellm": ProviderEntry(
        "weakincentives.adapters.litellm", "LiteLLMAdapter", package="litellm", extra="litellm"
    ),
    "openai": ProviderEntry(
        "weakincentives.adapters.openai", "OpenAIAdapter", package="openai", extra="openai"
    ),
}
"""The known providers, by the prefix of their model names."""


def create_adapter(
    model: str, *, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> ProviderAdapter:
    """Return an adapter for a model.

    Args:
        model: Provider and model name, such as `openai:gpt-5`; `scripted:talk.jsonl` replays a
            recording.
        api_key: None lets the provider's client take it from the environment.
        base_url: URL of the API; None is the provider's own.
        options: More arguments of the adapter.

    Raises:
        UnknownModelError: The name does not start with a known provider.
        MissingExtraError: The adapter's extra is not installed.
        ProviderError: The key is missing, or an argument is invalid.
        ScriptError: The file is not a recording.
        OSError: The recording cannot be read.
    """
    prefix, _, name = model.partition(":")
    if prefix not in (*PROVIDERS, _SCRIPTED) or not name:
        known = ", ".join(f"{each}:NAME" for each in PROVIDERS)
        raise UnknownModelError(f"Model must be {known} or {_SCRIPTED}:PATH: {model!r}")
    if prefix == _SCRIPTED:
        return ScriptedAdapter.from_recording(name)
    create = _load_class(prefix, PROVIDERS[prefix])
    return create(name, api_key=api_key, base_url=base_url, **options)


def _load_class(prefix: str, entry: ProviderEntry) -> Callable[..., ProviderAdapter]:
    try:
        return getattr(import_module(entry.module), entry.name)
    except ModuleNotFoundError as error:
        # any package of the extra may be the first one missed; one of ours is a bug
        if (error.name or "").partition(".")[0] == "weakincentives":
            raise
        raise MissingExtraError(describe_missing(f"{prefix} models", entry.extra)) from error
