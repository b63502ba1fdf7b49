"""Timelines between backends: every step comes back byte by byte, wherever it was recorded."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem, Limits
from weakincentives.filesystem.backend import export_state
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, Timeline

LIMITS = Limits(max_write_length=4_000_000)
BINARY = bytes(range(256)) * 9_000  # more than two chunks


def create(kind: str, place: Path) -> HostFilesystem | InMemoryFilesystem:
    if kind == "memory":
        return InMemoryFilesystem(limits=LIMITS)
    place.mkdir()
    return HostFilesystem(place, limits=LIMITS)


def change(files: BaseFilesystem) -> Iterator[None]:
    """Change the files, a step at a time."""
    files.write("text.txt", "line\n" * 1_000)
    files.write_bytes("binary", BINARY)
    files.mkdir("empty/inner")
    yield
    files.write("text.txt", "line\n" * 500 + "changed\n" + "line\n" * 499, mode="overwrite")
    yield
    files.write_bytes("binary", BINARY[:1_500_000] + b"x" + BINARY[1_500_000:], mode="overwrite")
    yield
    files.move("text.txt", "deep/er/text.txt")
    yield
    files.delete("empty", recursive=True)
    files.write("empty", "now a file\n")
    yield
    files.delete("binary")
    yield


def record(files: BaseFilesystem, path: Path) -> Path:
    session = Session()
    with SessionRecorder(session, path, files):
        for _ in change(files):
            session.dispatch(ToolInvoked(tool="change"))
    return path


def check_round_trip(source: BaseFilesystem, target: BaseFilesystem, place: Path) -> None:
    """Record changes, bring every step into another backend, and compare what is recorded there."""
    path = record(source, place / "first.timeline")
    archive, second, session = place / "step.fs.zip", place / "second.timeline", Session()
    with Timeline(path) as before:
        with SessionRecorder(session, second, target):
            for step in before.steps[1:]:
                export_state(before.files(step.number), archive)
                target.import_archive(archive)
                session.dispatch(ToolInvoked(tool="import"))
        with Timeline(second) as after:
            assert after.verify() == []
            assert len(after.steps) == len(before.steps)
            for step in before.steps:
                check_same(before, after, step.number)


def check_same(before: Timeline, after: Timeline, number: int) -> None:
    assert after.entries(number) == before.entries(number)
    for name, entry in before.entries(number).items():
        if entry.kind == "file":
            expected = before.files(number).read_bytes(name).content
            assert after.files(number).read_bytes(name).content == expected


@pytest.mark.parametrize("target", ["memory", "host"])
@pytest.mark.parametrize("source", ["memory", "host"])
def test_every_step_goes_into_another_backend_and_comes_back(
    source: str, target: str, tmp_path: Path
):
    with create(source, tmp_path / "source") as files, create(target, tmp_path / "target") as other:
        check_round_trip(files, other, tmp_path)


def test_names_links_and_permissions_of_a_disk_survive(tmp_path: Path):
    root = tmp_path / "work"
    (root / "closed").mkdir(parents=True)
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"\0")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o750)
    (root / "link").symlink_to("../outside")
    (root / "closed").chmod(0o500)
    with (
        HostFilesystem(root) as files,
        SessionRecorder(Session(), tmp_path / "x.timeline", files),
    ):
        pass
    with Timeline(tmp_path / "x.timeline") as timeline:
        found = timeline.entries(1)
        assert found.keys() == {os.fsdecode(b"\xff\xfe"), "run.sh", "link", "closed"}
        assert (found["run.sh"].kind, found["run.sh"].mode) == ("file", 0o750)
        assert (found["closed"].kind, found["closed"].mode) == ("directory", 0o500)
        assert found["link"].target == "../outside"
