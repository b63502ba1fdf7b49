"""Work in savepoints that must be atomic despite faults and kills."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.filesystem.trees_on_disk import State, difference, state_of
from tests.safety.places import temporary_names
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.posix import RESERVED_PREFIX, fault_hook


@dataclass
class Stage:
    """A workspace with its store; `kept` is what it was before somebody spoiled it."""

    base: Path
    kept: list[FilesystemSnapshot] = field(default_factory=list[FilesystemSnapshot])

    @property
    def root(self) -> Path:
        return self.base / "root"

    def opened(self) -> HostFilesystem:
        return HostFilesystem(self.root, git_dir=self.base / "store")


_HIDDEN = os.fsencode(RESERVED_PREFIX)

Work = Callable[[HostFilesystem, Stage], object]


def _write(fs: HostFilesystem, stage: Stage) -> None:
    with fs.savepoint():
        fs.write("file", "new")


def _change(fs: HostFilesystem) -> None:
    fs.write("file", "new")
    fs.write("file", "newer", mode="append")
    fs.write("new/deep/file", "new")
    fs.move("tree/sub", "new/sub")
    fs.write("new/sub/deep", "changed after the move")
    fs.delete("new/sub/other")
    fs.delete("gone", recursive=True)
    fs.write("gone", "a file where a directory was")
    fs.move("file", "tree/one", overwrite=True)
    fs.copy("tree", "copied")
    fs.delete("tree/link")
    fs.mkdir("file/below")
    fs.move("copied", "far/away/copied")


def _changes(fs: HostFilesystem, stage: Stage) -> None:
    with fs.savepoint():
        _change(fs)


def _nested(fs: HostFilesystem, stage: Stage) -> None:
    with fs.savepoint():
        fs.write("tree/sub/deep", "outer")
        inner = fs.savepoint()
        _change(fs)
        inner.rollback()
        with fs.savepoint():
            fs.delete("tree", recursive=True)
        fs.move("gone", "tree")
        fs.write("tree/a/file", "changed after the move")


def _taken_back(fs: HostFilesystem, stage: Stage) -> None:
    with suppress(ZeroDivisionError), fs.savepoint():
        with fs.savepoint():
            _change(fs)
        fs.delete("new", recursive=True)
        raise ZeroDivisionError


def _restored(fs: HostFilesystem, stage: Stage) -> None:
    with fs.savepoint():
        fs.write("file", "new")
        fs.restore(stage.kept[0])
        fs.write("new", "after the restore")


def _restored_and_taken_back(fs: HostFilesystem, stage: Stage) -> None:
    with suppress(ZeroDivisionError), fs.savepoint():
        fs.delete("gone", recursive=True)
        fs.restore(stage.kept[0])
        fs.write("new", "after the restore")
        raise ZeroDivisionError


WORKS: dict[str, Work] = {
    "write": _write,
    "changes": _changes,
    "nested": _nested,
    "taken back": _taken_back,
    "restored": _restored,
    "restored and taken back": _restored_and_taken_back,
}
HISTORY = {"restored", "restored and taken back"}


def laid_out(base: Path, name: str) -> Stage:
    """Lay out what the work of this name needs, in a directory that is emptied before."""
    shutil.rmtree(base, ignore_errors=True)
    stage = Stage(base)
    for path in ("tree/sub", "gone/a"):
        (stage.root / path).mkdir(parents=True)
    for path in ("file", "tree/one", "tree/sub/deep", "tree/sub/other", "gone/a/file"):
        (stage.root / path).write_text(f"old {path}")
    (stage.root / "tree" / "sub" / "other").chmod(0o600)
    (stage.root / "tree" / "link").symlink_to("one")
    if name in HISTORY:
        with stage.opened() as fs:
            stage.kept.append(fs.snapshot())
            fs.delete("tree/sub", recursive=True)
            fs.write("file", "spoiled")
    return stage


@dataclass(frozen=True)
class Expected:
    """What is there before and after the work, and which points it passes."""

    before: State
    after: State
    points: list[str]

    @classmethod
    def found(cls, base: Path, name: str) -> "Expected":
        """Find out, by doing the work undisturbed."""
        stage = laid_out(base, name)
        before = state_of(stage.root)
        points: list[str] = []
        with stage.opened() as fs, fault_hook(points.append):
            WORKS[name](fs, stage)
        assert temporary_names(stage.root) == []
        return cls(before, state_of(stage.root), points)

    def is_kept_at(self, index: int) -> bool:
        """Return whether the work has happened if it ends at the point of this number."""
        ends = [number for number, point in enumerate(self.points) if point == "journal.ended"]
        return bool(ends) and index >= ends[-1]

    def check(self, root: Path, *, kept: bool | None = None) -> str:
        """Return what is there now; it must be one of the two, the one if `kept` is told."""
        found = {path: entry for path, entry in state_of(root).items() if _HIDDEN not in path}
        wanted = {None: [self.before, self.after], True: [self.after], False: [self.before]}[kept]
        assert found in wanted, difference(found, wanted[0])
        return "before" if found == self.before else "after"


def check_works(stage: Stage) -> None:
    """Check that the next one can go on, and that nothing hidden is left."""
    with stage.opened() as fs:
        assert temporary_names(stage.root) == []
        with fs.savepoint():
            fs.write("probe", "works")
        fs.delete("probe")
