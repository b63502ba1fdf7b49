"""The state directory: whose it is, the names of runs in it, and their locks."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import click
import pytest

from weakincentives.cli.runs import (
    find_run,
    list_places,
    new_copy,
    new_run,
    new_session_id,
    place_id,
    steps_path,
)
from weakincentives.cli.state import (
    ConfigError,
    create_directory,
    exclusive_lock,
    runs_directory,
)
from weakincentives.contrib.review import working_copy
from weakincentives.contrib.review.records import CopyFacts, read_record, write_record
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.posix import is_locked

pytestmark = pytest.mark.usefixtures("own_places")
SESSION = UUID("ab12cd34-0000-4000-8000-000000000000")
BASE = FilesystemSnapshot(SESSION, datetime(2026, 1, 2, tzinfo=UTC), "0" * 40, "/")


def new(session_id: UUID = SESSION) -> Path:
    with new_run(session_id, Path("/project")) as place:
        steps_path(place).touch()
        return place


def find_place(argument: str) -> Path | None:
    return find_run(argument).place


def test_a_run_that_leaves_nothing_leaves_no_directory():
    with new_run(SESSION, Path("/project")) as place:
        assert place.is_dir()
    assert list_places() == []


def test_only_the_owner_has_access():
    runs = create_directory("runs")
    for each in (runs, runs.parent, new()):
        assert each.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_could_enter_is_closed():
    runs_directory().mkdir(0o755, parents=True)
    runs_directory().parent.chmod(0o777)
    create_directory("runs")
    assert runs_directory().parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.root
def test_the_directory_of_another_user_is_refused():
    runs_directory().mkdir(parents=True)
    os.chown(runs_directory().parent, 12345, 12345)
    with pytest.raises(ConfigError, match=r"belongs to another user.*set XDG_STATE_HOME"):
        new()


def test_a_state_directory_that_cannot_be_created_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be used: .*; set XDG_STATE_HOME"):
        new()


def test_all_copies_of_a_run_are_in_its_directory_and_have_its_name():
    run = new()
    record = read_record(run)
    names: list[str] = []
    for _ in range(3):
        with new_copy(run, record) as place:
            (place / "workspace").mkdir()
            write_record(place, replace(read_record(place), copy=CopyFacts(base=BASE)))
        names.append(place_id(place))
        assert find_run(names[-1]).steps == steps_path(run)
    assert names == ["ab12cd34", "ab12cd34-2", "ab12cd34-3"]
    assert list_places() == [run, run / "copy-2", run / "copy-3"]
    assert find_place("ab12") == run


def test_a_copy_that_was_removed_leaves_its_place_to_the_next():
    run = new()
    record = read_record(run)
    with new_copy(run, record) as place:
        assert place == run
    with new_copy(run, record) as place:  # it was killed while it was made
        (place / "workspace").mkdir()
    with new_copy(run, record) as place:
        assert place == run
        assert not (run / "workspace").exists()


def test_an_id_is_never_the_number_of_a_step():
    assert not any(str(new_session_id())[:8].isdecimal() for _ in range(1_000))


def test_a_beginning_names_a_run_and_an_ambiguous_one_names_them():
    first, second = new(), new(UUID("ab99cd34-0000-4000-8000-000000000000"))
    assert find_place("ab9") == find_place(str(second)) == second
    assert find_place(str(SESSION)) == find_place("ab12cd34") == first
    with pytest.raises(click.ClickException, match="Several runs begin with 'ab': ab12cd34, "):
        find_place("ab")
    with pytest.raises(click.ClickException, match="Run not found: 'x'; `wink review` lists"):
        find_place("x")
    with pytest.raises(click.ClickException, match="Run not found: ''"):
        find_place("")


def test_a_copy_in_the_temporary_directory_is_still_found(project: Path):
    copy = working_copy(project)
    assert copy.place.parent == Path(tempfile.gettempdir())
    assert list_places() == [copy.place]
    assert find_place(place_id(copy.place)) == copy.place


def test_a_directory_that_is_not_a_run_is_not_found():
    for name in ("photos", "deadbeef"):
        (runs_directory() / name).mkdir(parents=True)
    assert list_places() == [runs_directory() / "deadbeef"]


@pytest.mark.root
def test_a_copy_of_another_user_is_not_found(project: Path):
    copy = working_copy(project)
    os.chown(copy.place, 12345, 12345)
    assert list_places() == []


HOLD = """\
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from weakincentives.cli.state import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_run_in_another_process_is_seen_and_not_entered():
    place = new()
    assert not is_locked(place)
    command = [sys.executable, "-c", HOLD, place]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        assert is_locked(place)
        with pytest.raises(click.ClickException, match="is in use"), exclusive_lock(place):
            pass
        other.kill()
    assert not is_locked(place)  # however it ended
