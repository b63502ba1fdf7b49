"""The words of the documents: a folder over its budget fails, and a README that is cut off."""

from pathlib import Path

import pytest

from scripts.steps import ROOT
from scripts.words import PAGES, README_COLUMNS, README_LINES, TOTALS, count, problems


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in TOTALS:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "page.md").write_text("# Two\n\nwords | more |\n")
    (tmp_path / "README.md").write_text(f"{'x' * 200}\n```sh\n{'x' * README_COLUMNS}\n```\n")
    return tmp_path


def test_words_are_counted_as_wc_counts_them(project: Path):
    assert count(project, "docs") == {"docs/page.md": 6}  # not those in the folders below it


def test_a_project_within_its_budgets_passes(project: Path):
    assert list(problems(project)) == []


@pytest.mark.parametrize("folder", TOTALS)
def test_a_folder_over_its_budget_fails_and_says_by_how_much(project: Path, folder: str):
    (project / folder / "long.md").write_text("word " * (TOTALS[folder] - 3))
    [problem] = problems(project)
    assert problem == f"{folder}: {TOTALS[folder] + 3:,} words, 3 more than {TOTALS[folder]:,}"


def test_a_readme_that_is_too_long_fails(project: Path):
    (project / "README.md").write_text("line\n" * (README_LINES + 2))
    assert list(problems(project)) == [f"README.md: {README_LINES + 2} lines, 2 more than 120"]


def test_a_line_of_code_that_the_page_cuts_off_fails_with_its_number(project: Path):
    (project / "README.md").write_text(f"```sh\nls\n{'x' * 77}\n```\n{'x' * 99}\n")
    assert list(problems(project)) == ["README.md:3: 77 characters of code, at most 76"]


def test_every_page_is_in_a_folder_with_a_budget():
    assert {name.rpartition("/")[0] for name in PAGES} <= set(TOTALS)
    assert all((ROOT / folder).is_dir() for folder in TOTALS)
