"""Power loss: everything is synced in the documented order.

The steps that matter are recorded. Losing power after any of them must leave the old
state, or an intent that is on the disk together with all that is needed to finish it.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.safety.history import OPERATIONS, Stage
from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.host.journal import rollback
from weakincentives.posix.tempnames import RESERVED_PREFIX

INTENT = "wink-intent"
LOG = "wink-log"
Kind = Literal["content", "name", "mode", "sync", "sync all"]


class Step(NamedTuple):
    """Something was written, named or brought to the disk; `path` is the file or directory."""

    kind: Kind
    path: str
    name: str = ""

    @property
    def is_hidden(self) -> bool:
        """Whether nobody sees it."""
        return RESERVED_PREFIX in f"{self.path}/{self.name}"


@dataclass
class Recorder:
    """The steps in their order; two of them are those of the intent."""

    steps: list[Step] = field(default_factory=list[Step])
    decided: int = -1
    cleared: int = -1

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Record what is done from now on."""
        for name in ("rename", "unlink", "rmdir", "mkdir", "symlink"):
            patch.setattr(os, name, self._naming(getattr(os, name)))
        patch.setattr(os, "chmod", self._changing_mode(os.chmod))
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._syncing("sync", getattr(os, name)))
        patch.setattr(os, "write", self._writing(os.write))
        patch.setattr(os, "pwrite", self._writing(os.pwrite))
        syncing = self._syncing("sync all", rollback.sync_filesystem)
        patch.setattr(rollback, "sync_filesystem", syncing)

    def _naming(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: str | int | Path, **options: int) -> None:
            function(*arguments, **options)
            names = [Path(os.fsdecode(each)) for each in arguments if not isinstance(each, int)]
            places = list(options) or [""]
            if len(names) != len(places):
                del names[0]  # what a symbolic link points to, or where a file was
            for name, place in zip(names, places, strict=True):
                target = path_of(options[place]) / name if place else name
                self.steps.append(Step("name", str(target.parent), target.name))

        return call

    def _changing_mode(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(path: str | Path, mode: int, **options: bool) -> None:
            self.steps.append(Step("mode", os.path.realpath(path)))
            function(path, mode, **options)

        return call

    def _syncing(self, kind: Kind, function: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            function(descriptor)
            self.steps.append(Step(kind, str(path_of(descriptor))))

        return call

    def _writing(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, data: bytes, *offset: int) -> int:
            path = path_of(descriptor)
            if path.name == INTENT:
                if b"{" in bytes(data):
                    self.decided = len(self.steps)
                else:
                    self.cleared = len(self.steps)
            self.steps.append(Step("content", str(path)))
            return function(descriptor, data, *offset)

        return call

    def unsynced(self, within: Path, first: int, last: int) -> list[Step]:
        """Return what was done in these steps below `within` and not brought to the disk."""
        left: list[Step] = []
        for step in self.steps[first:last]:
            if step.kind == "sync all" and Path(step.path).is_relative_to(within):
                left = []
            elif step.kind == "sync":
                left = [each for each in left if each.path != step.path]
            elif Path(step.path).is_relative_to(within):
                left.append(step)
        return left


def path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def change_one_thing(fs: HostFilesystem, stage: Stage) -> None:
    """Go from the state two to one that differs in little."""
    kept = fs.snapshot()
    for path in ("d/f3", "same"):
        (stage.root / path).write_bytes(b"something else")
    (stage.root / "new" / "more").write_bytes(b"more")
    fs.restore(kept)


CHANGES = {
    "restore": OPERATIONS["restore"],
    "import": OPERATIONS["import"],
    "restore of little": change_one_thing,
}


@pytest.fixture(params=CHANGES)
def recorded(
    request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Recorder, Stage]:
    """What a change did."""
    stage, recorder = Stage(directory), Recorder()
    with stage.opened() as fs, monkeypatch.context() as patch:
        recorder.install(patch)
        CHANGES[request.param](fs, stage)
    assert 0 < recorder.decided < recorder.cleared
    return recorder, stage


def test_new_content_is_on_the_disk_before_it_is_decided(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    staged = [step for step in recorder.steps[: recorder.decided] if step.kind == "content"]
    assert any(Path(step.path).is_relative_to(stage.root) for step in staged)
    left = recorder.unsynced(stage.root, 0, recorder.decided)
    assert [step for step in left if step.kind == "content"] == []


def test_nothing_is_changed_before_the_decision_is_on_the_disk(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    intent = Step("sync", str(stage.store / INTENT))
    synced = recorder.steps.index(intent, recorder.decided)
    early = [
        step
        for step in recorder.steps[:synced]
        if step.kind != "content" and Path(step.path).is_relative_to(stage.root)
    ]
    assert [step for step in early if not step.is_hidden and not step.kind.startswith("sync")] == []
    late = recorder.steps[synced : recorder.cleared]
    assert any(step.kind == "name" and not step.is_hidden for step in late)


def test_what_is_rolled_to_is_on_the_disk_before_it_is_decided(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    log = Step("sync", str(stage.store / LOG))
    logged = recorder.steps.index(log) if log in recorder.steps else recorder.decided
    # what is in the log is on the disk before it gets its names; all else is synced itself
    left = recorder.unsynced(stage.store, 0, logged)
    # the main branch only follows
    urgent = [step for step in left if step.kind == "name" and step.name != "main"]
    assert [step for step in urgent if not step.is_hidden] == []
    left = recorder.unsynced(stage.store / LOG, 0, recorder.decided)
    assert left == []
    packs = [step for step in recorder.steps if step.path.endswith("objects/pack")]
    assert any(step.kind == "name" and step.name.endswith(".pack") for step in packs)


def test_everything_is_on_the_disk_before_it_is_called_finished(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    left = recorder.unsynced(stage.root, recorder.decided, recorder.cleared)
    assert [step for step in left if not step.is_hidden] == []
    assert Step("sync", str(stage.store / INTENT)) in recorder.steps[recorder.cleared :]


def test_nothing_is_waited_for_but_what_was_written(recorded: tuple[Recorder, Stage]) -> None:
    recorder, stage = recorded
    assert [step for step in recorder.steps if step.kind == "sync all"] == []
    synced = {step.path for step in recorder.steps if step.kind == "sync"}
    assert [path for path in synced if not Path(path).is_relative_to(stage.directory)] == []


def test_many_files_are_on_the_disk_before_they_are_decided(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are open at the same time."""
    stage, recorder = Stage(directory), Recorder()
    for number in range(600):
        (stage.root / f"many{number}").write_text(str(number))
    with stage.opened() as fs:
        kept = fs.snapshot()
        for number in range(600):
            (stage.root / f"many{number}").unlink()
        with monkeypatch.context() as patch:
            recorder.install(patch)
            fs.restore(kept)
    assert [
        s for s in recorder.unsynced(stage.root, 0, recorder.decided) if s.kind == "content"
    ] == []
    left = recorder.unsynced(stage.root, recorder.decided, recorder.cleared)
    assert [step for step in left if not step.is_hidden] == []
