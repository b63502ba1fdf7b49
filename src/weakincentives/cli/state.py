"""The state directory, to which only its owner has access, and locks on what is in it.

It is `$XDG_STATE_HOME/wink`, by default `~/.local/state/wink`.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from weakincentives.cli.terminal import describe_error
from weakincentives.posix import display_path, is_locked, lock, open_directory, read_regular

T = TypeVar("T")

_HISTORIES, _CALLS = "history", "calls"
_HISTORY_LENGTH = 32
_HISTORY_LOCK, _HISTORY_MARKER = "wink.users", "wink.json"  # of a snapshot store
_MAX_MARKER = 64 * 1024
_LOCK_SECONDS = 0.5  # a look whether a run is running takes the lock for a moment
_LOCK_INTERVAL = 0.02
_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}!,])")


class ConfigError(click.UsageError):
    """A setting cannot be used; the message names its source."""


def parse_value(source: str, parse: Callable[[Any], T], value: object) -> T:
    """Return a value as `parse` reads it; `source` is the option, variable or key that has it.

    Raises:
        ConfigError: It is invalid.
    """
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{source} {error}") from error


def state_directory() -> Path:
    """Return the state directory of the user, which need not exist."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return home / "wink"


def runs_directory() -> Path:
    """Return the directory of the runs, which need not exist."""
    return state_directory() / "runs"


def create_directory(name: str) -> Path:
    """Create a directory in the state directory, to which only the owner has access.

    Raises:
        ConfigError: That is not possible, or it belongs to another user.
    """
    path = state_directory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for each in (path, path / name):
            each.mkdir(0o700, exist_ok=True)
            _close_to_others(each)
    except (OSError, RuntimeError) as error:  # Path.home raises RuntimeError
        raise ConfigError(
            f"The state directory cannot be used: {describe_error(error)};"
            " set XDG_STATE_HOME to a directory of yours"
        ) from error
    return path / name


def history_path(directory: Path) -> Path:
    """Return where the snapshots of a directory are kept that clients change in place."""
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:_HISTORY_LENGTH]
    return create_directory(_HISTORIES) / name


def calls_path(store: Path) -> Path:
    """Return where the calls are kept that changed a directory, given its snapshots."""
    return create_directory(_CALLS) / store.name


def list_histories() -> list[Path]:
    """Return the snapshot stores of directories that no process uses now."""
    found = own_directories(state_directory() / _HISTORIES)
    return sorted(each for each in found if not is_locked(each / _HISTORY_LOCK))


def describe_history(store: Path) -> str:
    """Return the directory whose snapshots are in a store."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return display_path(json.loads(read_regular(store / _HISTORY_MARKER, _MAX_MARKER))["root"])
    return store.name


def state_exclusions(original: Path) -> tuple[str, ...]:
    """Return the glob that keeps the state directory out of a copy of a directory around it."""
    path = Path(os.path.realpath(state_directory()))
    if not path.is_relative_to(original) or path == original:
        return ()
    inside = str(path.relative_to(original))
    return ("/" + _GLOB_CHARACTERS.sub(r"\\\1", inside),)


@contextmanager
def exclusive_lock(directory: Path) -> Generator[None, None, None]:
    """Lock the directory of a run, so that half a run is neither applied nor removed.

    Raises:
        ClickException: Another process has the lock.
    """
    with open_directory(directory) as descriptor:
        end = time.monotonic() + _LOCK_SECONDS
        while not lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > end:
                raise click.ClickException(
                    f"The run is in use: {str(directory)!r}; wait until it has ended"
                )
            time.sleep(_LOCK_INTERVAL)
        yield


def _close_to_others(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"It belongs to another user: {str(path)!r}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)


def own_directories(directory: Path, prefix: str = "") -> list[Path]:
    """Return the directories of this user; others may create some in the temporary directory."""
    found: list[Path] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        found.append(directory / entry.name)
    return found
