"""The changes of a run as a diff, in words and as data: chosen, in conflict, committed, saved.

On a terminal a diff is coloured and paged, the changed words of a line are marked, and changed
whitespace is made visible. Elsewhere it is the patch itself.
"""

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from weakincentives.cli.run.action import ActionKind
from weakincentives.cli.terminal import echo, escape_controls, is_terminal, wants_colour
from weakincentives.cli.units import format_count, pick
from weakincentives.contrib.review import (
    Applied,
    Committed,
    Conflict,
    Hunk,
    Kept,
    Review,
    create_message,
    find_record,
)
from weakincentives.filesystem import Change, Diff
from weakincentives.filesystem.diff import Span, changed_words
from weakincentives.posix import display_path

_GIT = ".git"
_MAX_WITHHELD = 5
_MAX_COMPARED = 3
_MAX_NAMED = 20
_BOLD = (
    *("diff --git ", "--- ", "+++ ", "new file", "deleted file", "old mode", "new mode"),
    *("rename ", "similarity ", "# wink:"),
)
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_VISIBLE_SPACE = str.maketrans({" ": "·", "\t": "→\t"})
_MARK, _MARK_END = "\x1b[7m", "\x1b[27m"  # reverse video
_OBJECT_IDS = "index "
_BINARY = "GIT binary patch"
_BINARY_DATA = re.compile(r"[A-Za-z][0-9A-Za-z!#$%&()*+;<=>?@^_`{|}~-]*|(literal|delta) \d+|")
_PROMPT_LINES = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """The changes to apply: paths, all if None, and hunks of other files."""

    paths: tuple[str, ...] | None = None
    hunks: tuple[Hunk, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is chosen."""
        return self.paths is None or bool(self.paths or self.hunks)

    def without(self, changes: Sequence[Change], excluded: Sequence[str]) -> "Choice":
        """Return the chosen part of `changes` but for the excluded paths."""
        if not excluded:
            return self
        paths = exclude_paths([each for each in changes if self._has(each)], excluded)
        return Choice(paths, tuple(each for each in self.hunks if each.path not in excluded))

    def only(self, wanted: Sequence[str]) -> "Choice":
        """Return the part of a choice that is at these paths exactly."""
        paths = tuple(wanted) if self.paths is None else set(self.paths).intersection(wanted)
        return Choice(tuple(paths), tuple(each for each in self.hunks if each.path in wanted))

    def _has(self, change: Change) -> bool:
        if self.paths is None:
            return True
        return any(is_within(name, path) for name in names_of(change) for path in self.paths)


def exclude_paths(changes: Sequence[Change], excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the changed paths without the excluded ones, those below, and those above."""
    return tuple(
        sorted(
            path
            for each in changes
            if not any(is_within(one, name) for one in names_of(each) for name in excluded)
            for path in names_of(each)
            if not any(is_within(name, path) for name in excluded)
        )
    )


def is_within(path: str, place: str) -> bool:
    """Return whether a path is a place or below it; everything is below the empty one."""
    return not place or f"{path}/".startswith(f"{place}/")


def names_of(change: Change) -> tuple[str, ...]:
    """Return the path of a change, and the one that it was renamed from."""
    return (change.path,) if change.source is None else (change.path, change.source)


def describe_changes(review: Review, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return the changes of a review as data."""
    return {
        **describe_diff(review.diff),
        "conflicts": describe_conflicts(conflicts),
        "withheld": [change.path for change in review.withheld],
    }


def describe_kept_paths(kept: Sequence[Kept]) -> list[dict[str, str]]:
    """Return as data the paths that a rollback left alone."""
    return [pick(each, "path", "fact", "other") for each in kept]


def describe_applied(applied: Applied) -> str:
    """Return how many files were changed, added and removed; the removed ones by name."""
    files = [path for path in applied.paths if path not in set(applied.directories)]
    created, removed = set(applied.created), sorted(set(applied.removed).intersection(files))
    added = len(created.intersection(files))
    numbers = {"changed": len(files) - added - len(removed), "added": added}
    parts = [f"{format_count(number, 'file')} {kind}" for kind, number in numbers.items() if number]
    if removed:
        names = ", ".join(map(display_path, removed))
        parts.append(f"{format_count(len(removed), 'file')} removed ({names})")
    return ", ".join(parts) or format_count(len(applied.paths), "directory", "directories")


def describe_conflicts(conflicts: Sequence[Conflict]) -> list[dict[str, Any]]:
    """Return conflicts as data."""
    return [
        pick(each, "path", "in_copy", "in_original", "can_merge", "lines") for each in conflicts
    ]


def is_git_index(path: str) -> bool:
    """Return whether it is git's index, which even `git status` rewrites."""
    return path == f"{_GIT}/index" or path.endswith(f"/{_GIT}/index")


def withheld_lines(review: Review) -> Iterator[str]:
    """Yield what was changed but is not offered."""
    changes = [each for each in review.withheld if not is_git_index(each.path)]
    inside = [each for each in changes if _GIT in each.path.split("/")]
    others = [each for each in changes if each not in inside]
    if inside:
        yield f"Not offered: {format_count(len(inside), 'change')} inside {_GIT}"
    if others:
        names = ", ".join(map(str, others[:_MAX_WITHHELD]))
        more = " and more" if len(others) > _MAX_WITHHELD else ""
        yield f"Not offered: {names}{more}"


def comparison_lines(review: Review, conflicts: Sequence[Conflict]) -> Iterator[str]:
    """Yield commands that compare both versions of files that cannot be merged."""
    left = [each.path for each in conflicts if not each.can_merge]
    for path in left[:_MAX_COMPARED]:
        both = (str(root / path) for root in (review.copy.original, review.copy.root))
        yield f"  {shlex.join(['diff', '-u', *both])}  to compare"


def conflict_commands(
    review: Review, conflicts: Sequence[Conflict], kind: ActionKind
) -> dict[str, str]:
    """Return the options that can follow a conflict, and what each is for."""
    paths = [each.path for each in conflicts]
    left = [each.path for each in conflicts if not each.can_merge]
    verb = "commit" if kind == "commit" else "apply"
    commands: dict[str, str] = {}
    if len(left) < len(conflicts):
        but = f", without {format_count(len(left), 'path')} in conflict" if left else ""
        commands[f"--{verb} --merge{_skip_options(left)}"] = (
            f"to merge what was changed in different places{but}"
        )
    if paths and exclude_paths(review.diff.entries, paths):
        commands[f"--{verb}{_skip_options(paths)}"] = f"to {verb} the rest"
    commands["--patch FILE"] = "to save all changes as a patch"
    commands["--discard"] = "to remove the copy"
    return commands


def _skip_options(paths: Sequence[str]) -> str:
    return "".join(f" --skip {shlex.quote(path)}" for path in paths)


# --- commits ---


def commit_message(review: Review) -> str:
    """Return the message for the changes of a run: its task, and the answer of the model."""
    record = find_record(review.copy.place)
    if record is None:
        return create_message("Apply the changes of a run")
    return create_message(escape_controls(record.task), escape_controls(record.answer))


def describe_commit(made: Committed) -> dict[str, Any]:
    """Return a commit as data."""
    return {
        "commit": made.commit or None,
        "branch": made.branch or None,
        "not_committed": [
            {"path": path, "reason": reason} for path, reason in made.left_out.items()
        ],
    }


def commit_lines(made: Committed, *, is_new_branch: bool) -> Iterator[str]:
    """Yield what was committed and what was not, and what can be done with a new branch."""
    if made.commit:
        kind = "the new branch " if is_new_branch else ""
        where = f"on {kind}{made.branch}" if made.branch else "on no branch"
        yield f"Committed {format_count(len(made.paths), 'file')} {where} as {made.commit[:10]}."
    else:
        yield "Nothing was committed."
    for path, reason in list(made.left_out.items())[:_MAX_NAMED]:
        yield f"not committed: {display_path(path)} ({reason})"
    if len(made.left_out) > _MAX_NAMED:
        yield f"not committed: {len(made.left_out) - _MAX_NAMED} more"
    if made.hooks:
        yield f"Hooks of the repository were not run: {', '.join(made.hooks)}"
    if made.commit and is_new_branch:
        yield f"  git switch {shlex.quote(made.branch)}  to go there"
    if made.hooks:
        # the option leaves out what the user has staged
        there = ", there" if is_new_branch else ""
        yield f"  git commit --amend --only --no-edit  to run the hooks{there}"
    if made.commit and is_new_branch:
        yield f"  git branch -D {shlex.quote(made.branch)}  to remove it"


# --- patches ---


def write_patch(review: Review, patch: Path, choice: Choice) -> str:
    """Save changes as a patch; return the command that applies it from any directory.

    `git apply` silently skips a patch when it runs in a subdirectory of a repository.

    Raises:
        FileExistsError: The file exists.
        ValueError: A patch cannot express any of the changes.
    """
    if patch.exists():
        raise FileExistsError(f"File exists already: {str(patch)!r}; choose another name")
    saved = review.save_patch(patch, paths=choice.paths, hunks=choice.hunks)
    original = review.copy.original
    top = next((each for each in (original, *original.parents) if (each / _GIT).exists()), original)
    inside = shlex.quote(str(original.relative_to(top)))
    option = "" if top == original else f" --directory={inside}"
    return f"git -C {shlex.quote(str(top))} apply{option} {shlex.quote(str(saved))}"


def print_patch(review: Review, choice: Choice) -> None:
    """Print changes as a patch on standard output."""
    with tempfile.TemporaryDirectory(prefix="wink-") as directory:
        file = Path(directory) / "patch"
        data = review.save_patch(file, paths=choice.paths, hunks=choice.hunks).read_bytes()
    if is_terminal(sys.stdout):
        echo(data.decode("utf-8", "replace"), err=False, newline=False)
    else:
        sys.stdout.buffer.write(data)  # a patch is bytes
        sys.stdout.flush()


def omission_lines(review: Review) -> Iterator[str]:
    """Yield what a patch of all changes leaves out; nothing if it has everything."""
    omitted = [each for each in review.omissions() if not is_git_index(each.path)]
    if omitted:
        yield "The patch leaves out:"
    yield from (f"  {each}" for each in omitted[:_MAX_NAMED])
    if len(omitted) > _MAX_NAMED:
        yield f"  and {len(omitted) - _MAX_NAMED} more"


# --- the diff ---


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
