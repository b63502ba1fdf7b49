"""Lines of a stream: of bounded length, whoever sends them."""

from collections.abc import AsyncGenerator, AsyncIterable


async def read_lines(chunks: AsyncIterable[bytes], limit: int) -> AsyncGenerator[bytes, None]:
    """Yield lines without their end; of one longer than `limit`, only a little more than that."""
    line = bytearray()
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line += end
            yield bytes(line)
            line.clear()
        if len(line) <= limit:
            line += rest
    if line:
        yield bytes(line)
