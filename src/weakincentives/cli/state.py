"""The state directory: where runs and dumps are kept, the short ID of each run, and its lock.

It is `$XDG_STATE_HOME/wink`, by default `~/.local/state/wink`, and only its owner has access.
`runs/ID` has the working copy of a run. The ID is the beginning of the session's ID, so that one
name finds the copy, the dump and the steps.
"""

import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

import click

from weakincentives.cli.config import ConfigError
from weakincentives.cli.terminal import describe_error
from weakincentives.contrib.review.records import has_record
from weakincentives.posix import display_path, read_regular

LAST = "last"
"""The argument that names the newest run."""
_HISTORIES, _CALLS = "history", "calls"
_HISTORY_LENGTH = 32
_HISTORY_LOCK, _HISTORY_MARKER = "wink.users", "wink.json"  # of a snapshot store
_MAX_MARKER = 64 * 1024
_ID_LENGTH = 8
_NAME = re.compile(r"[0-9a-f]{8}(?:-\d+)?")  # of a run, which may have been killed at once
_MAX_PLACES = 1_000  # of one session
_OLD_PREFIX = "wink-run-"  # earlier versions kept copies in the temporary directory
_MAX_NAMES = 5
_LOCK_SECONDS = 0.5  # whoever looks whether a run goes on has the lock for a moment
_LOCK_INTERVAL = 0.02
_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}!,])")
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def state_directory() -> Path:
    """Return the state directory of the user, which need not exist."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return home / "wink"


def runs_directory() -> Path:
    """Return the directory of the working copies, which need not exist."""
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
    found = _own_directories(state_directory() / _HISTORIES)
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


def new_session_id() -> UUID:
    """Return a random ID whose beginning is not a number, which would be that of a step."""
    while True:
        found = uuid4()
        if not short_id(str(found)).isdecimal():
            return found


def short_id(session_id: str) -> str:
    """Return the beginning of a session's ID, which names its run."""
    return session_id[:_ID_LENGTH]


@contextmanager
def new_place(session_id: UUID) -> Generator[Path, None, None]:
    """Create the directory of a run and lock it; its name is the beginning of the session's ID.

    A session that has one already gets another, with a number.

    Raises:
        ConfigError: There is no state directory.
    """
    runs = create_directory("runs")
    name = short_id(str(session_id))
    for number in range(1, _MAX_PLACES):
        place = runs / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            place.mkdir(0o700)
            break
    else:
        raise ConfigError(f"There are too many copies of the run {name!r}; remove some of them")
    try:
        with exclusive_lock(place):
            yield place
    finally:
        with suppress(OSError):  # it is not empty: there is a working copy in it
            place.rmdir()


@contextmanager
def exclusive_lock(place: Path) -> Generator[None, None, None]:
    """Lock a working copy, so that half a run is neither applied nor removed.

    Raises:
        ClickException: Another process has the lock.
    """
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > end:
                raise click.ClickException(
                    f"The working copy is in use: {str(place)!r}; wait until the run has ended"
                )
            time.sleep(_LOCK_INTERVAL)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a process works in a working copy, or records a timeline, now."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def find_places() -> list[Path]:
    """Return the directories of the runs, unfinished ones and those of earlier versions too."""
    old = Path(tempfile.gettempdir())
    ours = (
        each
        for each in _own_directories(runs_directory())
        if _NAME.fullmatch(each.name) or has_record(each)
    )
    # anybody may use such a name there: only what has a record is a run
    earlier = (each for each in _own_directories(old, _OLD_PREFIX) if has_record(each))
    return sorted([*ours, *earlier])


def place_id(place: Path) -> str:
    """Return the short name of a run that `find_place` understands; its path if it has none."""
    if place.parent == runs_directory():
        return place.name
    if place.parent == Path(tempfile.gettempdir()) and place.name.startswith(_OLD_PREFIX):
        return place.name.removeprefix(_OLD_PREFIX)
    return str(place)


def find_place(argument: str) -> Path:
    """Return the directory of the run that an argument of the command line names.

    That is the directory itself, the ID of the run or its beginning, or `last`.

    Raises:
        ClickException: There is none, or several.
    """
    path = Path(argument).expanduser()
    if has_record(path) or "/" in argument:
        return path
    places = find_places()
    if argument == LAST and places:
        return max(places, key=_date)
    found = match_ids(argument, [place_id(each) for each in places])
    if len(found) == 1:
        return next(each for each in places if place_id(each) == found[0])
    if found:
        raise click.ClickException(describe_several("runs", argument, found))
    if argument and path.is_dir():
        return path
    raise click.ClickException(
        f"There is no run {argument!r}; wink review lists the runs, and completes their IDs"
    )


def match_ids(argument: str, names: Sequence[str]) -> list[str]:
    """Return the names that an argument may mean: the same one, or those that begin with it.

    A whole session ID means the run that is called by its beginning.
    """
    if argument in names:
        return [argument]
    if len(argument) == len(str(UUID(int=0))) and short_id(argument) in names:
        return [short_id(argument)]
    return sorted(each for each in names if argument and each.startswith(argument))


def describe_several(what: str, argument: str, found: Sequence[str]) -> str:
    """Return the error of an argument that means several names."""
    names = ", ".join(map(display_path, found[:_MAX_NAMES]))
    more = "" if len(found) <= _MAX_NAMES else " and more"
    return f"Several {what} begin with {argument!r}: {names}{more}; type more of it"


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_to_others(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"It belongs to another user: {str(path)!r}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o700)


def _own_directories(directory: Path, prefix: str = "") -> list[Path]:
    """Return the directories of this user; others may create some in the temporary directory."""
    found: list[Path] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        found.append(directory / entry.name)
    return found


def _date(place: Path) -> int:
    with suppress(OSError):
        return place.stat().st_mtime_ns
    return 0
