"""Read-only scopes: what a read-only call may not do."""

from pathlib import Path
from threading import Thread

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    ReadOnlyError,
)
from weakincentives.filesystem.base.readable import readonly
from weakincentives.filesystem.testing import MockFilesystem


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> BaseFilesystem:
    if request.param == "memory":
        return InMemoryFilesystem()
    (tmp_path / "root").mkdir()
    return HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store")


def test_a_guarded_filesystem_is_read_and_not_written(fs: BaseFilesystem):
    fs.write("a", "old")
    with readonly(fs) as same:
        assert same is fs
        assert fs.read("a").content == "old"
        with pytest.raises(ReadOnlyError, match="This call is read-only"):
            fs.write("a", "new")
    fs.write("a", "new")
    assert fs.read("a").content == "new"


def test_a_guard_ends_with_an_exception(fs: BaseFilesystem):
    with pytest.raises(ReadOnlyError), readonly(fs), readonly(fs):
        fs.mkdir("d")
    fs.mkdir("d")
    assert fs.exists("d")


def test_a_guard_is_for_one_filesystem_and_one_context(fs: BaseFilesystem):
    other = InMemoryFilesystem()
    with readonly(fs):
        other.write("a", "written")
        thread = Thread(target=fs.write, args=("b", "by another thread"))
        thread.start()
        thread.join()
    assert other.exists("a")
    assert fs.exists("b")


def test_nothing_is_mounted_while_it_is_guarded(fs: BaseFilesystem, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("text")
    mount = HostMount(host_path=str(tmp_path / "docs"))
    with readonly(fs), pytest.raises(ReadOnlyError):
        fs.hydrate_from_host(mount, allowed_roots=[tmp_path])
    assert fs.list() == ()


def test_a_view_says_that_it_is_read_only_and_names_the_path():
    mock = MockFilesystem(root="/work")
    with readonly(mock) as view:
        assert (view.read_only, view.root, mock.read_only) == (True, "/work", False)
        with pytest.raises(ReadOnlyError) as caught:
            view.delete("a/b")
    assert caught.value.filename == "a/b"
    assert mock.calls == ()
