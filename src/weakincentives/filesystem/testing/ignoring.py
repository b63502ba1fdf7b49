"""Searches that honour `.gitignore` and `.ignore` files when they are asked to."""

import pytest

from weakincentives.filesystem import BaseFilesystem
from weakincentives.filesystem.testing.contract import ConformanceSuite

_RULES: dict[str, tuple[dict[str, str], list[str]]] = {
    "no rules": ({}, ["a.log", "a.py", "build/b.py", "src/build/c.py", "src/d.log"]),
    "a name at any depth": ({".gitignore": "*.log\n"}, ["a.py", "build/b.py", "src/build/c.py"]),
    "a directory": ({".gitignore": "build/\n"}, ["a.log", "a.py", "src/d.log"]),
    "an anchored directory": (
        {".gitignore": "/build/\n"},
        ["a.log", "a.py", "src/build/c.py", "src/d.log"],
    ),
    "brought back": (
        {".gitignore": "*.log\n!a.log\n"},
        ["a.log", "a.py", "build/b.py", "src/build/c.py"],
    ),
    "a file below": ({"src/.gitignore": "*.log\nbuild\n"}, ["a.log", "a.py", "build/b.py"]),
    "the inner one wins": (
        {".gitignore": "*.log\n", "src/.gitignore": "!d.log\n"},
        ["a.py", "build/b.py", "src/build/c.py", "src/d.log"],
    ),
    "the other file": ({".ignore": "*.py\r\n# a comment\r\n"}, ["a.log", "src/d.log"]),
    "everything": ({".gitignore": "*\n"}, []),
}


class IgnoreFileTests(ConformanceSuite):
    """`glob` and `grep` with `use_ignore_files=True`."""

    @pytest.mark.parametrize(("files", "expected"), _RULES.values(), ids=_RULES)
    def test_what_ignore_files_exclude_is_left_out(
        self, fs: BaseFilesystem, files: dict[str, str], expected: list[str]
    ) -> None:
        _plant(fs, files)
        found = fs.glob("**/[!.]*", use_ignore_files=True)
        assert [match.path for match in found] == expected
        found = fs.grep("word", use_ignore_files=True)
        assert [match.path for match in found] == expected

    def test_ignore_files_are_not_read_unless_asked(self, fs: BaseFilesystem) -> None:
        _plant(fs, {".gitignore": "*\n"})
        assert len(fs.grep("word")) == 5
        assert len(fs.glob("**")) == 7

    def test_rules_above_the_base_count(self, fs: BaseFilesystem) -> None:
        _plant(fs, {".gitignore": "*.log\n"})
        found = fs.glob("**", path="src", use_ignore_files=True)
        assert [match.path for match in found] == ["src/build/c.py"]

    @pytest.mark.parametrize(
        "text", ["x" * 48_000, "é" * 48_000, "word\n" * 5_000, "\\", "[", "\0"]
    )
    def test_a_search_survives_any_ignore_file(self, fs: BaseFilesystem, text: str) -> None:
        _plant(fs, {".gitignore": text})
        assert "a.py" in [match.path for match in fs.glob("*", use_ignore_files=True)]
        assert len(fs.grep("word", path="src", use_ignore_files=True)) == 2

    def test_the_repository_itself_is_skipped(self, fs: BaseFilesystem) -> None:
        _plant(fs, {})
        assert fs.exists(".git/config")
        assert fs.glob(".git/*", use_ignore_files=True) == ()
        assert len(fs.glob(".git/*")) == 1


def _plant(fs: BaseFilesystem, files: dict[str, str]) -> None:
    for path in ("a.py", "a.log", "build/b.py", "src/d.log", "src/build/c.py"):
        fs.write(path, "word")
    fs.write(".git/config", "")
    for path, text in files.items():
        fs.write(path, text)
