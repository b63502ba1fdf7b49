"""The process that parses source files; a hostile one may end it, and nothing else.

Tree-sitter takes quadratic time, and sometimes gigabytes, for input that looks like source code
and is none, and it cannot be interrupted. So it has a process of its own, which runs this script
with limits that the kernel enforces.
"""

import os
import resource
import signal
import sys
import types

MAX_MEMORY = 1024 * 1024 * 1024
"""Bytes of address space."""
MAX_SECONDS = 2.0
"""Seconds of processor time for one file; a real one takes a tenth of that."""

_PACKAGES = ("weakincentives", "weakincentives.contrib", "weakincentives.contrib.digest")


def main(root: str) -> None:
    """Answer requests until there are no more: a line with family and length, then the file.

    The answer is a line with its length, then the definitions in MessagePack.

    Args:
        root: The directory that contains this package.
    """
    for name in _PACKAGES:  # without running their `__init__`, which would import everything
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(root, *name.split("."))]  # noqa: PTH118 # pathlib takes long to import
        sys.modules[name] = package
    msgpack = __import__("msgspec").msgpack
    parser = __import__("weakincentives.contrib.digest.treesitter", fromlist=["outline_source"])
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    while header := requests.readline():
        family, _, length = header.decode().partition(" ")
        content = requests.read(int(length))
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)  # its signal ends the process
        found = msgpack.encode(parser.outline_source(content, family))
        signal.setitimer(signal.ITIMER_PROF, 0)
        responses.write(f"{len(found)}\n".encode() + found)
        responses.flush()


if __name__ == "__main__":
    del sys.path[0]  # this directory, whose modules would hide those of the standard library
    main(sys.argv[1])
