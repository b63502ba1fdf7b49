"""Bounded capture of a stream."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandbox.conftest import AnySandbox
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


@pytest.mark.parametrize("script", ["echo 'bwrap: x' >&2", "echo 'bwrap: x' >&2; echo y >&2"])
def test_a_listener_gets_all_output_even_if_it_looks_like_that_of_a_sandbox(
    any_sandbox: AnySandbox, script: str
) -> None:
    seen: list[bytes] = []
    done = any_sandbox.exec(["sh", "-c", script], on_output=lambda _, data: seen.append(data))
    assert b"".join(seen).decode() == done.stderr
    assert done.stderr.startswith("bwrap: x\n")


def test_a_listener_gets_nothing_of_a_program_that_is_missing(any_sandbox: AnySandbox) -> None:
    seen: list[bytes] = []
    done = any_sandbox.exec(["no-such-program"], on_output=lambda _, data: seen.append(data))
    assert (done.exit_code, seen) == (127, [])
