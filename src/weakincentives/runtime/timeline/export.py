"""One file of a history, to send: without what the recording left out."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from weakincentives.gitstore import DIRECTORY, ObjectError, PackTransaction, TreeEntry, encode_tree
from weakincentives.history import (
    END,
    HEADER,
    INDEX,
    PACK,
    PIECE_SIZE,
    SIGNATURE,
    STEP,
    HistoryStore,
    RecordLog,
    StepRecord,
    TimelineError,
    encode_step,
)
from weakincentives.posix import check_time, temporary_name
from weakincentives.runtime.timeline.timeline import Timeline
from weakincentives.serde import encode

_PRIVATE = "left_out"  # in the details of a step: what is not recorded, by name


def export_history(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the history in a directory to one new file, which `Timeline` reads.

    It has the files of every step, and nothing else of the repository: what the recording left
    out, such as ignored files, is in it neither by name nor by content.

    Raises:
        FileExistsError: The file exists.
        TimelineError: The history is damaged.
        OSError: The file cannot be written.
    """
    path = Path(target)
    if os.path.lexists(path):
        raise FileExistsError(f"File exists already: {str(path)!r}")
    hidden = path.with_name(temporary_name())
    try:
        with (
            Timeline(source) as timeline,
            RecordLog(hidden, SIGNATURE) as log,
            TemporaryDirectory(prefix="wink-export-") as directory,
        ):
            log.append(HEADER, lambda _: encode(timeline.header))
            with PackTransaction(Path(directory), lambda _: False, durable=False) as pack:
                incomplete = _copy_objects(timeline, pack)
                name = pack.finish()
            for kind, suffix in ((PACK, ".pack"), (INDEX, ".idx")) if name is not None else ():
                for piece in _pieces(Path(directory, name or "").with_suffix(suffix)):
                    log.append(kind, lambda _, piece=piece: piece)
            for step in timeline.steps:
                _append_step(step, log, has_files=step.number not in incomplete)
            log.append(END, lambda _: b"")
        hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)


def import_history(
    source: str | os.PathLike[str], target: str | os.PathLike[str], root: str | os.PathLike[str]
) -> None:
    """Copy a history into a new directory, where it can be continued; `root` is the workspace.

    Raises:
        FileExistsError: The directory has steps already.
        TimelineError: The history is damaged.
        OSError: The directory cannot be written.
    """
    with Timeline(source) as timeline:
        store = HistoryStore.create(Path(target), Path(root), durable=True)
        try:
            store.append_header(encode(timeline.header))
            pack = store.begin_objects().begin()
            incomplete = _copy_objects(timeline, pack)
            whole = [step for step in timeline.steps if step.number not in incomplete]
            trees = {step.tree for step in whole if step.tree is not None}
            entries = [TreeEntry(each, DIRECTORY, each) for each in trees]
            store.keep(pack.add("tree", encode_tree(entries)), pack)
            for step in timeline.steps:
                _append_step(step, store.log, has_files=step.number not in incomplete)
        finally:
            store.close()


def _copy_objects(timeline: Timeline, pack: PackTransaction) -> set[int]:
    """Add the files of all steps to a pack; return those that a lost step took with it."""
    known: set[str] = set()
    copied: set[str] = set()
    incomplete: set[int] = set()
    for step in timeline.steps:
        check_time("Export")
        is_suspect = bool(timeline.find_lost(step.number))
        try:
            for each in timeline.object_ids(step.number, set() if is_suspect else known):
                if each not in copied:
                    timeline.objects.copy(each, pack)
                    copied.add(each)
        except (ObjectError, TimelineError):
            if not is_suspect:
                raise
            incomplete.add(step.number)
    return incomplete


def _append_step(step: StepRecord, log: RecordLog, *, has_files: bool) -> None:
    """Append a step; if it `has_files`, its tree is in the pack."""
    details = {name: value for name, value in step.details.items() if name != _PRIVATE}
    files = step.files if step.tree is not None else ()
    public = replace(
        step, details=details, files=files, is_stored=has_files and step.tree is not None
    )

    def make(number: int) -> bytes:
        return encode_step(encode(replace(public, number=number)))

    log.append(STEP, make)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_SIZE):
            yield piece
