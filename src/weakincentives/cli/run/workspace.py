"""Directories of a run: the original, its working copy, and what a round finds changed in that.

The journal of the filesystem rolls back a file call that a kill interrupted. A command has no
known author: what differs may be its half-done work or a save of the user, so that it stays and
is named.
"""

import gc
import os
import shlex
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives.cli.run.view import View
from weakincentives.cli.runs import place_id
from weakincentives.cli.state import ConfigError, state_directory, state_exclusions
from weakincentives.cli.terminal import echo
from weakincentives.contrib.review import (
    ApplyInterruptedError,
    CopyError,
    WorkingCopy,
    open_copy,
    working_copy,
)
from weakincentives.filesystem import (
    FilesystemSnapshot,
    HostFilesystem,
    LimitExceededError,
    MountProgress,
    ReadableFilesystem,
    ReproducibleFiles,
    SourceFilesystem,
    diff,
    is_cache,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.posix import display_paths, parents_of


def resolve_workspace(path: Path, option: str = "--workspace") -> Path:
    """Return the absolute path of the workspace.

    Raises:
        ConfigError: It is not a directory, or it is inside the working copy of another run.
    """
    resolved = Path(os.path.realpath(path.expanduser()))
    if not resolved.is_dir():
        fact = "is not a directory" if resolved.exists() else "does not exist"
        raise ConfigError(f"The workspace {fact}: {str(path)!r}; pass a directory as {option}")
    for each in (resolved, *resolved.parents):
        try:
            other = open_copy(each)
        except (CopyError, OSError):
            continue
        raise ConfigError(
            f"The workspace is inside the working copy of another run: {str(path)!r};"
            f" resolve that run first with wink review {shlex.quote(place_id(other.place))}"
        )
    return resolved


def create_copy(
    original: Path,
    exclude: Sequence[str],
    place: Path,
    view: View,
    model: Future[Any] | None = None,
) -> WorkingCopy:
    """Create the working copy of a directory in `place`, and show the progress.

    It is given up as soon as the `model`, which is loaded meanwhile, cannot be used.

    Raises:
        ConfigError: The directory is too large, or the copy cannot be placed.
    """
    latest = MountProgress(0, 0, 0, 0)

    def update(progress: MountProgress) -> None:
        nonlocal latest
        latest = progress
        if model is not None and model.done():
            model.result()

    def describe() -> str:
        if not latest.total_files:
            return "copying"  # the plan is not ready
        return f"copying, {latest.done_files:,} of {latest.total_files:,} files"

    try:
        with view.show_activity(describe), _no_collection():
            globs = (*exclude, *state_exclusions(original))
            return working_copy(original, place=place, exclude=globs, progress=update)
    except LimitExceededError as error:
        fact = str(error).partition(";")[0]
        raise ConfigError(f"{fact}; exclude something with --exclude") from error
    except ApplyInterruptedError as error:
        raise ConfigError(str(error)) from error
    except CopyError as error:
        raise placement_error(error, original) from error


@contextmanager
def _no_collection() -> Generator[None]:
    """Keep the garbage collector from the objects of a block, which stay as long as the process."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def placement_error(error: CopyError, original: Path) -> ConfigError:
    """Return the error of a copy that cannot be in the state directory."""
    if Path(os.path.realpath(state_directory())).is_relative_to(original):
        return ConfigError(
            f"The directory {str(original)!r} is the state directory of wink, where copies are"
            " kept; work on another directory, or set XDG_STATE_HOME"
        )
    fact = str(error).partition(";")[0]
    return ConfigError(f"{fact}; set XDG_STATE_HOME to another directory")


@contextmanager
def name_copy_on_error(
    place: Path, kind: type[BaseException] = BaseException
) -> Generator[None, None, None]:
    """Print where the copy is if Ctrl-C, a signal or a bug ends the block."""
    try:
        yield
    except kind:
        if place.exists():
            with suppress(OSError):  # the terminal may be gone
                echo(f"The working copy is kept: wink review {shlex.quote(place_id(place))}")
        raise


@dataclass(frozen=True, slots=True)
class CopyState:
    """The copy when a round begins, and the paths that changed since the last one, sorted."""

    snapshot: FilesystemSnapshot
    edited: tuple[str, ...] = ()
    was_in_call: bool = False
    """Whether the run was killed during a call."""

    @property
    def author(self) -> str:
        """Who changed the paths, for the user."""
        return "by the interrupted call, or by you" if self.was_in_call else "by you"

    @property
    def note(self) -> str:
        """What the model is told; empty without changes."""
        if not self.edited:
            return ""
        fact = "The user changed these files since your last step:"
        if self.was_in_call:
            fact = "Your last call was interrupted; it or the user changed these files, which may"
            fact += " be half done:"
        return f"{fact} {display_paths(self.edited)}. Read them again before you rely on them."


def compare_copy(
    files: HostFilesystem,
    last: ReadableFilesystem,
    recorded: Iterable[str] | None = None,
    *,
    was_in_call: bool = False,
) -> CopyState:
    """Return the state of a copy, compared with an earlier one.

    `recorded` are the paths of a step; reproducible files that are not among them are left out.
    """
    snapshot = files.snapshot(tag="round began")
    now: ReadableFilesystem = files.view(snapshot)
    if recorded is not None:
        reproducible = ReproducibleFiles(files)
        for path in recorded:
            reproducible.keep(path)
        now = SourceFilesystem(now, reproducible)
    changes = diff(last, now, renames=False).entries
    return CopyState(snapshot, without_parents(each.path for each in changes), was_in_call)


def changed_paths(before: ReadableFilesystem, after: ReadableFilesystem) -> tuple[str, ...]:
    """Return what differs between two states of a copy, except for the output of tools."""
    found = (each.path for each in diff(before, after, renames=False).entries)
    return without_parents(each for each in found if not (is_tool_output(each) or is_cache(each)))


def without_parents(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths, sorted, without directories above others, which say nothing more."""
    found = set(paths)
    return tuple(sorted(found - {parent for each in found for parent in parents_of(each)}))
