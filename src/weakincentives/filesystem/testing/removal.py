"""Removing and making directories."""

import pytest

from weakincentives.filesystem import Filesystem
from weakincentives.filesystem.testing.contract import ConformanceSuite


class DeleteTests(ConformanceSuite):
    """`delete`."""

    def test_delete_removes_a_file_and_keeps_its_directory(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        fs.delete("dir/file")
        assert not fs.exists("dir/file")
        assert fs.list("dir") == ()

    def test_delete_takes_all_below_and_nothing_beside(self, fs: Filesystem) -> None:
        for path in ("a/x", "a/b/y", "ab/z", "a-b", "b/a/x"):
            fs.write(path, "")
        fs.delete("a", recursive=True)
        assert [match.path for match in fs.glob("**")] == ["a-b", "ab/z", "b/a/x"]
        assert not fs.exists("a")

    def test_a_full_directory_is_deleted_only_if_recursive(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        with pytest.raises(IsADirectoryError, match="not empty"):
            fs.delete("dir")
        assert fs.exists("dir/file")

    def test_a_directory_of_directories_is_not_empty(self, fs: Filesystem) -> None:
        fs.mkdir("dir/sub")
        with pytest.raises(IsADirectoryError, match="not empty"):
            fs.delete("dir")

    def test_an_empty_directory_is_deleted_only_if_recursive(self, fs: Filesystem) -> None:
        fs.mkdir("dir")
        with pytest.raises(IsADirectoryError) as caught:
            fs.delete("dir")
        assert "not empty" not in str(caught.value)
        fs.delete("dir", recursive=True)
        assert not fs.exists("dir")

    def test_recursive_delete_removes_a_file_too(self, fs: Filesystem) -> None:
        fs.write("file", "")
        fs.delete("file", recursive=True)
        assert fs.list() == ()

    @pytest.mark.parametrize("recursive", [True, False])
    @pytest.mark.parametrize("path", ["gone", "dir/gone", "file/below"])
    def test_delete_of_nothing_raises_file_not_found(
        self, fs: Filesystem, path: str, recursive: bool
    ) -> None:
        fs.write("file", "")
        fs.mkdir("dir")
        with pytest.raises(FileNotFoundError):
            fs.delete(path, recursive=recursive)
        assert [entry.name for entry in fs.list()] == ["dir", "file"]

    @pytest.mark.parametrize("path", [".", "/", "", "dir/.."])
    def test_the_root_cannot_be_deleted(self, fs: Filesystem, path: str) -> None:
        fs.write("dir/file", "")
        with pytest.raises(PermissionError, match="Cannot delete root"):
            fs.delete(path)
        assert fs.exists("dir/file")

    def test_recursive_delete_of_the_root_refuses_or_empties_it(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        try:
            fs.delete("/", recursive=True)
        except PermissionError as refusal:
            assert "Cannot delete root" in str(refusal)
            assert fs.exists("dir/file")
        else:
            assert fs.list() == ()
        fs.write("later", "the root is still there")

    def test_what_was_deleted_can_be_made_again_as_something_else(self, fs: Filesystem) -> None:
        fs.write("name/file", "")
        fs.delete("name", recursive=True)
        fs.write("name", "now a file")
        fs.delete("name")
        fs.mkdir("name")
        assert fs.list("name") == ()


class DirectoryTests(ConformanceSuite):
    """`mkdir`."""

    def test_mkdir_makes_an_empty_directory_and_its_parents(self, fs: Filesystem) -> None:
        fs.mkdir("a/b/c")
        assert fs.list("a/b/c") == ()
        assert [entry.kind for entry in fs.list("a")] == ["directory"]

    def test_mkdir_of_a_directory_that_exists_changes_nothing(self, fs: Filesystem) -> None:
        fs.write("dir/file", "")
        fs.mkdir("dir")
        assert fs.exists("dir/file")

    def test_mkdir_refuses_a_directory_that_exists_if_asked(self, fs: Filesystem) -> None:
        fs.mkdir("dir")
        with pytest.raises(FileExistsError):
            fs.mkdir("dir", exist_ok=False)

    @pytest.mark.parametrize("exist_ok", [True, False])
    def test_mkdir_refuses_a_file_that_exists(self, fs: Filesystem, exist_ok: bool) -> None:
        fs.write("file", "old")
        with pytest.raises(FileExistsError):
            fs.mkdir("file", exist_ok=exist_ok)
        assert fs.read("file").content == "old"

    @pytest.mark.parametrize("path", ["file/below", "file/x/below"])
    @pytest.mark.parametrize("parents", [True, False])
    def test_mkdir_below_a_file_is_refused(self, fs: Filesystem, path: str, parents: bool) -> None:
        fs.write("file", "old")
        with pytest.raises(NotADirectoryError):
            fs.mkdir(path, parents=parents)
        assert fs.read("file").content == "old"

    def test_mkdir_without_parents_needs_the_parent(self, fs: Filesystem) -> None:
        with pytest.raises(FileNotFoundError):
            fs.mkdir("a/b", parents=False)
        assert fs.list() == ()
        fs.mkdir("a", parents=False)
        fs.mkdir("a/b", parents=False)
        assert fs.exists("a/b")

    @pytest.mark.parametrize("path", [".", "/", "", "dir/.."])
    def test_mkdir_of_the_root_does_nothing(self, fs: Filesystem, path: str) -> None:
        fs.mkdir(path)
        fs.mkdir(path, exist_ok=False)
        assert fs.list() == ()
