"""The process that parses source files; a hostile one may end it, and nothing else.

Tree-sitter takes quadratic time, and sometimes gigabytes, for input that looks like source code
and is none, and it cannot be interrupted. So it has a worker of its own, with limits that the
kernel enforces.
"""

import resource
import signal
import socket

import msgspec

from weakincentives.contrib.digest.definitions import MAX_FRAME
from weakincentives.contrib.digest.treesitter import outline_source
from weakincentives.posix.frames import receive_frame, send_frame

MAX_MEMORY = 1024 * 1024 * 1024
"""Bytes of address space."""
MAX_SECONDS = 2.0
"""Seconds of processor time for one file; a real one takes a tenth of that."""


def main() -> None:
    """Answer requests on standard input, a socket, until it is closed.

    A request is a line with the family of languages, then the file. The answer is the definitions
    in MessagePack.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=0) as connection:
        while request := receive_frame(connection, MAX_FRAME):
            family, _, content = request.partition(b"\n")
            signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # its signal ends the process
            found = msgspec.msgpack.encode(outline_source(content, family.decode()))
            signal.setitimer(signal.ITIMER_PROF, 0)
            send_frame(connection, found, MAX_FRAME)
