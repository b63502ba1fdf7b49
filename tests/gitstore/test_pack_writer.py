"""Objects in packed form."""

import random
import zlib
from pathlib import Path

import pytest

from weakincentives import gitstore
from weakincentives.gitstore.pack_writer import deflate, deflate_stream
from weakincentives.posix.compression import PACK_CODEC, ZLIB, Codec

CODECS = list(dict.fromkeys((ZLIB, PACK_CODEC)))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 8192, 8193, 70_000])
def test_any_size_comes_back_and_nothing_follows_it(codec: Codec, size: int) -> None:
    data = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    cuts = [b"", *(data[at : at + 1000] for at in range(0, size, 1000)), b"", b""]
    for packed in (deflate(data, codec), b"".join(deflate_stream(cuts, codec))):
        unpacking = zlib.decompressobj()
        assert unpacking.decompress(packed) == data
        assert unpacking.eof
        assert unpacking.unused_data == b""


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("size", [1, 256, 5000, 70_000])
def test_damage_is_noticed(codec: Codec, size: int) -> None:
    packed = bytearray(deflate(bytes(size), codec))
    packed[-1] ^= 1
    with pytest.raises(zlib.error):
        zlib.decompress(packed)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_repeats_becomes_smaller(codec: Codec) -> None:
    for size in (1000, 100_000):
        assert len(deflate(b"spam" * size, codec)) < size
        assert sum(map(len, deflate_stream([b"spam" * size] * 2, codec))) < size


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_what_cannot_be_packed_becomes_hardly_larger(codec: Codec) -> None:
    for size in (1000, 100_000):
        data = random.Random(size).randbytes(size)
        assert len(deflate(data, codec)) < size * 1.02
        assert sum(map(len, deflate_stream([data, data], codec))) < 2 * size * 1.02


def test_a_pack_is_little_larger_than_git_makes_it() -> None:
    sources = [path.read_bytes() for path in sorted(Path(gitstore.__file__).parent.glob("*.py"))]
    ours = sum(len(deflate(each)) for each in sources)
    assert ours < 1.2 * sum(len(zlib.compress(each)) for each in sources)
