"""`wink export`: a run as one file that every command reads, a page, or a session dump."""

from pathlib import Path

import pytest

from tests.cli.workplace import FIXED, Script, Wink, edit
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import load_session


@pytest.fixture
def run(wink: Wink, project: Path, script: Script) -> str:
    """Return the ID of a run that fixes calc.py; a secret is ignored."""
    (project / ".gitignore").write_text(".env\n")
    (project / ".env").write_text("KEY=of-nobody-else\n")
    done = wink("run", "x", "--workspace", project, "--model", script(edit(), "Done."), "--json")
    return done.last["session_id"][:8]


def test_the_dump_has_the_session_and_the_files_at_the_end(wink: Wink, run: str, tmp_path: Path):
    done = wink("export", run, "--to", tmp_path / "dump")
    assert done.code == 0, done.err
    [path] = (tmp_path / "dump").glob("*.jsonl")
    assert str(path) in done.err
    files = InMemoryFilesystem()
    session = load_session(path, filesystem=files)
    assert [each.tool for each in session[ToolInvoked].all()] == ["edit_file"]
    assert files.read("calc.py").content == FIXED
    assert not files.exists(".env")


def test_one_file_has_all_steps_and_no_ignored_files(wink: Wink, run: str, tmp_path: Path):
    target = tmp_path / "sent.timeline"
    assert wink("export", run, "--to", target).code == 0
    assert wink("log", target).out.splitlines()[1:] == wink("log", run).out.splitlines()[1:]
    assert wink("show", target, "4:calc.py").out == FIXED
    assert wink("restore", target, "4", "--to", tmp_path / "out").code == 0
    assert not (tmp_path / "out" / ".env").exists()
    assert b"of-nobody-else" not in target.read_bytes()
    before = target.read_bytes()
    assert wink("export", run, "--to", target).code == 1
    assert target.read_bytes() == before


def test_a_file_that_was_sent_is_continued_as_a_run_of_its_own(
    wink: Wink, run: str, project: Path, script: Script, tmp_path: Path
):
    target = tmp_path / "sent.timeline"
    assert wink("export", run, "--to", target).code == 0
    before = target.read_bytes()
    done = wink("resume", target, "more", "--model", script("More."), "--json")
    assert done.code == 3, done.err
    assert Path(done.last["timeline"]).parent.name != run
    assert target.read_bytes() == before
    assert (Path(done.last["copy"]) / "workspace" / "calc.py").read_text() == FIXED
