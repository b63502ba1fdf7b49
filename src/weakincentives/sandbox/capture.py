"""The beginning and the end of a stream, in memory that does not grow with it."""

from weakincentives.sandbox.results import Output


class Capture:
    """Takes a stream in and keeps no more than `limit` bytes of it."""

    def __init__(self, limit: int) -> None:
        """Keep up to `limit` bytes: half from the beginning, half from the end."""
        self._head_size = limit - limit // 2
        self._tail_size = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not self._tail_size:
            return
        self._tail += data[-self._tail_size :]
        # cutting off twice as much half as often costs nothing per byte
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def output(self) -> Output:
        """Return what was kept; no character is cut in two."""
        head, tail = bytes(self._head), bytes(self._tail[-self._tail_size :])
        if len(head) + len(tail) == self._total:
            return Output(head + tail)
        head, tail = _without_half_at_end(head), _without_half_at_start(tail)
        return Output(head, tail, self._total - len(head) - len(tail))


def _without_half_at_end(data: bytes) -> bytes:
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:  # begins a character of two, three or four bytes
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            return data
    return data


def _without_half_at_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
