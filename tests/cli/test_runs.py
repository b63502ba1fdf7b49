"""The list of runs and `wink clean`: what each state follows from, and what is removed."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests import preloaded
from tests.cli.workplace import CALC, Script, Terminal, Wink, edit, write
from tests.posix.forks import is_killed_at
from weakincentives.cli.main import main
from weakincentives.cli.run.command import command as run_command
from weakincentives.cli.runs import (
    complete_run,
    new_copy,
    new_run,
    new_session_id,
)
from weakincentives.cli.state import exclusive_lock
from weakincentives.cli.status import list_runs
from weakincentives.cli.units import format_date, format_size
from weakincentives.contrib.review import Review, open_copy, working_copy
from weakincentives.contrib.review.records import read_record
from weakincentives.posix import fault_hook

Copies = Callable[[], list[Path]]
Finish = Callable[..., Path]


@pytest.fixture
def finish(wink: Wink, project: Path, script: Script, copies: Copies) -> Finish:
    """Return what finishes a run and returns its copy."""

    def run(*steps: object, task: str = "fix it", code: int = 3, options: Any = ()) -> Path:
        before = set(copies())
        model = script(*(steps or (edit(), write("new.txt"), "Done.")))
        done = wink("run", task, "--workspace", project, "--model", model, *options)
        assert done.code == code, done.err
        [place] = set(copies()) - before
        return place

    return run


def states() -> dict[str, str]:
    return {each.id: each.state for each in list_runs()}


# --- states ---


def test_a_run_is_pending_then_applied_then_pending_again(wink: Wink, finish: Finish):
    place = finish()
    assert states() == {place.name: "pending"}
    assert wink("review", place.name, "--apply").code == 0
    assert states() == {place.name: "applied"}
    assert wink("review", place.name, "--undo").code == 0
    assert states() == {place.name: "pending"}


def test_what_is_applied_at_the_end_of_a_run_is_never_pending(finish: Finish):
    place = finish(code=0, options=["--apply"])
    [run] = list_runs()
    assert (run.id, run.state, run.changes) == (place.name, "applied", 0)


def test_changes_that_were_left_out_make_it_partly_applied(finish: Finish):
    place = finish()
    with Review(open_copy(place)) as review:
        review.apply(["calc.py"])
    [run] = list_runs()
    assert (run.state, run.changes) == ("partly applied", 1)


def test_a_run_that_failed_says_so(finish: Finish):
    place = finish(code=1, options=["--max-steps", "1"])
    assert states() == {place.name: "failed"}


def test_a_run_is_running_while_its_lock_is_held_and_interrupted_if_it_was_killed(
    finish: Finish, wink: Wink
):
    place = finish()
    record = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**record, "status": "running", "changes": None}))
    with exclusive_lock(place):
        assert states() == {place.name: "running"}
    assert states() == {place.name: "interrupted"}
    assert wink("review", place.name, "--apply").code == 0
    assert states() == {place.name: "applied"}


@pytest.mark.parametrize("point", ["change.recorded", "change.changing"])
def test_a_kill_during_an_apply_is_seen(finish: Finish, project: Path, wink: Wink, point: str):
    place = finish()

    def apply() -> None:
        with Review(open_copy(place)) as review:
            review.apply()

    assert is_killed_at(point, apply)
    assert states() == {place.name: "apply interrupted"}
    done = wink("clean", place.name, "--yes")
    assert done.code == 1
    assert f"wink review {place.name} --recover" in done.err
    wink("clean", "--all", "--yes")
    assert wink("review", place.name, "--recover").code == 0
    assert states() == {place.name: "pending"}
    assert (project / "calc.py").read_text() == CALC


def test_half_a_copy_is_incomplete(finish: Finish):
    with new_run(new_session_id(), Path("/project")) as place:
        (place / "workspace").mkdir()
        (place / "workspace" / "file").write_text("half")
        assert states() == {place.name: "running"}
    assert states() == {place.name: "incomplete"}


# --- the list ---


@pytest.mark.usefixtures("home_elsewhere")
def test_the_list_has_id_state_date_size_directory_and_task(
    wink: Wink, finish: Finish, project: Path
):
    first = finish(task="first\x1b[2J\ntask")
    second = finish(task="a long task " * 40)
    done = wink("review")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith(f"{second.name}  pending, 2 files  just now  ")
    assert lines[0].endswith(f"kB  {project}")
    assert lines[1].startswith("  a long task a long")
    assert lines[1].endswith("…")
    assert len(lines[1]) == 160
    assert lines[2].startswith(f"{first.name}  ")
    assert lines[3] == "  first^[[2J task"
    assert done.err.startswith("2 runs, ")


def test_the_list_fits_a_narrow_terminal(finish: Finish):
    finish(task="a long task " * 10)
    done = Terminal("review", size=(20, 60)).end()
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines[:3])) <= 60 or "/" in lines[1]
    assert lines[2].endswith("…")


def test_the_list_as_json_and_for_one_directory(
    wink: Wink, finish: Finish, project: Path, tmp_path: Path
):
    place = finish()
    [line] = wink("review", "--json", "--workspace", project).events
    assert line["id"] == place.name
    assert line["session_id"].startswith(place.name)
    assert (line["state"], line["task"], line["changes"]) == ("pending", "fix it", 2)
    assert line["size_bytes"] > len(CALC)
    assert wink("review", "--json", "--workspace", tmp_path).out == ""
    assert "No runs are kept." in wink("review", "--workspace", tmp_path).err


def test_the_size_of_a_run_is_what_du_counts(wink: Wink, finish: Finish, project: Path):
    place = finish()
    built = place / "workspace" / "build"
    built.mkdir()
    for number in range(50):  # a block each, whatever their size is
        (built / f"{number}.o").write_bytes(b"x")
    (built / "big").write_bytes(b"x" * 1_000_000)
    (built / "same").hardlink_to(built / "big")
    wink("review", place.name)
    done = subprocess.run(
        ["du", "--summarize", "--block-size=1", place], check=True, capture_output=True, text=True
    )
    [line] = wink("review", "--json").events
    assert line["size_bytes"] == int(done.stdout.split()[0]) > 1_000_000


def test_a_copy_of_the_library_is_listed_too(wink: Wink, project: Path):
    copy = working_copy(project)
    [line] = wink("review", "--json").events
    assert (line["place"], line["state"], line["task"]) == (str(copy.place), "pending", None)


def test_hundreds_of_runs_are_listed_without_walking_through_their_files(
    wink: Wink, finish: Finish, monkeypatch: pytest.MonkeyPatch
):
    place = finish()
    listed: list[str] = []
    scandir = os.scandir

    def count(path: Any) -> Any:
        listed.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", count)
    assert len(list_runs()) == 1
    assert not any(each.startswith(str(place / "workspace")) for each in listed)


def test_dates_are_in_words_where_they_are_recent():
    now = datetime(2026, 5, 4, 12, tzinfo=UTC).astimezone()
    assert format_date(now - timedelta(seconds=5), now) == "just now"
    assert format_date(now - timedelta(minutes=1), now) == "1 minute ago"
    assert format_date(now - timedelta(minutes=59), now) == "59 minutes ago"
    assert format_date(now - timedelta(days=1), now) == f"yesterday {now:%H:%M}"
    assert format_date(now - timedelta(days=9), now) == f"2026-04-25 {now:%H:%M}"
    assert format_date(now + timedelta(days=9), now) == f"2026-05-13 {now:%H:%M}"  # another clock


def test_sizes_are_short():
    sizes = [0, 999, 1000, 9_949, 9_950, 123_456, 999_600, 1_234_567_890]
    shown = ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "123 kB", "1.0 MB", "1.2 GB"]
    assert [format_size(each) for each in sizes] == shown


# --- clean ---


def test_by_default_only_what_nobody_needs_to_decide_about_is_removed(
    wink: Wink, finish: Finish, copies: Copies
):
    pending, applied = finish(), finish(code=0, options=["--apply"])
    with new_run(new_session_id(), Path("/project")) as half:
        (half / "workspace").mkdir()
    done = wink("clean")
    assert done.code == 3
    assert "Nothing was removed; --yes removes it." in done.err
    assert applied.name in done.out
    assert half.name in done.out
    assert pending.name not in done.out
    assert f"kept: {pending.name} (pending, not decided); to decide: wink review" in done.err
    done = wink("clean", "--yes")
    assert done.code == 0
    assert "\nFreed " in done.err
    assert copies() == [pending]
    assert not applied.exists()
    assert not half.exists()


def test_what_waits_is_removed_only_on_request(wink: Wink, finish: Finish, copies: Copies):
    finish()
    applied = finish(code=0, options=["--apply"])
    assert [each["id"] for each in wink("clean", "--applied", "--json").last["runs"]] == [
        applied.name
    ]
    done = wink("clean", "--all", "--json")
    assert (done.code, done.last["removed"], len(done.last["runs"])) == (3, False, 2)
    assert wink("clean", "--all", "--dry-run").code == 0
    assert len(copies()) == 2
    done = wink("clean", "--all", "--json", "--yes")
    assert done.code == 0
    assert done.last["freed_bytes"] > 0
    assert copies() == []
    assert "Nothing to remove" in wink("clean").err


def test_only_what_is_older_is_removed(wink: Wink, finish: Finish, copies: Copies):
    old, new = finish(code=0, options=["--apply"]), finish(write("b"), "Done.")
    long_ago = time.time() - 15 * 86400
    for each in (old, *old.iterdir()):
        os.utime(each, (long_ago, long_ago), follow_symlinks=False)
    assert wink("clean", "--all", "--older-than", "16d", "--yes").code == 0
    assert copies() == sorted([old, new])
    assert wink("clean", "--all", "--older-than", "2w", "--yes").code == 0
    assert copies() == [new]
    assert "--older-than must be a duration" in wink("clean", "--older-than", "x").err


def test_a_run_that_goes_on_is_never_removed(wink: Wink, finish: Finish, copies: Copies):
    place = finish()
    with exclusive_lock(place):
        assert wink("clean", "--all", "--yes").code == 0
        done = wink("clean", place.name, "--yes")
        assert done.code == 1
        assert "wait until it has ended" in done.err
    assert copies() == [place]


def test_runs_are_removed_by_name_after_a_question(finish: Finish, copies: Copies):
    place, other = finish(), finish()
    terminal = Terminal("clean", place.name)
    terminal.wait_for(r"Remove 1 run, .*; the changes of 1 run are lost\? \[y/N\]: \Z")
    terminal.type("n\n")
    assert terminal.end().code == 3
    terminal = Terminal("clean", place.name[:6])
    terminal.wait_for(r"\[y/N\]: \Z")
    terminal.type("y\n")
    assert terminal.end().code == 0
    assert copies() == [other]


def test_a_run_is_removed_with_its_steps_and_kept_with_them(
    wink: Wink, finish: Finish, tmp_path: Path
):
    runs = tmp_path / "places" / "state" / "wink" / "runs"
    pending = finish()
    finish(code=0, options=["--apply"])
    wink("run", "x", "--workspace", tmp_path, "--model", "scripted:none", "--discard")
    assert wink("clean", "--yes").code == 0
    assert list(runs.iterdir()) == [pending]
    assert wink("log", pending.name).code == 0


# what the user did in the copy of a run, and what is said about it
EDITS = {
    "nothing": (lambda _: None, ""),
    "edited an applied file": (
        lambda root: (root / "calc.py").write_text("mine\n"),
        "edited since the review: calc.py",
    ),
    "made a file": (lambda root: (root / "notes").touch(), "edited since the review: notes"),
    "removed a file": (
        lambda root: (root / "docs" / "notes.md").unlink(),
        "edited since the review: docs/notes.md",
    ),
    "edited an ignored file": (
        lambda root: (root / ".env").write_text("KEY=1\n"),
        "edited since the review: .env",
    ),
    "damaged the record": (
        lambda root: (root.parent / "run.json").write_text("{"),
        "cannot be checked (The record of the working copy is damaged",
    ),
    "removed the record": (
        lambda root: (root.parent / "run.json").unlink(),
        "cannot be checked (Not a working copy",
    ),
    "damaged the store": (
        lambda root: shutil.rmtree(root.parent / "history"),
        "cannot be checked (",
    ),
}


@pytest.mark.parametrize("edit_copy", EDITS)
@pytest.mark.parametrize("ending", ["--apply", "--quiet"])
def test_only_what_is_proven_to_be_decided_and_unedited_is_removed(
    wink: Wink, finish: Finish, project: Path, edit_copy: str, ending: str
):
    (project / ".gitignore").write_text(".env\n")
    place = finish(code=0 if ending == "--apply" else 3, options=[ending])
    change, says = EDITS[edit_copy]
    change(place / "workspace")
    done = wink("clean", "--yes")
    assert done.code == 0
    is_removed = ending == "--apply" and not says
    assert place.exists() != is_removed, done.err
    if is_removed:
        return
    assert f"kept: {place.name} (" in done.err
    assert says in done.err or ending == "--quiet"
    assert (place / "workspace").is_dir()
    done = wink("clean", "--all", "--yes")
    assert done.code == 0
    assert "  lost with it: " in done.out
    assert not place.exists()


def test_a_run_that_is_edited_after_the_list_was_printed_is_kept(finish: Finish, copies: Copies):
    place = finish(code=0, options=["--apply"])
    terminal = Terminal("clean")
    terminal.wait_for(r"\[y/N\]: \Z")
    (place / "workspace" / "calc.py").write_text("mine\n")
    terminal.type("y\n")
    done = terminal.end()
    assert done.code == 1
    assert "it was changed meanwhile" in done.out
    assert copies() == [place]


@pytest.mark.parametrize("point", ["clean.checked", "copy.aside"])
def test_what_is_saved_at_the_last_moment_is_kept(
    wink: Wink, finish: Finish, copies: Copies, point: str
):
    place = finish(code=0, options=["--apply"])
    mine = place / "workspace" / "calc.py"
    with mine.open("a") as file, fault_hook(lambda name: save(file, name == point)):
        done = wink("clean", "--yes")
    assert done.code == 1
    assert f"{place.name} was not removed: calc.py was changed meanwhile; try again" in done.err
    assert mine.read_text().endswith("mine\n")
    assert copies() == [place]


def save(file: TextIO, is_now: bool) -> None:
    if is_now:
        file.write("mine\n")
        file.close()


def test_a_copy_stays_while_a_program_has_one_of_its_files_open(
    wink: Wink, finish: Finish, copies: Copies
):
    place = finish(code=0, options=["--apply"])
    with (place / "workspace" / "calc.py").open("a") as file:
        done = wink("clean", "--yes")
        file.write("mine\n")
    assert done.code == 1
    fact = "a program has calc.py open for writing; try again"
    assert f"{place.name} was not removed: {fact}" in done.err
    assert (place / "workspace" / "calc.py").read_text().endswith("mine\n")
    assert copies() == [place]


def test_a_clean_that_is_killed_leaves_a_whole_copy_or_none(finish: Finish, wink: Wink):
    place = finish(code=0, options=["--apply"])
    before = tree(place / "workspace")
    assert is_killed_at("copy.aside", lambda: main(["clean", "--yes"]))
    assert not (place / "workspace").exists()
    assert states() == {place.name: "applied"}
    assert tree(place / "workspace") == before
    assert wink("clean", "--yes").code == 0
    assert not place.exists()


def tree(root: Path) -> dict[str, bytes]:
    files = (each for each in root.rglob("*") if each.is_file())
    return {str(each.relative_to(root)): each.read_bytes() for each in files}


def test_a_further_copy_is_decided_about_by_itself(wink: Wink, finish: Finish, copies: Copies):
    place = finish(code=0, options=["--apply"])
    with new_copy(place, read_record(place)) as further:
        (further / "workspace").mkdir()
    (further / "run.json").write_text("{")
    assert wink("clean", "--yes").code == 0
    assert copies() == [further]
    assert wink("log", place.name).code == 0
    assert wink("clean", f"{place.name}-2", "--yes").code == 0
    assert not further.exists()


def test_in_the_temporary_directory_only_what_has_a_record_is_a_run(
    wink: Wink, project: Path, tmp_path: Path
):
    shared = tmp_path / "places" / "tmp"
    foreign = shared / "wink-run-of-somebody"
    foreign.mkdir()
    (foreign / "precious.txt").write_text("mine\n")
    earlier = working_copy(project, place=shared / "wink-run-abc").place
    assert [each["place"] for each in wink("review", "--json").events] == [str(earlier)]
    assert wink("clean", "of-somebody", "--yes").code == 1
    assert wink("clean", "--all", "--yes").code == 0
    assert sorted(shared.iterdir()) == [foreign]
    assert (foreign / "precious.txt").exists()


def test_nothing_that_is_no_run_is_removed(wink: Wink, project: Path):
    assert wink("clean", str(project), "--yes").code == 1
    assert wink("clean", "nothing", "--yes").code == 1
    assert (project / "calc.py").exists()


def test_the_cache_of_digests_is_removed(wink: Wink, project: Path, tmp_path: Path):
    wink("digest", project)
    cache = tmp_path / "places" / "cache" / "wink" / "digests"
    assert list(cache.iterdir())
    assert wink("clean", "--cache", "--yes").code == 0
    assert list(cache.iterdir()) == []
    cache.rmdir()
    cache.symlink_to(project)
    assert wink("clean", "--cache", "--yes").code == 0
    assert (project / "calc.py").exists()


# --- completion ---


def complete(*words: str) -> list[str]:
    done = preloaded.run(
        [sys.executable, "-c", "from weakincentives.cli.main import main; main()"],
        env={
            **os.environ,
            "_WINK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("wink", *words)),
            "COMP_CWORD": str(len(words)),
        },
    )
    assert done.returncode == 0
    return done.stdout.split()


@pytest.mark.parametrize("command", ["review", "clean", "log", "debug", "diff", "show", "resume"])
def test_ids_are_completed(finish: Finish, command: str):
    place = finish()
    assert complete(command, place.name[:2]) == [f"plain,{place.name}"]


def test_a_path_is_completed_where_no_id_begins_so(own_places: None):
    context = run_command.make_context("run", ["x"])
    [item] = complete_run(context, run_command.params[0], "./x")
    assert item.type == "file"
