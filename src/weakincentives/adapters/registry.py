"""Models by name: `openai:gpt-5` is an adapter and what it asks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from weakincentives.adapters.base import ProviderAdapter
from weakincentives.adapters.errors import AdapterError
from weakincentives.adapters.recording.scripted import ScriptedAdapter

_SCRIPTED = "scripted"


class UnknownModelError(AdapterError, ValueError):
    """The name of a model does not say who runs it."""


class MissingExtraError(AdapterError, ImportError):
    """What an adapter needs is not installed."""


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """Where an adapter is, and what it needs.

    Its class takes the name of a model, and `api_key` and `base_url` by keyword.

    Args:
        module: Where it is.
        name: Its class.
        package: What it imports.
        extra: What installs that.
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


def create_adapter(
    model: str, *, api_key: str | None = None, base_url: str | None = None, **options: Any
) -> ProviderAdapter:
    """Return what asks a model.

    Args:
        model: Who runs it and what it is called, as `openai:gpt-5`; `scripted:talk.jsonl` plays
            back a recording.
        api_key: None is what the provider's own client finds in the environment.
        base_url: Where it is, if not where the provider has it.
        options: Other arguments of the adapter.

    Raises:
        UnknownModelError: The name does not begin with one of the prefixes that there are.
        MissingExtraError: What the adapter needs is not installed.
        ProviderError: There is no key, or one of the arguments cannot be.
        ScriptError: It is no recording.
        OSError: The recording cannot be read.
    """
    prefix, _, name = model.partition(":")
    if prefix not in (*PROVIDERS, _SCRIPTED) or not name:
        known = ", ".join(f"{each}:NAME" for each in PROVIDERS)
        raise UnknownModelError(f"A model is {known} or {_SCRIPTED}:PATH: {model!r}")
    if prefix == _SCRIPTED:
        return ScriptedAdapter.from_recording(name)
    return _loaded(prefix, PROVIDERS[prefix])(name, api_key=api_key, base_url=base_url, **options)


def _loaded(prefix: str, source: ProviderEntry) -> Callable[..., ProviderAdapter]:
    try:
        return getattr(import_module(source.module), source.name)
    except ModuleNotFoundError as error:
        # whatever comes with the extra may be what is missed first; of ours nothing is missing
        if (error.name or "").partition(".")[0] == "weakincentives":
            raise
        raise MissingExtraError(
            f"Models of {prefix} need an extra: pip install 'weakincentives[{source.extra}]'"
        ) from error
