"""Slices of types that are not known here: found in imported modules, or loaded as data."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime.session import (
    DumpError,
    Session,
    UnknownItem,
    dump_session_tree,
    load_dump,
    load_session,
)
from weakincentives.runtime.timeline import SessionRecorder, Timeline, TimelineError

MODULE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Task:
    name: str

    @dataclass(frozen=True)
    class Part:
        number: int
"""
WRITE = """
import mine
from weakincentives.runtime.session import Session, dump_session_tree
from weakincentives.runtime.timeline import SessionRecorder
session = Session(tags={"session_id": "abc"})
session[mine.Task].append(mine.Task("greet"))
session[mine.Task.Part].append(mine.Task.Part(1))
dump_session_tree(session, "dumps")
with SessionRecorder(session, "dumps/abc.timeline"):
    pass
"""
READ = """
import mine
from weakincentives.runtime.session import load_session
from weakincentives.runtime.timeline import Timeline
with Timeline("dumps/abc.timeline") as timeline:
    for session in (load_session("dumps/abc.jsonl"), timeline.session(1)):
        assert session[mine.Task].all() == (mine.Task("greet"),)
        assert session[mine.Task.Part].all() == (mine.Task.Part(1),)
"""


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Return a dump and a timeline with slices of somebody's own module."""
    (tmp_path / "mine.py").write_text(MODULE)
    run(tmp_path, WRITE)
    return tmp_path / "dumps"


def run(directory: Path, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_types_of_imported_modules_are_found(dumps: Path):
    run(dumps.parent, READ)


def test_without_the_module_the_error_says_what_to_do(dumps: Path):
    with pytest.raises(DumpError, match=r"'mine:Task'.*import its module.*unknown='data'"):
        load_session(dumps / "abc.jsonl")
    says = r"'mine:Task'.*import its module, or load it as data"
    with Timeline(dumps / "abc.timeline") as timeline, pytest.raises(TimelineError, match=says):
        timeline.session(1)


def test_without_the_module_the_items_can_be_loaded_as_data(dumps: Path):
    with Timeline(dumps / "abc.timeline") as timeline:
        for session in (
            load_session(dumps / "abc.jsonl", unknown="data"),
            load_dump(dumps / "abc.jsonl", unknown="data").session,
            timeline.session(1, unknown="data"),
        ):
            assert session[UnknownItem].all() == (
                UnknownItem("mine:Task", {"name": "greet"}),
                UnknownItem("mine:Task.Part", {"number": 1}),
            )


def test_data_of_unknown_types_is_dumped_and_recorded_as_it_was(dumps: Path):
    session = load_session(dumps / "abc.jsonl", unknown="data")
    shutil.rmtree(dumps / "abc.timeline")
    with SessionRecorder(session, dumps / "abc.timeline"):
        pass
    dump_session_tree(session, dumps)
    run(dumps.parent, READ)
    assert "UnknownItem" not in (dumps / "abc.jsonl").read_text()
    with Timeline(dumps / "abc.timeline") as timeline:
        [stored] = timeline.sessions(1).values()
        assert not any("UnknownItem" in name for name in stored.slices)


@dataclass(frozen=True)
class Point:
    x: int


def test_items_that_do_not_match_their_type_any_more_can_be_loaded_as_data(tmp_path: Path):
    session = Session()
    session[Point].append(Point(1))
    path = dump_session_tree(session, tmp_path)
    assert path is not None

    @dataclass(frozen=True)
    class Changed:
        x: str

    types = {f"{__name__}:Point": Changed}
    with pytest.raises(DumpError):
        load_session(path, types)
    loaded = load_session(path, types, unknown="data")
    assert loaded[UnknownItem].all() == (UnknownItem(f"{__name__}:Point", {"x": 1}),)


def test_the_session_of_any_step_comes_back_with_its_children(tmp_path: Path):
    session = Session(tags={"a": "b"})
    child = Session(parent=session)
    path = tmp_path / "x.timeline"
    files = InMemoryFilesystem()
    with SessionRecorder(session, path, files) as recorder:
        session[Point].append(Point(1))
        child[Point].append(Point(2))
        files.write("a", "x")
        assert recorder.last == 1
    with Timeline(path) as timeline:
        assert timeline.session(1)[Point].all() == ()
        loaded = timeline.session(2)
        assert (loaded.session_id, dict(loaded.tags)) == (session.session_id, {"a": "b"})
        assert loaded[Point].all() == (Point(1),)
        [again] = loaded.children
        assert (again.session_id, again[Point].all()) == (child.session_id, (Point(2),))
