"""Server-sent events (SSE): the framing of streamed responses."""

from collections.abc import Iterable, Iterator

from weakincentives.adapters.http.lenient import ResponseError

MAX_EVENT = 8 * 1024 * 1024
"""Maximum bytes of one event."""
_FIELD = "data:"


def event_data(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of each event; comments, event names and ids are skipped.

    Args:
        pieces: The body of a response, split anywhere.

    Raises:
        ResponseError: An event is too long.
    """
    data: list[str] = []
    size = 0
    for line in _lines(pieces):
        if line.startswith(_FIELD):
            data.append(line.removeprefix(_FIELD).removeprefix(" "))
            size += len(line)
            _check_size(size)
        elif not line and data:
            yield "\n".join(data)
            data, size = [], 0
    if data:  # some servers omit the final blank line
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield lines, split at newlines only: JSON may contain other breaks, such as U+2028."""
    partial = bytearray()
    for piece in pieces:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            yield _decode_line(bytes(partial) + line)
            partial.clear()
        partial += rest
        _check_size(len(partial))
    yield _decode_line(bytes(partial))


def _check_size(size: int) -> None:
    if size > MAX_EVENT:
        raise ResponseError(f"an event in it is longer than {MAX_EVENT} bytes")


def _decode_line(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")
