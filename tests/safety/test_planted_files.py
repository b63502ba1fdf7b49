"""Pipes, devices and huge files in place of a configuration, record or recording."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import own_places, wink  # noqa: F401 # fixtures
from tests.cli.workplace import Wink
from weakincentives.adapters.recording.recorder import RecordedConversation
from weakincentives.contrib.review import CopyError, open_copy, working_copy
from weakincentives.errors import WinkError
from weakincentives.filesystem import ArchiveFilesystem, HostFilesystem
from weakincentives.prompt import LocalPromptOverridesStore, PromptDescriptor
from weakincentives.runtime import SessionFile
from weakincentives.runtime.session import load_session


def _giant(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**41)


PLANTED: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": lambda path: (
        os.mkfifo(path.with_name("pipe")),
        path.symlink_to(path.with_name("pipe")),
    ),
    "a giant": _giant,
    "a directory": Path.mkdir,
}
planted = pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)


def _override(path: Path) -> None:
    store = LocalPromptOverridesStore(path.parent)
    (path.parent / "ns" / "key").mkdir(parents=True)
    path.rename(path.parent / "ns" / "key" / "latest.json")
    store.resolve(PromptDescriptor("ns", "key", {}, {}))


READERS: dict[str, Callable[[Path], object]] = {
    "a recording": RecordedConversation.load,
    "a session": lambda path: SessionFile(path).resume(()),
    "a dump": lambda path: load_session(path, types=()),
    "an archive": ArchiveFilesystem,
    "an override": _override,
}


@planted
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_is_no_file_of_ours_is_refused_in_a_sentence(
    tmp_path: Path, plant: Callable[[Path], object], read: Callable[[Path], object]
):
    path = tmp_path / "planted.jsonl"
    plant(path)
    with pytest.raises((WinkError, OSError)) as failure:
        read(path)
    assert "\n" not in str(failure.value)


@planted
def test_a_record_of_a_copy_is_a_regular_file_of_bounded_size(
    tmp_path: Path,
    plant: Callable[[Path], object],
    wink: Wink,  # noqa: F811 # a fixture
):
    (tmp_path / "project").mkdir()
    copy = working_copy(tmp_path / "project")
    (copy.place / "run.json").unlink()
    plant(copy.place / "run.json")
    with pytest.raises(CopyError, match="Not a working copy:"):
        open_copy(copy.place)
    assert wink("review").code == 0
    done = wink("review", copy.place)
    assert (done.code, done.err.count("\n")) == (1, 1)
    # a run in a directory that has such a file is not led astray either
    done = wink("run", "x", "--workspace", copy.place)
    assert "No model is set" in done.err


@planted
@pytest.mark.parametrize("named", [False, True])
def test_settings_are_a_regular_file_of_bounded_size(
    tmp_path: Path,
    plant: Callable[[Path], object],
    wink: Wink,  # noqa: F811 # a fixture
    named: bool,
):
    (tmp_path / "project").mkdir()
    plant(tmp_path / "project" / "wink.toml")
    more = ("--config", tmp_path / "project" / "wink.toml") if named else ()
    for command in (("run", "x"), ("doctor",)):
        done = wink(*command, "--workspace", tmp_path / "project", *more)
        assert done.code != 0
        assert "wink.toml cannot be read: " in done.err + done.out


def test_a_link_to_settings_is_followed_where_the_person_named_it(
    tmp_path: Path,
    wink: Wink,  # noqa: F811 # a fixture
):
    (tmp_path / "project").mkdir()
    (tmp_path / "mine.toml").write_text('model = "nonsense"\n')
    (tmp_path / "project" / "wink.toml").symlink_to(tmp_path / "mine.toml")
    found = wink("run", "x", "--workspace", tmp_path / "project")
    assert "cannot be read: Not a regular file; remove it, or choose another file with" in found.err
    named = wink(
        *("run", "x", "--workspace", tmp_path / "project"),
        *("--config", tmp_path / "project" / "wink.toml"),
    )
    assert "nonsense" in named.err


@planted
def test_a_script_is_a_regular_file_of_bounded_size(
    tmp_path: Path,
    plant: Callable[[Path], object],
    wink: Wink,  # noqa: F811 # a fixture
):
    (tmp_path / "project").mkdir()
    plant(tmp_path / "script")
    model = f"scripted:{tmp_path / 'script'}"
    done = wink("run", "x", "--workspace", tmp_path / "project", "--model", model)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "Script cannot be read: " in done.err


@planted
@pytest.mark.parametrize("name", ["wink.epoch", "packed-refs", "shallow", "wink-log"])
def test_a_store_with_a_planted_file_ends_in_an_answer(
    tmp_path: Path, plant: Callable[[Path], object], name: str
):
    (tmp_path / "files").mkdir()
    with HostFilesystem(tmp_path / "files", git_dir=tmp_path / "store") as files:
        files.write("a", "1")
        files.snapshot()
    (tmp_path / "store" / name).unlink(missing_ok=True)
    plant(tmp_path / "store" / name)
    try:
        with HostFilesystem(tmp_path / "files", git_dir=tmp_path / "store") as files:
            files.write("a", "2")
            files.restore(files.snapshot())
    except (WinkError, OSError) as error:
        assert "\n" not in str(error)
    assert (tmp_path / "files" / "a").read_text() == "2"
