"""The context windows of known models, in tokens."""

import re
from collections.abc import Sequence

# the first that matches; what a model takes as input, where that is less than its window
_WINDOWS: Sequence[tuple[str, int]] = (
    (r"claude.*\[1m\]", 1_000_000),
    (r"claude", 200_000),
    (r"gpt-4\.1", 1_047_576),
    (r"gpt-5.*chat", 128_000),
    (r"gpt-5|codex", 272_000),
    (r"gpt-4o|gpt-4-turbo|chatgpt-4o", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4", 8_192),
    (r"gpt-3\.5", 16_385),
    (r"gpt-oss", 131_072),
    (r"(^|/)o[134](-|$)", 200_000),
    (r"gemini", 1_048_576),
    (r"deepseek", 128_000),
    (r"mistral-large|mistral-medium|devstral|codestral", 128_000),
    (r"qwen3-coder", 262_144),
    (r"grok-4", 256_000),
    (r"kimi-k2", 128_000),
)
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), tokens) for pattern, tokens in _WINDOWS]


def find_context_window(model: str) -> int | None:
    """Return the tokens that a model takes in one request; None if they are not known.

    Args:
        model: The name of the model, with or without that of its provider.
    """
    return next((tokens for pattern, tokens in _PATTERNS if pattern.search(model)), None)
