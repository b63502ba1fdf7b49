"""Evidence: where a save is after a round, and what is wrong with the files."""

import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.safety.person.project import (
    MODES,
    hidden,
    hidden_names,
    is_half,
    is_whole,
    visible,
)
from tests.safety.person.saves import Person, Save


def find_save(root: Path, save: Save, stored: Callable[[], Iterable[bytes]]) -> str:
    """Return where a save is: at its path, elsewhere, in a history, or nowhere.

    `stored` returns what the history has. Of permissions and attributes that are at no path it is
    known only that they changed, until one tries to get them back.
    """
    if save.is_at(root / save.path):
        return "there"
    if any(save.is_at(root / path) for path in visible(root)):
        return "elsewhere"
    if not save.token:
        return "changed"
    if any(save.token in data for data in stored()):
        return "in history"
    return "hidden" if any(save.token in data for data in hidden(root).values()) else "lost"


def find_problems(person: Person) -> Iterator[str]:
    """Find files that are mixes, modes that nobody has set, and what is left over."""
    modes = {each.permissions for each in person.saves} | MODES
    for path, data in visible(person.root).items():
        if path.endswith("~") or ".draft-" in path:
            continue
        content = data.decode(errors="replace")
        # the person had written half of it when a state was kept
        if not is_whole(content) and not is_half(content):
            yield f"mixed: {path}: {content!r}"
        mode = stat.S_IMODE((person.root / path).stat().st_mode)
        if mode not in modes:
            yield f"mixed mode: {path}: {mode:o}"
    names = hidden_names(person.root)
    if names:
        yield f"left over: {names}"


def snapshot_contents(place: Path) -> Iterator[bytes]:
    """Return the content of every object that a store of snapshots names."""
    git = shutil.which("git")
    assert git is not None
    for head in place.rglob("HEAD"):
        folder = head.parent
        if not (folder / "objects").is_dir() or folder.name == ".git":
            continue
        program = [git, f"--git-dir={folder}"]
        names = [*program, "rev-list", "--all", "--objects", "--no-object-names"]
        listed = subprocess.run(names, check=False, capture_output=True).stdout
        read = [*program, "cat-file", "--batch"]
        yield subprocess.run(read, input=listed, check=False, capture_output=True).stdout
