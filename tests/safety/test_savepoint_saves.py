"""A person who saves at any point of a savepoint loses nothing: every save can be found.

It is at its path, kept beside it, or was reported as what came out.
"""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.safety.savepoints import WORKS, Expected, Stage, laid_out
from tests.sizes import size
from weakincentives.filesystem import HostFilesystem, PathChange
from weakincentives.history import rollback
from weakincentives.posix import fault_hook

PATHS = ("file", "tree/one", "tree/sub/deep", "gone/a/file", "new/deep/file", "new/sub/deep")
Save: TypeAlias = Callable[[Path, bytes], None]


def _rename_over(path: Path, text: bytes) -> None:
    swap = path.with_name("swap")
    swap.write_bytes(text)
    swap.rename(path)


def _in_place(path: Path, text: bytes) -> None:
    if path.exists():
        path.write_bytes(text)


def _append(path: Path, text: bytes) -> None:
    if path.exists():
        with path.open("ab") as file:
            file.write(text)


SAVES: dict[str, Save] = {
    "rename over": _rename_over,
    "in place": _in_place,
    "append": _append,
}


def listener(store: Path) -> Callable[[Sequence[PathChange]], None]:
    """Store the content of every change that is reported."""

    def listen(changes: Sequence[PathChange]) -> None:
        with store.open("ab") as file:
            for change in changes:
                for opened in (change.open_before(), change.open_after()):
                    if opened is not None:
                        with os.fdopen(opened, "rb") as found:
                            file.write(found.read())

    return listen


def work_with(stage: Stage, name: str, hook: Callable[[str], None]) -> None:
    with stage.opened() as fs:
        fs.subscribe_changes(listener(stage.base / "reported"))
        with fault_hook(hook), suppress(OSError):
            WORKS[name](fs, stage)


def note_saves(stage: Stage) -> None:
    """Note which saves are on the disk now."""
    for path in PATHS:
        with suppress(OSError), (stage.base / "saved").open("ab") as file:
            file.write((stage.root / path).read_bytes())


def saving_at(index: int, stage: Stage, save: Save, *, dies: bool) -> Callable[[str], None]:
    """Save everything at one fault point, and with `dies` be killed right after it."""
    reached = 0

    def hook(_: str) -> None:
        nonlocal reached
        reached += 1
        if reached == index + 1:
            for number, path in enumerate(PATHS):
                with suppress(OSError):
                    save(stage.root / path, b"<save %d>" % number)
            note_saves(stage)  # of two names of one file, the last save counts
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def points_of(name: str, base: Path, save: Save) -> list[tuple[int, str]]:
    """Return the fault points of a work, numbered; in the short run each for one of the saves."""
    step = size(len(SAVES), 1)
    first = list(SAVES.values()).index(save) % step
    return list(enumerate(Expected.found(base, name).points))[first::step]


def find_lost(stage: Stage) -> list[bytes]:
    """Return the saves that are nowhere."""
    found = b"".join(
        path.read_bytes()
        for path in stage.root.rglob("*")
        if path.is_file() and ".wink-tmp-" not in str(path)
    )
    with suppress(FileNotFoundError):
        found += (stage.base / "reported").read_bytes()
    saved = (stage.base / "saved").read_bytes() if (stage.base / "saved").exists() else b""
    tokens = [b"<save %d>" % number for number in range(len(PATHS))]
    return [each for each in tokens if each in saved and each not in found]


@pytest.mark.slow
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("name", ["write", "changes", "taken back"])
def test_what_is_saved_at_any_point_is_found(light_directory: Path, name: str, save: Save) -> None:
    base = light_directory / "stage"
    for index, point in points_of(name, base, save):
        stage = laid_out(base, name)
        work_with(stage, name, saving_at(index, stage, save, dies=False))
        with stage.opened() as fs:
            fs.subscribe_changes(listener(stage.base / "reported"))
        assert find_lost(stage) == [], (index, point)


@pytest.mark.slow
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("name", ["write", "changes", "taken back"])
def test_what_is_saved_just_before_a_kill_is_found(
    light_directory: Path, name: str, save: Save
) -> None:
    base = light_directory / "stage"
    for index, point in points_of(name, base, save):
        stage = laid_out(base, name)
        child = os.fork()
        if child == 0:
            try:
                work_with(stage, name, saving_at(index, stage, save, dies=True))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        with stage.opened() as fs:
            fs.subscribe_changes(listener(stage.base / "reported"))
        assert find_lost(stage) == [], (index, point)


def test_a_save_is_lost_to_a_rollback_that_does_not_compare(
    light_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself is checked."""
    monkeypatch.setattr(rollback.Rollback, "_is_ours", lambda *_: True)
    monkeypatch.setattr(rollback, "resembles", lambda *_: True)
    stage = laid_out(light_directory / "stage", "write")
    with HostFilesystem(stage.root, git_dir=stage.base / "store") as fs:
        savepoint = fs.savepoint()
        fs.write("file", "new")
        saving_at(0, stage, _rename_over, dies=False)("")
        savepoint.rollback()
    assert find_lost(stage) == [b"<save 0>"]
