"""Server-sent events: how providers send an answer piece by piece."""

from collections.abc import Iterable, Iterator

from weakincentives.adapters.http.lenient import AnswerError

MAX_EVENT = 8 * 1024 * 1024
"""How many bytes one event may have."""
_FIELD = "data:"


def event_data(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield what each event says; comments, names and ids of events are left out.

    Args:
        pieces: The body of a response, cut anywhere.

    Raises:
        AnswerError: An event is too long.
    """
    data: list[str] = []
    size = 0
    for line in _lines(pieces):
        if line.startswith(_FIELD):
            data.append(line.removeprefix(_FIELD).removeprefix(" "))
            size += len(line)
            _check(size)
        elif not line and data:
            yield "\n".join(data)
            data, size = [], 0
    if data:  # some servers do without the blank line at the end
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield lines that end at a newline: what JSON may hold, as U+2028, ends none."""
    begun = bytearray()
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield _text(bytes(begun) + line)
            begun.clear()
        begun += rest
        _check(len(begun))
    yield _text(bytes(begun))


def _check(size: int) -> None:
    if size > MAX_EVENT:
        raise AnswerError(f"an event in it is longer than {MAX_EVENT} bytes")


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")
