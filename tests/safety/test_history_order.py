"""Power loss: everything is synced in the documented order.

The steps that matter are recorded. Losing power after any of them must leave the old
state, or a record that is on the disk together with all that it names.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.safety.history import OPERATIONS, Stage
from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.host.journal import completion
from weakincentives.history import entries, slots
from weakincentives.posix import RESERVED_PREFIX

LOG = "wink-log"
RECORD = "record"
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
    """The steps in their order."""

    steps: list[Step] = field(default_factory=list[Step])

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Record what is done from now on."""
        for name in ("rename", "unlink", "rmdir", "mkdir", "symlink", "link"):
            patch.setattr(os, name, self._naming(getattr(os, name)))
        for module, name in ((entries, "rename"), (slots, "rename"), (slots, "exchange")):
            patch.setattr(module, name, self._moving(getattr(module, name)))
        patch.setattr(os, "chmod", self._changing_mode(os.chmod))
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._syncing("sync", getattr(os, name)))
        patch.setattr(os, "write", self._writing(os.write))
        patch.setattr(os, "pwrite", self._writing(os.pwrite))
        syncing = self._syncing("sync all", completion.sync_filesystem)
        patch.setattr(completion, "sync_filesystem", syncing)

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

    def _moving(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(source: entries.Place, target: entries.Place, **options: bool) -> None:
            function(source, target, **options)
            steps = [Step("name", str(path_of(parent)), name) for parent, name in (source, target)]
            self.steps += sorted(steps, key=lambda step: step.is_hidden)  # they happen at once

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
            self.steps.append(Step("content", str(path_of(descriptor))))
            return function(descriptor, data, *offset)

        return call

    def first_visible(self, kind: Kind, within: Path) -> int:
        """Return the number of the first step of this kind that somebody sees."""
        return next(
            number
            for number, step in enumerate(self.steps)
            if step.kind == kind and Path(step.path).is_relative_to(within) and not step.is_hidden
        )

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
    return recorder, stage


def urgent(steps: list[Step]) -> list[Step]:
    """Return the steps that a recovery needs; not what keeps git out of a directory."""
    return [step for step in steps if step.kind != "mode" and not step.path.endswith(".gitignore")]


def test_new_content_and_the_record_are_on_the_disk_before_anything_is_renamed(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    first = recorder.first_visible("name", stage.root)
    assert any(step.name == RECORD for step in recorder.steps[:first])
    staged = [step for step in urgent(recorder.steps[:first]) if step.kind == "content"]
    assert any(Path(step.path).is_relative_to(stage.root) for step in staged)
    assert urgent(recorder.unsynced(stage.root, 0, first)) == []


def test_a_record_gets_its_name_when_all_that_it_names_is_on_the_disk(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    first = recorder.first_visible("name", stage.root)
    named = max(n for n, step in enumerate(recorder.steps[:first]) if step.name == RECORD)
    # what renames it is noted after the name that it had
    assert urgent(recorder.unsynced(stage.root, 0, named - 1)) == []


def test_no_directory_is_opened_before_that_is_recorded(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, recorder = Stage(directory), Recorder()
    with stage.opened() as fs, monkeypatch.context() as patch:
        recorder.install(patch)
        OPERATIONS["restore"](fs, stage)
    first = recorder.first_visible("mode", stage.root)
    assert any(step.name == RECORD for step in recorder.steps[:first])
    assert urgent(recorder.unsynced(stage.root, 0, first)) == []


def test_what_was_there_before_is_on_the_disk_before_it_is_replaced(
    recorded: tuple[Recorder, Stage],
) -> None:
    recorder, stage = recorded
    log = Step("sync", str(stage.store / LOG))
    first = recorder.first_visible("name", stage.root)
    logged = recorder.steps.index(log) if log in recorder.steps else first
    # what is in the log is on the disk before it gets its names; all else is synced itself
    left = recorder.unsynced(stage.store, 0, logged)
    # the main branch only follows
    named = [step for step in left if step.kind == "name" and step.name != "main"]
    assert [step for step in named if not step.is_hidden] == []
    left = recorder.unsynced(stage.store / LOG, 0, first)
    assert left == []
    packs = [step for step in recorder.steps if step.path.endswith("objects/pack")]
    assert any(step.kind == "name" and step.name.endswith(".pack") for step in packs)


def test_a_restore_is_decided_by_its_record_and_not_waited_for(
    recorded: tuple[Recorder, Stage],
) -> None:
    """Whoever comes after a power failure completes it."""
    recorder, stage = recorded
    later = recorder.steps[recorder.first_visible("name", stage.root) :]
    waited = [step.path for step in later if step.kind.startswith("sync")]
    assert [path for path in waited if Path(path).is_relative_to(stage.root)] == []


def test_an_undo_is_on_the_disk_before_its_record_goes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes after a power failure rolls it back."""
    stage, recorder = Stage(directory), Recorder()
    with stage.opened() as fs, monkeypatch.context() as patch:
        recorder.install(patch)
        fs.restore(stage.kept["one"], expect=stage.kept["two"])
    first = recorder.first_visible("name", stage.root)
    gone = max(number for number, step in enumerate(recorder.steps) if step.name == RECORD)
    left = recorder.unsynced(stage.root, first, gone)
    names = [step for step in left if step.kind == "name" and not step.is_hidden]
    assert [step for step in names if Path(step.path).is_dir()] == []
    assert any(step.kind == "sync" and step.path.endswith(RECORD) for step in recorder.steps)


def test_nothing_is_waited_for_but_what_was_written(recorded: tuple[Recorder, Stage]) -> None:
    recorder, stage = recorded
    assert [step for step in recorder.steps if step.kind == "sync all"] == []
    synced = {step.path for step in recorder.steps if step.kind == "sync"}
    assert [path for path in synced if not Path(path).is_relative_to(stage.directory)] == []


def test_many_files_are_on_the_disk_before_they_are_renamed(
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
    first = recorder.first_visible("name", stage.root)
    assert urgent(recorder.unsynced(stage.root, 0, first)) == []
