"""W9: export the standard library to a ZIP, import it with every check, export it again."""

import itertools
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weakincentives.filesystem as filesystem
from benchmarks.goals import faster_than
from benchmarks.harness import Absent, Case, Contender, Workload, expect
from benchmarks.limits import deflate_isal, inflate_isal
from benchmarks.ours import OurMemory, everything
from benchmarks.peer_zipfile import (
    read_checked_zip,
    read_zip,
    write_checked_zip,
    write_zip,
)
from benchmarks.second_import import import_without, uses
from benchmarks.stage import Stage

CHANGED = "json/decoder.py"
NO_ISAL = "not in use: pip install '.[fast]'"
Files = Mapping[str, bytes]
SAME_CHECKS = "zipfile, same checks"
FILES = "files/"  # where an archive of ours has them


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to deflate: the package that does it, the bare functions, the factors to reach."""

    name: str
    package: Any
    deflate: Callable[[bytes], bytes]
    inflate: Callable[[bytes], bytes]
    export_factor: float
    import_factor: float


def cases(stage: Stage) -> Iterator[Case]:
    """With isal where it is used, and as it is for everybody; zipfile beside both."""
    corpus = stage.library()
    files = corpus.contents()
    variants, absent = _variants()
    for variant in variants:
        folder, label = stage.scratch(), f"{corpus.name}, {variant.name}"
        yield _exports(folder, variant, files, f"export {label}", absent)
        yield _imports(folder, variant, files, f"import {label}", absent)
        yield _exports_again(folder, variant, files, f"export {label}, after one change", absent)


def _variants() -> tuple[list[Variant], tuple[Absent, ...]]:
    deflate: Callable[[bytes], bytes] = lambda data: zlib.compress(data, 1)  # noqa: E731 - typed
    if not uses("isal"):
        plain = Variant("zlib", filesystem, deflate, zlib.decompress, 2, 1.5)
        return [plain], (Absent("ours with isal", NO_ISAL),)
    plain = Variant("zlib", import_without("isal"), deflate, zlib.decompress, 2, 1.5)
    return [Variant("isal", filesystem, deflate_isal, inflate_isal, 8, 2.5), plain], ()


def _exports(
    folder: Path, variant: Variant, files: Files, name: str, absent: tuple[Absent, ...]
) -> Case:
    """Everything is packed; zipfile must find the same in it."""
    ours, archive = _loaded(variant, files), folder / "ours.zip"
    exporter = Contender(
        ours.name,
        "ours",
        lambda: ours.fs.export_archive(archive),
        lambda _: expect(read_zip(archive, FILES), files, "files in the archive"),
        prepare=lambda: archive.unlink(missing_ok=True),
        threads=True,
    )
    goals = (faster_than("zipfile", variant.export_factor),)
    contenders = (exporter, _deflater(variant, files), *_zippers(folder, files))
    return Case(name, contenders, goals, absent)


def _imports(
    folder: Path, variant: Variant, files: Files, name: str, absent: tuple[Absent, ...]
) -> Case:
    """Into an empty filesystem each time."""
    archive, zipped, checked = (
        folder / each for each in ("import.zip", "plain.zip", "checked.zip")
    )
    _loaded(variant, files).fs.export_archive(archive)
    write_zip(zipped, files)
    write_checked_zip(checked, files)
    target = [OurMemory(variant.package)]

    def renew() -> None:
        target[0] = OurMemory(variant.package)

    importer = Contender(
        target[0].name,
        "ours",
        lambda: target[0].fs.import_archive(archive),
        lambda _: expect(dict(everything(target[0].fs)), files, "files"),
        prepare=renew,
        threads=True,
    )
    compare: Callable[[object], None] = lambda answer: expect(answer, files, "files")  # noqa: E731 - typed
    unzippers = (
        Contender("zipfile", "peer", lambda: read_zip(zipped), compare),
        Contender(SAME_CHECKS, "peer", lambda: read_checked_zip(checked), compare),
    )
    goals = (faster_than("zipfile", variant.import_factor),)
    return Case(name, (importer, _inflater(variant, files), *unzippers), goals, absent)


def _exports_again(
    folder: Path, variant: Variant, files: Files, name: str, absent: tuple[Absent, ...]
) -> Case:
    """One file is another than in the last archive, which gives the others."""
    ours, archive, now = _loaded(variant, files), folder / "again.zip", dict(files)
    ours.fs.export_archive(archive)
    numbers = itertools.count()

    def change() -> None:
        now[CHANGED] = b"changed = %d\n" % next(numbers) * 100
        ours.fs.write_bytes(CHANGED, now[CHANGED])

    exporter = Contender(
        ours.name,
        "ours",
        lambda: ours.fs.export_archive(archive, previous=archive),
        lambda _: expect(read_zip(archive, FILES), now, "files in the archive"),
        prepare=change,
        threads=True,
    )
    contenders = (exporter, _copier(archive, folder / "copy.zip"), *_zippers(folder, files))
    return Case(name, contenders, (faster_than("zipfile", 50),), absent)


def _loaded(variant: Variant, files: Files) -> OurMemory:
    ours = OurMemory(variant.package)
    ours.load(files)
    return ours


def _zippers(folder: Path, files: Files) -> tuple[Contender, Contender]:
    zipped, checked = folder / "zipfile.zip", folder / "checked.zip"
    return (
        Contender(
            "zipfile",
            "peer",
            lambda: write_zip(zipped, files),
            lambda _: expect(read_zip(zipped), files, "files in the ZIP"),
        ),
        Contender(
            SAME_CHECKS,
            "peer",
            lambda: write_checked_zip(checked, files),
            lambda _: expect(read_checked_zip(checked), files, "files in the ZIP"),
        ),
    )


def _deflater(variant: Variant, files: Files) -> Contender:
    buffer = b"".join(files.values())
    return Contender(
        f"{variant.name} on one buffer",
        "limit",
        lambda: variant.deflate(buffer),
        lambda answer: expect(zlib.decompress(answer), buffer, "bytes"),  # pyright: ignore[reportArgumentType] - bytes
    )


def _inflater(variant: Variant, files: Files) -> Contender:
    buffer = b"".join(files.values())
    packed = variant.deflate(buffer)
    return Contender(
        f"{variant.name} on one buffer",
        "limit",
        lambda: variant.inflate(packed),
        lambda answer: expect(answer, buffer, "bytes"),
    )


def _copier(archive: Path, copy: Path) -> Contender:
    return Contender(
        "copy the file",
        "limit",
        lambda: shutil.copyfile(archive, copy),
        lambda _: expect(copy.stat().st_size, archive.stat().st_size, "bytes"),
    )


WORKLOAD = Workload("W9", "ZIP export and import of the standard library, memory", cases)
