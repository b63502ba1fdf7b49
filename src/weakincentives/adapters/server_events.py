"""Server-sent events: how providers send an answer piece by piece."""

from collections.abc import Iterable, Iterator

_FIELD = "data:"


def event_data(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield what each event says; comments, names and ids of events are left out.

    Args:
        pieces: The body of a response, cut anywhere.
    """
    data: list[str] = []
    for line in _lines(pieces):
        if line.startswith(_FIELD):
            data.append(line.removeprefix(_FIELD).removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:  # some servers do without the blank line at the end
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield lines that end at a newline: what JSON may hold, as U+2028, ends none."""
    parts: list[bytes] = []
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield _text(b"".join((*parts, line)))
            parts = []
        parts.append(rest)
    yield _text(b"".join(parts))


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")
