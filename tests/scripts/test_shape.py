"""The figures about the source tree."""

from pathlib import Path

import pytest

from scripts.shape import (
    Tree,
    budget,
    class_checks,
    measure_all,
    only_children,
    packages,
    past_the_door,
)
from scripts.walks import WALKS, measure

FILESYSTEM = """
from typing import Protocol

class Movable(Protocol): ...
class HostFilesystem: ...
class ReadableFilesystem(HostFilesystem): ...
"""
CALLER = """
def run(fs, other):
    if isinstance(fs, Movable):
        return isinstance(other, HostFilesystem)
    return isinstance(fs, (Movable, ReadableFilesystem)) or isinstance(fs, OtherFilesystem)
"""


def test_only_checks_on_classes_count(tmp_path: Path):
    package = tmp_path / "weakincentives"
    (package / "filesystem").mkdir(parents=True)
    (package / "filesystem" / "base.py").write_text(FILESYSTEM)
    (package / "filesystem" / "use.py").write_text(CALLER)
    (package / "caller.py").write_text(CALLER)
    assert class_checks(Tree(package)) == ["weakincentives.caller:4", "weakincentives.caller:5"]


def test_lines_and_modules_are_counted_by_folder_and_by_module(tmp_path: Path):
    for name, lines in {"mcp/a.py": 3, "mcp/b/c.py": 4, "mcps.py": 5, "cli/runs.py": 6}.items():
        path = tmp_path / "weakincentives" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * lines)
    tree = Tree(tmp_path / "weakincentives")
    assert packages(tree) == [("cli", 6, 1), ("mcp", 7, 2), ("mcps.py", 5, 1)]
    rows = {row.name.partition(":")[0]: (row.value, modules) for row, modules in budget(tree)}
    assert (rows["mcp"], rows["cli"], rows["gitstore"]) == ((7, 2), (6, 1), (0, 0))
    assert rows["undo, all of it"] == (13, 3)
    assert (tree.lines, tree.files) == (18, 4)


def test_only_imports_of_modules_go_past_the_door_of_a_package(tmp_path: Path):
    history = tmp_path / "weakincentives" / "history"
    history.mkdir(parents=True)
    (history / "__init__.py").write_text("from weakincentives.history.change import change\n")
    (history / "change.py").write_text("def change(): ...\n")
    (history / "log.py").write_text("")
    by_the_door = "from weakincentives.history import change\n"
    (tmp_path / "weakincentives" / "a.py").write_text(by_the_door)
    past_it = "from weakincentives.history.change import change\n"
    (tmp_path / "weakincentives" / "b.py").write_text(past_it)
    (tmp_path / "weakincentives" / "c.py").write_text("from weakincentives.history import log\n")
    assert past_the_door(Tree(tmp_path / "weakincentives")) == [
        "weakincentives.b -> weakincentives.history.change",
        "weakincentives.c -> weakincentives.history.log",
    ]


REEXPORT = """Names of the specification: the store."""
FROM_STORE = "from weakincentives.a.store import Store\n"


@pytest.mark.parametrize(
    ("text", "repeated", "only"),
    [
        (f'"""{REEXPORT}"""\n{FROM_STORE}__all__ = ["Store"]\n', 0, ["weakincentives.a.store"]),
        (f'"""{REEXPORT}"""\n{FROM_STORE}class Other: ...\n', 1, []),  # it has code of its own
        (f'"""The store."""\n{FROM_STORE}__all__ = ["Store"]\n', 1, []),  # nothing says so
    ],
)
def test_reexports_of_specified_names_count_neither_as_repeated_nor_as_children(
    tmp_path: Path, text: str, repeated: int, only: list[str]
):
    package = tmp_path / "weakincentives"
    (package / "a").mkdir(parents=True)
    (package / "store.py").write_text(text)
    (package / "a" / "store.py").write_text("class Store: ...\n")
    (package / "a" / "user.py").write_text(FROM_STORE)
    (package / "user.py").write_text("from weakincentives.store import Store\n")
    tree = Tree(package)
    assert measure_all(tree, {})["module names used twice"] == 1 + repeated  # `user` is the other
    assert [each for each in only_children(tree) if each.endswith("a.store")] == only


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_counts_what_runs(name: str):
    modules, functions = measure(name)
    assert 10 < modules < functions
