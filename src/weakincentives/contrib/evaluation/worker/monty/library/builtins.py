"""Functions that take the place of some that Monty has, where those cannot do everything."""

import re
import sys
from typing import Any


def sorted_paths(iterable: Any, *, key: Any = None, reverse: bool = False) -> list[Any]:
    """Return `sorted(...)`, also of paths, which Monty cannot compare."""
    items = list(iterable)
    if key is None and items and type(items[0]).__name__ == "PosixPath":
        return sorted(items, key=str, reverse=reverse)
    return sorted(items, key=key, reverse=reverse)


def print_to(*values: Any, file: Any, sep: str = " ", end: str = "\n", flush: bool = False) -> None:  # noqa: ARG001 # as `print`
    """Print, also to a file."""
    if file is None or file is sys.stdout:
        print(*values, sep=sep, end=end)
    elif file is sys.stderr:
        print(*values, sep=sep, end=end, file=sys.stderr)
    else:
        file.write(sep.join([str(each) for each in values]) + end)


def re_sub(pattern: Any, repl: Any, string: str, count: int = 0, flags: Any = 0) -> str:
    """Return `re.sub(...)`, also with a function."""
    return re_subn(pattern, repl, string, count, flags)[0]


def re_subn(
    pattern: Any, repl: Any, string: str, count: int = 0, flags: Any = 0
) -> tuple[str, int]:
    """Return `re.subn(...)`, also with a function."""
    found = list(re.finditer(pattern, string, flags))
    found = found[:count] if count else found
    if isinstance(repl, str):
        return re.sub(pattern, repl, string, count=count, flags=flags), len(found)
    parts: list[str] = []
    position = 0
    for match in found:
        parts += [string[position : match.start()], repl(match)]
        position = match.end()
    return "".join([*parts, string[position:]]), len(found)
