"""Objects in packed form."""

import random
import zlib

import pytest

from weakincentives.filesystem.store.deflating import deflated


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 8192, 8193, 70_000])
def test_any_size_comes_back_and_nothing_follows_it(size: int) -> None:
    data = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    unpacking = zlib.decompressobj()
    assert unpacking.decompress(deflated(data)) == data
    assert unpacking.eof
    assert unpacking.unused_data == b""


@pytest.mark.parametrize("size", [1, 256, 5000, 70_000])
def test_damage_is_noticed(size: int) -> None:
    packed = bytearray(deflated(bytes(size)))
    packed[-1] ^= 1
    with pytest.raises(zlib.error):
        zlib.decompress(packed)


def test_what_repeats_becomes_smaller() -> None:
    for size in (1000, 100_000):
        assert len(deflated(b"spam" * size)) < size
