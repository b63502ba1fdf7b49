"""Pieces of messages: texts made short, numbers of lines as people say them."""

from collections.abc import Sequence

_MAX_EXCERPT = 160
_MAX_LISTED = 10


def excerpt(text: str, limit: int = _MAX_EXCERPT) -> str:
    """Return a text as a literal; a long one without its middle."""
    if len(text) <= limit:
        return repr(text)
    half = limit // 2
    return f"{text[:half]!r}...{text[-half:]!r} ({len(text)} characters)"


def clip(line: str, limit: int = _MAX_EXCERPT, around: int = 0) -> str:
    """Return a line as it is; of a long one, the part around a position.

    Bytes that are not text are escaped: a message can be sent anywhere.
    """
    if len(line) <= limit:
        return line.encode("utf-8", "backslashreplace").decode("utf-8")
    start = max(0, min(around - limit // 2, len(line) - limit))
    before = "..." if start else ""
    after = "..." if start + limit < len(line) else ""
    return f"{before}{clip(line[start : start + limit])}{after}"


def format_line_numbers(numbers: Sequence[int], *, more: bool = False) -> str:
    """Return numbers of lines as words: `lines 3, 8 and 20`."""
    shown = [str(number) for number in dict.fromkeys(numbers)]
    if more or len(shown) > _MAX_LISTED:
        return f"lines {', '.join(shown[:_MAX_LISTED])} and others"
    if len(shown) == 1:
        return f"line {shown[0]}"
    return f"lines {', '.join(shown[:-1])} and {shown[-1]}"
