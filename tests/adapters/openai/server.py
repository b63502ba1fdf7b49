"""The server of the Chat Completions API, and the adapter for OpenAI that uses it."""

from typing import Any

from tests.adapters.chat_server import share_server
from weakincentives.adapters.openai import OpenAIAdapter

KEY = "sk-secret"


def _create(url: str, **given: Any) -> OpenAIAdapter:
    return OpenAIAdapter("gpt-test", api_key=KEY, base_url=url, **given)


asked = share_server(_create)
