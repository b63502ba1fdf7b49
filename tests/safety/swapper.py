"""An attacker: swaps a directory, and a file, with links to outside as fast as it can.

Run as a program with the workspace as its argument; it works until its input closes,
then prints how often it swapped.
"""

import ctypes
import os
import select
import sys
from collections.abc import Sequence

PAIRS = (("d", "d-link"), ("f", "f-link"), ("deep/d", "deep/d-link"))

_EXCHANGE = 2
_BATCH = 50


def swap(
    directory: int, pairs: Sequence[tuple[bytes, bytes]], exchange: "ctypes._NamedFuncPointer"
) -> int:
    """Exchange the names of each pair; return how often that worked."""
    done = 0
    for _ in range(_BATCH):
        for first, second in pairs:
            done += exchange(directory, first, directory, second, _EXCHANGE) == 0
    return done


def main(workspace: str) -> None:
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    directory = os.open(workspace, os.O_RDONLY)
    pairs = [(first.encode(), second.encode()) for first, second in PAIRS]
    print("ready", flush=True)
    swaps = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        swaps += swap(directory, pairs, exchange)
    print(swaps, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
