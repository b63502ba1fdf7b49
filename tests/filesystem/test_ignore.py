"""Ignore files: the same answers as git."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from weakincentives.filesystem.ignore import IgnoreRules

NAMES = [
    "a",
    "b",
    "ab",
    "build",
    "x.py",
    "x.pyc",
    "y.log",
    "foo bar",
    "#c",
    "!d",
    "[e]",
    "Z",
    "a\\",
]
LINES = [
    "a", "/a", "a/", "/a/", "*.pyc", "!x.pyc", "build/", "!build/", "**/b", "a/**", "a/**/b", "a/b",
    "*", "!*/", "/*", "!/a", "!/b/", "# comment", "", "  ", r"\#c", r"\!d", "foo\\ bar", "foo bar ",
    "[ab]", "[!a]", "[a-c]*", "*.*", "?", "x.???", "!*.py", "*.log", "**", "**/", "/**/ab", "a*/",
    r"\[e]", "é", "[[:upper:]]", "[", "a\\", "[z-a]", "ab/x.py", "!a/x.py", "b/*", "!b/a",
]  # fmt: skip


def test_a_question_mark_is_one_character_where_git_takes_one_byte() -> None:
    assert rules(("", "?")).ignores("é", is_directory=False)


def rules(*files: tuple[str, str]) -> IgnoreRules:
    found = IgnoreRules()
    for directory, text in files:
        found = found.child(directory, text)
    return found


def make_tree(root: Path, chance: random.Random) -> None:
    """Directories three deep, each with some names and perhaps an ignore file."""
    pending = [(root, 0)]
    while pending:
        directory, depth = pending.pop()
        if depth == 0 or chance.random() < 0.4:
            lines = chance.choices(LINES, k=chance.randint(1, 6))
            (directory / ".gitignore").write_text("\n".join(lines) + "\n")
        for name in chance.sample(NAMES, 5):
            if depth < 3 and chance.random() < 0.5:
                (directory / name).mkdir()
                (directory / name / "kept").touch()
                pending.append((directory / name, depth + 1))
            else:
                (directory / name).touch()


def ours(root: Path) -> tuple[set[str], set[str]]:
    """What a walk asks about, and what it is told to leave out."""
    asked: set[str] = set()
    ignored: set[str] = set()
    pending = [("", IgnoreRules())]
    while pending:
        directory, inherited = pending.pop()
        file = root / directory / ".gitignore"
        known = inherited.child(directory, file.read_text() if file.exists() else None)
        for entry in os.scandir(root / directory):
            path = f"{directory}/{entry.name}" if directory else entry.name
            if path == ".git":
                continue
            asked.add(path)
            if known.ignores(path, is_directory=entry.is_dir()):
                ignored.add(path)
            elif entry.is_dir():
                pending.append((path, known))
    return asked, ignored


def gits(root: Path, asked: set[str]) -> set[str]:
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=", "check-ignore", "-z", "--stdin", "--no-index"],
        input="\0".join(sorted(asked)).encode(),
        cwd=root,
        capture_output=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    return {path.decode() for path in done.stdout.split(b"\0") if path}


@pytest.mark.parametrize("seed", range(40))
def test_the_answers_are_those_of_git(tmp_path: Path, seed: int) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    make_tree(tmp_path, random.Random(seed))
    asked, ignored = ours(tmp_path)
    assert ignored == gits(tmp_path, asked)


def test_without_rules_only_git_itself_is_ignored() -> None:
    assert IgnoreRules().ignores(".git", is_directory=True)
    assert IgnoreRules().ignores("a/.git", is_directory=False)
    assert not IgnoreRules().ignores("a/.github", is_directory=True)
    assert not rules(("", "!.git")).ignores("a", is_directory=True)
    assert rules(("", "!.git")).ignores(".git", is_directory=True)


def test_a_directory_rule_is_for_directories() -> None:
    known = rules(("", "build/"))
    assert known.ignores("a/build", is_directory=True)
    assert not known.ignores("a/build", is_directory=False)


def test_an_inner_file_overrides_an_outer_one() -> None:
    known = rules(("", "*.log"), ("a", "!keep.log"))
    assert known.ignores("a/other.log", is_directory=False)
    assert not known.ignores("a/keep.log", is_directory=False)


def test_a_slash_in_a_rule_ties_it_to_the_directory_of_its_file() -> None:
    known = rules(("a", "/b\nc/d"))
    assert known.ignores("a/b", is_directory=False)
    assert known.ignores("a/c/d", is_directory=False)
    assert not known.ignores("a/x/b", is_directory=False)
    assert not known.ignores("a/x/c/d", is_directory=False)


def test_going_deeper_leaves_the_rules_above_as_they_were() -> None:
    outer = rules(("", "*.log"))
    outer.child("a", "!*.log")
    assert outer.ignores("a/x.log", is_directory=False)


def test_a_file_without_rules_changes_nothing() -> None:
    outer = rules(("", "*.log"))
    assert outer.child("a", None) is outer
    assert outer.child("a", "").ignores("a/x.log", is_directory=False)
    assert outer.child("a", "# nothing\n\n").ignores("a/x.log", is_directory=False)


def test_lines_may_end_like_those_of_windows() -> None:
    assert rules(("", "*.log\r\nb\r\n")).ignores("b", is_directory=False)


@pytest.mark.parametrize("bad", ["[", "a\\", "[z-a]", "[[a]", "[a--b]", "[a&&b]", "[[-a]", "[[]"])
def test_a_rule_that_cannot_be_read_does_not_hide_the_others(bad: str) -> None:
    assert rules(("", f"{bad}\n*.log")).ignores("x.log", is_directory=False)


def test_a_name_may_hold_a_line_end_or_bytes_that_are_no_text() -> None:
    known = rules(("", "*.log"))
    assert known.ignores("a\nb/c\n.log", is_directory=False)
    assert known.ignores("a\udcff.log", is_directory=False)
    assert not known.ignores("a\udcff", is_directory=False)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    ["*a" * 60 + "b", "**/a/" * 60 + "b", "[" * 3_000, "*" * 3_000, "a\n" * 20_000, "!" * 99],
)
def test_a_hostile_file_is_read_at_once(text: str) -> None:
    known = rules(("", text + "\n*.log"))
    for path in ("a" * 4_000, "a/" * 200 + "c"):
        known.ignores(path, is_directory=False)
    assert known.ignores("x.log", is_directory=False)
