"""Corpora are built once, checked before use, and never shared with another user."""

import pytest

from benchmarks import corpus


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus.tempfile, "tempdir", str(tmp_path))


def test_a_synthetic_tree_has_the_files_it_promises() -> None:
    tree = corpus.synthetic(250)
    assert tree.files == len(tree.paths()) == 250
    assert tree.paths()[-1] == "few/g9.py"
    assert tree.contents() == dict(corpus.synthetic_files(250))


def test_a_tree_is_reused() -> None:
    first = corpus.synthetic(50)
    mark = (first.root / "few").stat().st_ino
    assert (corpus.synthetic(50).root / "few").stat().st_ino == mark


def test_a_damaged_tree_is_built_again() -> None:
    tree = corpus.synthetic(50)
    (tree.root / "few/g3.py").unlink()
    assert "few/g3.py" in corpus.synthetic(50).paths()


def test_a_cache_behind_a_link_is_refused(tmp_path) -> None:
    place = corpus.cache_directory()
    place.rmdir()
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="somebody else"):
        corpus.cache_directory()


def test_cleaning_removes_every_tree() -> None:
    tree = corpus.synthetic(50)
    corpus.clean()
    assert not tree.root.exists()


def test_the_part_of_the_library_holds_source_and_no_compiled_files() -> None:
    paths = corpus.standard_library(part=True).paths()
    assert "json/decoder.py" in paths
    assert not any("__pycache__" in path for path in paths)
