"""A diff for people: coloured, without bytes that nobody can read, in a pager if it is long."""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import click

from weakincentives.cli.terminal import is_terminal, plain, wants_colour
from weakincentives.filesystem import Diff

_HEAD = (
    "diff --git ",
    "--- ",
    "+++ ",
    "new file",
    "deleted file",
    "old mode",
    "new mode",
)
_MORE_HEAD = ("rename ", "similarity ", "# wink:")
_OBJECTS = "index "
_BINARY = "GIT binary patch"
_DATA = re.compile(r"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]*|(literal|delta) \d+|")
_PROMPT_LINES = 4


def show_diff(diff: Diff) -> None:
    """Print a diff on standard output: for people on a terminal, else the patch itself."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        return
    if not is_terminal(sys.stdout):
        stream = sys.stdout.buffer  # a patch is bytes
        for chunk in diff.patch_chunks():
            stream.write(chunk)
        stream.flush()
        return
    colour = wants_colour(sys.stdout)
    lines = (f"{_coloured(line)}\n" for line in _readable(_lines(diff.patch_chunks())))
    room = shutil.get_terminal_size().lines - _PROMPT_LINES
    first = list(islice(lines, room))
    if len(first) < room:
        click.echo("".join(first), nl=False, color=colour)
    else:
        # with None it is found out whether the pager shows colour
        click.echo_via_pager(chain(first, lines), color=None if colour else False)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a patch, as text that a terminal does not obey."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (plain(line.decode("utf-8", "replace")) for line in whole)
    if rest:
        yield plain(rest.decode("utf-8", "replace"))


def _readable(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what only git reads: the names of objects, and the data of binary files."""
    is_data = False
    for line in lines:
        if line.startswith(_OBJECTS) or (is_data and _DATA.fullmatch(line)):
            continue
        is_data = line == _BINARY
        yield "Binary file" if is_data else line


def _coloured(line: str) -> str:
    if line.startswith(_HEAD) or line.startswith(_MORE_HEAD):
        return click.style(line, bold=True)
    if line.startswith("@@"):
        return click.style(line, fg="cyan")
    look = {"+": "green", "-": "red"}.get(line[:1])
    return line if look is None else click.style(line, fg=look)
