"""Bounded text: what is kept of output that is too long.

This module is also used in the worker process, so it imports nothing.
"""


def clip(text: str, limit: int, *, dropped: int = 0) -> str:
    """Return at most `limit` characters of a text, with a note of how many are missing.

    Args:
        text: The text, or its beginning.
        limit: The number of characters, note included.
        dropped: Characters that followed `text` and were not kept.
    """
    if len(text) <= limit and not dropped:
        return text
    note = f"\n[{len(text) + dropped} characters in total, only the first are shown]"
    return (text[: max(limit - len(note), 0)] + note)[:limit]
