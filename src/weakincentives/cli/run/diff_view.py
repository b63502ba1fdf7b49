"""The diff of a run: as data, coloured and paged on a terminal, elsewhere as the patch itself.

On a terminal the changed words of a line are marked, and changed whitespace is made visible.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import click

from weakincentives.cli.terminal import escape_controls, is_terminal, wants_colour
from weakincentives.cli.units import pick
from weakincentives.filesystem import Diff
from weakincentives.filesystem.diff import Span, changed_words
from weakincentives.posix import display_path

_BOLD = (
    "diff --git ",
    "--- ",
    "+++ ",
    "new file",
    "deleted file",
    "old mode",
    "new mode",
    "rename ",
    "similarity ",
    "# wink:",
)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_VISIBLE_SPACE = str.maketrans({" ": "·", "\t": "→\t"})
_MARK, _MARK_END = "\x1b[7m", "\x1b[27m"  # reverse video
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
                **pick(change, "path", "kind", "source"),
                **pick(count, "insertions", "deletions"),
                "binary": count.is_binary,
            }
            for change, count in zip(diff.entries, diff.line_counts, strict=True)
        ],
        **pick(numbers, "files_changed", "files_added", "files_removed", "files_renamed"),
        **pick(numbers, "insertions", "deletions"),
    }


def show_diff(diff: Diff, *, with_pager: bool = True) -> None:
    """Print a diff on standard output: coloured on a terminal, else as a patch.

    A long one goes through a pager, with the list of files above it.
    """
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        return
    if not is_terminal(sys.stdout):
        stream = sys.stdout.buffer  # a patch is bytes
        for chunk in diff.patch_chunks():
            stream.write(chunk)
        stream.flush()
        return
    colour = wants_colour(sys.stdout)
    lines = (f"{line}\n" for line in render_patch(diff.patch_chunks()))
    height = shutil.get_terminal_size().lines - _PROMPT_LINES
    first = list(islice(lines, height))
    if len(first) < height or not with_pager:
        click.echo("".join(chain(first, lines)), nl=False, color=colour)
    else:
        # None lets click find out whether the pager shows colour
        files = f"{escape_controls(str(diff))}\n\n"
        click.echo_via_pager(chain([files], first, lines), color=None if colour else False)


def render_patch(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the lines of a patch for a terminal: coloured, without what only git reads."""
    return _render(_drop_git_data(_split_lines(chunks)))


def show_hunk(path: str, content: bytes) -> None:
    """Print a hunk of a file on standard output, below the name of the file."""
    lines = (click.style(display_path(path), bold=True), *_render(_split_lines([content])))
    click.echo("\n".join(lines), color=wants_colour(sys.stdout))


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


def _render(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a patch with colours, marked words and visible changes of whitespace."""
    left = [0, 0]  # old and new lines that the hunk still has
    block = list[str](), list[str]()  # the removed lines, and those that follow them
    for line in lines:
        sign = line[:1]
        is_inside = max(left) > 0 or sign == "\\"
        if is_inside and sign in ("-", "+", "\\"):
            if sign == "-" and block[1]:
                yield from _render_block(*block)
                block = list[str](), list[str]()
            side = sign == "+" or (sign == "\\" and bool(block[1]))
            block[side].append(line)
            left[side] -= sign != "\\"
            continue
        yield from _render_block(*block)
        block = list[str](), list[str]()
        if is_inside:
            left = [each - 1 for each in left]
            yield line
        elif match := _HUNK.match(line):
            left = [1 if each is None else int(each) for each in match.groups()]
            yield click.style(line, fg="cyan")
        else:
            yield click.style(line, bold=True) if line.startswith(_BOLD) else line
    yield from _render_block(*block)


def _render_block(removed: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Yield removed and added lines, in which the words that differ are marked."""
    sides = (("red", removed), ("green", added))
    texts = [[each[1:] if each[0] in "-+" else None for each in lines] for _, lines in sides]
    for (colour, lines), found in zip(sides, changed_words(*texts), strict=True):
        for line, spans in zip(lines, found, strict=True):
            shown = line[:1] + _mark(line[1:], spans)
            yield click.style(shown, fg=colour) if line[0] in "-+" else line


def _mark(line: str, spans: Sequence[Span]) -> str:
    """Return a line with its changed texts reversed; one of only whitespace is made visible."""
    for start, stop in reversed(spans):
        text = line[start:stop]
        shown = text.translate(_VISIBLE_SPACE) if text.isspace() else text
        line = f"{line[:start]}{_MARK}{shown}{_MARK_END}{line[stop:]}"
    return line
