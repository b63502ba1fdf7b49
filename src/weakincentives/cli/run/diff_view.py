"""The diff of a run: as data, coloured and paged on a terminal, elsewhere as the patch itself."""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import click

from weakincentives.cli.terminal import escape_controls, is_terminal, wants_colour
from weakincentives.filesystem import Diff
from weakincentives.posix import display_path

_HEAD = (
    "diff --git ",
    "--- ",
    "+++ ",
    "new file",
    "deleted file",
    "old mode",
    "new mode",
)
_EXTENDED_HEAD = ("rename ", "similarity ", "# wink:")
_OBJECT_IDS = "index "
_BINARY = "GIT binary patch"
_BINARY_DATA = re.compile(r"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]*|(literal|delta) \d+|")
_PROMPT_LINES = 4


def describe_diff(diff: Diff) -> dict[str, Any]:
    """Return the changed paths as data, and how many lines changed."""
    numbers = diff.statistics
    return {
        "changes": [
            {
                "path": change.path,
                "kind": change.kind,
                "source": change.source,
                "insertions": count.insertions,
                "deletions": count.deletions,
                "binary": count.is_binary,
            }
            for change, count in zip(diff.entries, diff.line_counts, strict=True)
        ],
        "files_changed": numbers.files_changed,
        "files_added": numbers.files_added,
        "files_removed": numbers.files_removed,
        "files_renamed": numbers.files_renamed,
        "insertions": numbers.insertions,
        "deletions": numbers.deletions,
    }


def show_diff(diff: Diff, *, with_pager: bool = True) -> None:
    """Print a diff on standard output: coloured on a terminal, else as a patch."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        return
    if not is_terminal(sys.stdout):
        stream = sys.stdout.buffer  # a patch is bytes
        for chunk in diff.patch_chunks():
            stream.write(chunk)
        stream.flush()
        return
    colour = wants_colour(sys.stdout)
    lines = (f"{_colour(line)}\n" for line in _drop_git_data(_split_lines(diff.patch_chunks())))
    height = shutil.get_terminal_size().lines - _PROMPT_LINES
    first = list(islice(lines, height))
    if len(first) < height or not with_pager:
        click.echo("".join(chain(first, lines)), nl=False, color=colour)
    else:
        # None lets click find out whether the pager shows colour
        click.echo_via_pager(chain(first, lines), color=None if colour else False)


def show_hunk(path: str, content: bytes) -> None:
    """Print a hunk of a file on standard output, below the name of the file."""
    lines = (display_path(path), *_split_lines([content]))
    styled = (click.style(lines[0], bold=True), *map(_colour, lines[1:]))
    click.echo("\n".join(styled), color=wants_colour(sys.stdout))


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a patch, with control characters escaped."""
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        yield from (escape_controls(line.decode("utf-8", "replace")) for line in complete)
    if rest:
        yield escape_controls(rest.decode("utf-8", "replace"))


def _drop_git_data(lines: Iterable[str]) -> Iterator[str]:
    """Drop what only git reads: object ids and the data of binary files."""
    is_data = False
    for line in lines:
        if line.startswith(_OBJECT_IDS) or (is_data and _BINARY_DATA.fullmatch(line)):
            continue
        is_data = line == _BINARY
        yield "Binary file" if is_data else line


def _colour(line: str) -> str:
    if line.startswith(_HEAD) or line.startswith(_EXTENDED_HEAD):
        return click.style(line, bold=True)
    if line.startswith("@@"):
        return click.style(line, fg="cyan")
    colour = {"+": "green", "-": "red"}.get(line[:1])
    return line if colour is None else click.style(line, fg=colour)
