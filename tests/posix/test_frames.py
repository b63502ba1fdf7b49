"""Frames that arrive in pieces, from a side that is not trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.posix import FrameError, encode_frame
from weakincentives.posix.frames import split_frame
from weakincentives.sandbox.container.runner import encode_message, take_messages

LIMIT = 1000
MESSAGES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary()))


@given(MESSAGES, st.integers(1, 20))
def test_messages_are_the_same_however_they_are_cut(
    messages: list[tuple[int, int, bytes]], size: int
) -> None:
    stream = b"".join(encode_message(*each) for each in messages)
    received, found = bytearray(), list[tuple[int, int, bytes]]()
    for start in range(0, len(stream), size):
        received += stream[start : start + size]
        found += take_messages(received, LIMIT)
    assert (found, received) == (messages, b"")


@pytest.mark.parametrize("size", [0, LIMIT + 1, 2**32 - 1])
def test_a_frame_that_is_too_long_or_empty_is_refused_by_its_first_bytes(size: int) -> None:
    with pytest.raises(FrameError, match=f"{size} bytes, 1000 are allowed"):
        split_frame(size.to_bytes(4, "big"), LIMIT)


def test_a_message_without_a_number_and_a_kind_is_refused() -> None:
    with pytest.raises(FrameError, match="too short"):
        list(take_messages(bytearray(encode_frame(b"four")), LIMIT))
