"""The patch of a run: saved to a file or printed, and what it leaves out."""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from weakincentives.cli.run.changes import is_git_index
from weakincentives.cli.terminal import echo, is_terminal
from weakincentives.contrib.review import Review

_GIT = ".git"
_MAX_OMITTED = 20


def write_patch(review: Review, patch: Path, paths: Sequence[str] | None) -> str:
    """Save changes as a patch; return the command that applies it.

    Raises:
        FileExistsError: The file exists.
        ValueError: A patch cannot express any of the changes.
    """
    if patch.exists():
        raise FileExistsError(f"File exists already: {str(patch)!r}; choose another name")
    return patch_command(review.copy.original, review.save_patch(patch, paths=paths))


def print_patch(review: Review, paths: Sequence[str] | None) -> None:
    """Print changes as a patch on standard output."""
    with tempfile.TemporaryDirectory(prefix="wink-") as directory:
        data = review.save_patch(Path(directory) / "patch", paths=paths).read_bytes()
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
    yield from (f"  {each}" for each in omitted[:_MAX_OMITTED])
    if len(omitted) > _MAX_OMITTED:
        yield f"  and {len(omitted) - _MAX_OMITTED} more"


def patch_command(original: Path, patch: Path) -> str:
    """Return the command that applies a patch from any directory.

    `git apply` silently skips a patch when it runs in a subdirectory of a repository.
    """
    top = next((each for each in (original, *original.parents) if (each / _GIT).exists()), original)
    option = (
        "" if top == original else f" --directory={shlex.quote(str(original.relative_to(top)))}"
    )
    return f"git -C {shlex.quote(str(top))} apply{option} {shlex.quote(str(patch))}"
