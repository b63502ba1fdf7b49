import time

import pytest

from weakincentives.adapters import TransientError
from weakincentives.adapters.http.adapter import limit_pieces
from weakincentives.adapters.http.errors import Endpoint

ENDPOINT = Endpoint("someone", "m", "http://localhost", "the key")


def test_a_body_is_read_while_there_is_time():
    pieces = limit_pieces([b"a", b"b"], ENDPOINT, ends=time.monotonic() + 60, seconds=60)
    assert list(pieces) == [b"a", b"b"]


def test_a_body_that_keeps_arriving_is_given_up_when_the_time_is_over():
    pieces = limit_pieces([b"a", b"b"], ENDPOINT, ends=time.monotonic() - 1, seconds=60)
    with pytest.raises(TransientError, match="someone model 'm' did not answer within 60 s"):
        next(pieces)
