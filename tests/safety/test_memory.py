"""Huge files cost as much memory as is shown of them."""

import hashlib
from pathlib import Path

import pytest

from tests.safety.measured import MEGABYTE, measure
from weakincentives.filesystem import HostFilesystem

GIANT = 1024 * MEGABYTE
LINE = b"%07d " + b"x" * 91 + b"\n"
LINES = 1_000_000
SEARCH = 80 * MEGABYTE  # a block, what is made of it, and the automaton
PAGE = 16 * MEGABYTE


@pytest.fixture
def giant_line(directory: Path) -> Path:
    """One line of a gigabyte, most of it a hole in the file."""
    with (directory / "giant").open("wb") as file:
        file.write(b"b" * 20 * 1024 + b"c" + b"x" * 64 * 1024)
        file.seek(GIANT)
        file.write(b"needle")
    return directory


@pytest.fixture
def large(light_directory: Path) -> Path:
    """A million lines, 100 MB."""
    with (light_directory / "large").open("wb") as file:
        for number in range(0, LINES, 10_000):
            file.write(b"".join(LINE % each for each in range(number, number + 10_000)))
    return light_directory


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_searched_in_bounded_memory(giant_line: Path) -> None:
    found = measure("grep_giant_line", giant_line)
    assert found.result == [1, False, 2_000]
    assert found.grown < SEARCH


def test_a_binary_gigabyte_is_skipped_in_bounded_memory(directory: Path) -> None:
    with (directory / "giant").open("wb") as file:
        file.write(b"text\0")
        file.truncate(GIANT)
    found = measure("grep_giant_binary", directory)
    assert found.result == 0
    assert found.grown < SEARCH


@pytest.mark.slow
def test_one_page_of_a_large_file_costs_one_page(large: Path) -> None:
    found = measure("read_page", large)
    assert found.result == [10_000, "0900000", True]
    page = measure("read_bytes_page", large)
    assert page.result == [4_096, True]
    assert found.grown < PAGE
    assert page.grown < PAGE


@pytest.mark.slow
def test_one_page_of_a_large_file_in_a_snapshot_costs_one_page(large: Path) -> None:
    with HostFilesystem(large) as fs:
        fs.snapshot()
        found = measure("view_pages", large)
        fs.cleanup()
    assert found.result == [LINES, 200_000, "0900000", LINES * 100]
    assert found.grown < PAGE


@pytest.mark.slow
def test_whole_files_are_hashed_copied_and_appended_to_piece_by_piece(large: Path) -> None:
    digest = hashlib.sha256((large / "large").read_bytes()).hexdigest()
    hashed = measure("hash_large", large)
    assert hashed.result == [digest, True]
    assert hashed.grown < PAGE
    copied = measure("copy_large", large)
    assert copied.result == LINES * 100
    assert copied.grown < PAGE
    appended = measure("append_large", large)
    assert appended.result == LINES * 100 + 4
    assert appended.grown < PAGE


def test_an_ignore_file_of_a_gigabyte_is_no_bomb(directory: Path) -> None:
    with (directory / ".gitignore").open("wb") as file:
        file.write(b"*.log\n")
        file.truncate(GIANT)
    (directory / "a.txt").write_text("")
    found = measure("ignore_giant", directory)
    assert isinstance(found.result, list)
    assert "a.txt" in found.result
    assert found.grown < SEARCH


def test_an_endless_path_is_no_bomb(directory: Path) -> None:
    found = measure("long_paths", directory)
    missing, deep = "FileNotFoundError", "LimitExceededError"
    each = [missing] * 4 + [deep] * 2 + [missing] * 3 + [deep] * 2 + ["False"]
    assert found.result == each * 2
    assert found.grown < SEARCH
