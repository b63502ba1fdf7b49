"""Where a run works and where it leaves things: the original, its copy, the dump."""

import fcntl
import os
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from weakincentives.cli.config import ConfigError
from weakincentives.cli.run.view import View
from weakincentives.cli.terminal import say
from weakincentives.contrib.review import (
    ApplyInterruptedError,
    CopyError,
    WorkingCopy,
    open_copy,
    working_copy,
)
from weakincentives.filesystem import LimitExceededError


def workspace_at(place: Path) -> Path:
    """Return the directory that a run is about.

    Raises:
        ConfigError: There is none, or it is the copy of another run.
    """
    found = Path(os.path.realpath(place.expanduser()))
    if not found.is_dir():
        fact = "is not a directory" if found.exists() else "does not exist"
        raise ConfigError(f"The workspace {fact}: {str(place)!r}; give --workspace a directory")
    for each in (found, *found.parents):
        try:
            other = open_copy(each)
        except (CopyError, OSError):
            continue
        raise ConfigError(
            f"The workspace is in the copy of another run: {str(place)!r};"
            f" wink review {other.place} decides about that one"
        )
    return found


def copy_of(original: Path, exclude: Sequence[str], view: View) -> WorkingCopy:
    """Return a copy of the directory to work in, and show how far it has come meanwhile.

    Raises:
        ConfigError: The directory is too large, or there is no place for the copy.
    """
    try:
        with view.copying() as progress:
            return working_copy(original, exclude=exclude, progress=progress)
    except LimitExceededError as error:
        fact = str(error).partition(";")[0]
        raise ConfigError(f"{fact}; leave something out with --exclude") from error
    except ApplyInterruptedError as error:
        raise ConfigError(str(error)) from error
    except CopyError as error:
        fact = str(error).partition(";")[0]
        raise ConfigError(f"{fact}; set TMPDIR to a directory elsewhere") from error


@contextmanager
def naming(place: Path, kind: type[BaseException] = BaseException) -> Generator[None, None, None]:
    """Say where the copy is if something ends the work in it: Ctrl-C, a signal, a bug."""
    try:
        yield
    except kind:
        if place.exists():
            with suppress(OSError):  # nobody is there to read it
                say(f"The copy is kept: wink review {shlex.quote(str(place))}")
        raise


@contextmanager
def exclusive_lock(place: Path) -> Generator[None, None, None]:
    """Work in a copy while nobody else does: half a run must not be applied, nor removed.

    Raises:
        ClickException: Somebody else works in it.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise click.ClickException(
            f"Somebody is at work in the copy: {str(place)!r}; wait until the run has ended"
        ) from error
    finally:
        os.close(descriptor)


def dump_place(given: str | None, environment: Mapping[str, str]) -> Path:
    """Return where dumps go: where the settings say, or with the other state of the user."""
    if given is not None:
        return Path(given).expanduser().absolute()
    state = environment.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return home / "wink" / "dumps"
