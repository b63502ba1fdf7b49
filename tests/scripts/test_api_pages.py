"""The API pages: signatures as written, docstrings as Markdown."""

import ast
from pathlib import Path

import pytest

from scripts import api_pages, public_names

PACKAGE = '''"""A package of one page.

With a second paragraph.
"""

from pack.inner import LIMIT, Box, open_box

__all__ = ["LIMIT", "Box", "open_box"]
'''

INNER = '''"""Inside."""

from dataclasses import dataclass

LIMIT: int = 3
"""How many boxes there are."""

@dataclass(frozen=True)
class Box:
    """A box."""

    size: int
    _hidden: int = 0

    def lid(self) -> str:
        """Its lid."""

    def _secret(self) -> None:
        pass

    def test_of_a_suite(self) -> None:
        pass


def open_box(box: Box, /, how: str = "gently", *rest: int, force=False, **more: str) -> Box | None:
    """Open a box.

    Args:
        box: The box, which may
            be large.
        how: The manner.

    Raises:
        ValueError: It is open.

    That is all.
    """
'''


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text(PACKAGE)
    (tmp_path / "pack/inner.py").write_text(INNER)
    monkeypatch.setattr(public_names, "SOURCES", tmp_path)
    public_names.module.cache_clear()
    pages = api_pages.pages()
    public_names.module.cache_clear()
    return pages["reference/api/pack.md"]


def test_a_function_is_shown_as_it_is_written(page: str):
    assert (
        'def open_box(\n    box: Box,\n    /,\n    how: str = "gently",\n    *rest: int,\n'
        "    force=False,\n    **more: str,\n) -> Box | None\n"
    ) in page


def test_sections_of_a_docstring_become_lists(page: str):
    assert "**Args**\n\n- `box`: The box, which may\n    be large.\n- `how`: The manner." in page
    assert "**Raises**\n\n- `ValueError`: It is open.\n\nThat is all." in page


def test_a_class_shows_its_public_fields_and_methods_only(page: str):
    assert "class Box:\n    size: int\n```" in page
    assert "### `Box.lid`" in page
    assert "_hidden" not in page
    assert "_secret" not in page
    assert "test_of_a_suite" not in page


def test_a_value_shows_its_type_value_and_explanation(page: str):
    assert "LIMIT: int = 3\n```\n\nHow many boxes there are." in page
    assert "- [`LIMIT`](#limit): How many boxes there are." in page


def test_python_files_outside_of_packages_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("pack/__init__.py", "pack/data/bundled/__init__.py", "pack/data/bundled/one.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("__all__ = ['x']\n")
    monkeypatch.setattr(public_names, "SOURCES", tmp_path)
    public_names.module.cache_clear()
    found = [each.name for each in public_names.public_modules()]
    public_names.module.cache_clear()
    assert found == ["pack"]


def test_a_name_that_is_defined_nowhere_is_an_error():
    empty = public_names.Module("m", "", ast.parse(""))
    with pytest.raises(LookupError, match=r"'m\.x'"):
        public_names.definition_of(empty, "x")
