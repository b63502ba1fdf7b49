"""Bounded capture of a stream."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from weakincentives.sandbox import Output
from weakincentives.sandbox.output import OutputBuffer


def capture(chunks: list[bytes], limit: int) -> Output:
    buffer = OutputBuffer(limit)
    for chunk in chunks:
        buffer.feed(chunk)
    return buffer.output()


@given(st.lists(st.binary(max_size=40)), st.integers(0, 60))
def test_the_beginning_and_the_end_are_kept_and_the_rest_is_counted(
    chunks: list[bytes], limit: int
):
    whole = b"".join(chunks)
    kept = capture(chunks, limit)
    assert len(kept.data) + kept.dropped == len(whole)
    assert len(kept.data) <= limit
    assert whole.startswith(kept.head)
    assert whole.endswith(kept.tail)
    if len(whole) <= limit:
        assert kept == Output(whole)
    else:
        assert kept.truncated
        assert len(kept.data) >= limit - 6


@given(st.text(), st.integers(0, 40))
def test_no_character_is_cut_in_two(text: str, limit: int):
    kept = capture([text.encode(errors="replace")], limit)
    assert text.encode(errors="replace").decode().startswith(kept.head.decode())
    assert text.encode(errors="replace").decode().endswith(kept.tail.decode())


def test_the_text_says_how_much_was_left_out():
    assert capture([b"a" * 8, b"b" * 1_000_000, b"c" * 8], 16).text == (
        "aaaaaaaa\n[... 1,000,000 bytes left out ...]\ncccccccc"
    )
    assert capture([b"line\n" * 100], 10).text == "line\n[... 490 bytes left out ...]\nline\n"


def test_bytes_that_are_no_text_are_shown_as_what_they_are():
    assert Output(b"caf\xc3\xa9 \xff\x00").text == "café \\xff\x00"


def test_a_long_stream_takes_no_more_memory_than_its_limit():
    buffer = OutputBuffer(100_000)
    chunk = b"x" * 65_536
    tracemalloc.start()
    try:
        for _ in range(5_000):
            buffer.feed(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    assert buffer.output().dropped == 5_000 * 65_536 - 100_000
