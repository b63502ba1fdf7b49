"""Several processes on one workspace and its history at the same moment.

`python -m tests.safety.share_history <scene> <directory>` prints what they did in JSON.
"""

import json
import mmap
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.filesystem.trees_on_disk import clear
from tests.safety.history import Stage
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem

Reports = Sequence[str]
Work = Callable[[HostFilesystem, Callable[[], bool]], Iterator[str]]

PROCESSES, SNAPSHOTS = 4, 20


def in_parallel(stage: Stage, works: Sequence[Work], helpers: Sequence[Work] = ()) -> list[Reports]:
    """Return what each of the works reports, done in processes of their own.

    The helpers go on until all works are done. A report that starts with `!` is a defect.
    """
    ready, go = os.pipe()
    over = mmap.mmap(-1, 1)
    results = [_begin(stage, work, ready, go, over) for work in (*works, *helpers)]
    os.close(ready)
    os.close(go)
    reports = [_read(result) for result in results[: len(works)]]
    over[0] = 1
    reports += [_read(result) for result in results[len(works) :]]
    for _ in results:
        os.wait()
    return reports


def _begin(stage: Stage, work: Work, ready: int, go: int, over: mmap.mmap) -> int:
    result, writer = os.pipe()
    if os.fork() == 0:
        reports: list[str] = []
        try:
            os.close(go)
            with stage.opened() as fs:
                os.read(ready, 1)  # until the last who could write has closed it
                reports.extend(work(fs, lambda: over[0] == 1))
        except BaseException:  # noqa: BLE001 # whatever it is, it is a defect
            reports.append("!" + traceback.format_exc())
        finally:
            with os.fdopen(writer, "w") as file:
                json.dump(reports, file)
            os._exit(0)
    os.close(writer)
    return result


def _read(result: int) -> Reports:
    with os.fdopen(result) as file:
        return json.load(file)


def _taking(number: int) -> Work:
    """Return one who writes a file of its own, and keeps the state, again and again."""

    def work(fs: HostFilesystem, is_over: Callable[[], bool]) -> Iterator[str]:
        for count in range(SNAPSHOTS):
            fs.write(f"own/{number}", f"{count}\n" * 100)
            taken = fs.snapshot(tag=f"{number} {count}")
            yield taken.commit_ref
            found = fs.view(taken).read(f"own/{number}").content
            if found != f"{count}\n" * 100:
                yield f"!snapshot {number} {count} holds {found!r:.40}"

    return work


def _writing(fs: HostFilesystem, is_over: Callable[[], bool]) -> Iterator[str]:
    """Go on writing, moving and deleting."""
    count = 0
    while not is_over():
        fs.write(f"busy/{count % 7}/f", "x" * (count % 5_000))
        fs.write("busy/log", "line\n", mode="append" if count % 50 else "overwrite")
        if count % 3 == 0:
            fs.delete(f"busy/{count % 7}", recursive=True)
        count += 1
    yield str(count)


def _restoring(kept: Sequence[FilesystemSnapshot], rounds: int) -> Work:
    def work(fs: HostFilesystem, is_over: Callable[[], bool]) -> Iterator[str]:
        for count in range(rounds):
            fs.restore(kept[count % len(kept)])
            yield kept[count % len(kept)].commit_ref

    return work


def _keeping(fs: HostFilesystem, is_over: Callable[[], bool]) -> Iterator[str]:
    while not is_over():
        yield fs.snapshot(tag="kept meanwhile").commit_ref


def _importing(stage: Stage) -> Work:
    def work(fs: HostFilesystem, is_over: Callable[[], bool]) -> Iterator[str]:
        for count in range(8):
            name = ("one", "two")[count % 2]
            fs.import_archive(stage.directory / f"{name}.zip")
            yield name

    return work


def _opening(stage: Stage) -> Work:
    """Return one who comes and goes, and would finish what is not his."""

    def work(fs: HostFilesystem, is_over: Callable[[], bool]) -> Iterator[str]:
        count = 0
        while not is_over():
            stage.opened().close()
            count += 1
        yield str(count)

    return work


def take_at_once(stage: Stage) -> list[Reports]:
    """Take snapshots in four processes while a fifth one writes."""
    clear(stage.root)
    return in_parallel(stage, [_taking(number) for number in range(PROCESSES)], [_writing])


def restore_at_once(stage: Stage) -> list[Reports]:
    """Go back and forth in several processes, while others take snapshots, come and go."""
    one, two = stage.kept["one"], stage.kept["two"]
    works = [_restoring([one, two], 16), _restoring([two, one], 16), _importing(stage)]
    return in_parallel(stage, works, [_keeping, _opening(stage)])


SCENES = {"take": take_at_once, "restore": restore_at_once}


if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]](Stage(Path(sys.argv[2])))))
