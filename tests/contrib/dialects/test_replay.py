"""The same editing script leaves the same files, in every dialect and on every backend."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contrib.dialects.replay import Replay, apply_request, tree, tree_hash
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    InsertTextParams,
    MoveParams,
    RmParams,
    TextEdit,
    WriteFileParams,
)
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem

NAMES: tuple[DialectName, ...] = get_args(DialectName)

APP = """\
\"\"\"A small program.\"\"\"


def greet(name):
    print("Hi", name)
    return name


def part(name):
    print("Bye", name)


if __name__ == "__main__":
    greet("you")
"""

SCRIPT: tuple[Any, ...] = (
    WriteFileParams("src/app.py", APP),
    WriteFileParams("docs/guide/notes.md", "# Notes\n\n- one\n- two\n"),
    WriteFileParams("no-newline.txt", "first\nlast"),
    WriteFileParams("empty.txt", ""),
    WriteFileParams("old/unused.txt", "nobody reads this\n"),
    WriteFileParams("old/kept.txt", "to be renamed\n"),
    # one edit
    EditFileParams("src/app.py", '    print("Hi", name)', '    print("Hello", name)'),
    # several
    EditFileParams(
        "src/app.py",
        edits=(TextEdit("def part(name):", "def leave(name):"), TextEdit('"Bye"', '"Goodbye"')),
    ),
    # everywhere
    EditFileParams("src/app.py", "name)", "who)", replace_all=True),
    InsertTextParams("docs/guide/notes.md", 3, "- one and a half\n"),
    InsertTextParams("docs/guide/notes.md", 0, "<!-- notes -->\n"),
    EditFileParams("no-newline.txt", "last", "end"),
    WriteFileParams("empty.txt", "no longer\n", "overwrite"),
    WriteFileParams("empty.txt", "and more\n", "append"),
    EditFileParams("docs/guide/notes.md", "- two\n", ""),
    RmParams("old/unused.txt"),
    MoveParams("old/kept.txt", "new/place/kept.txt"),
    EditFileParams("new/place/kept.txt", "to be renamed", "renamed"),
)

EXPECTED = {
    "docs": "directory",
    "docs/guide": "directory",
    "docs/guide/notes.md": b"<!-- notes -->\n# Notes\n\n- one\n- one and a half\n",
    "empty.txt": b"no longer\nand more\n",
    "new": "directory",
    "new/place": "directory",
    "new/place/kept.txt": b"renamed\n",
    "no-newline.txt": b"first\nend",
    "old": "directory",
    "src": "directory",
    "src/app.py": (APP.replace("Hi", "Hello").replace("part", "leave").replace("Bye", "Goodbye"))
    .replace("name)", "who)")
    .encode(),
}


@pytest.fixture(params=["memory", "host"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Filesystem]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as made:
        yield made


@pytest.mark.parametrize("dialect", NAMES)
def test_a_script_leaves_the_same_files_in_every_dialect_and_on_every_backend(
    dialect: DialectName, files: Filesystem
):
    Replay(dialect, files).play(*SCRIPT)
    assert tree(files) == EXPECTED
    by_hand = InMemoryFilesystem()
    for path, content in EXPECTED.items():
        if isinstance(content, bytes):
            by_hand.write_bytes(path, content)
    by_hand.mkdir("old", exist_ok=True)
    assert tree_hash(files) == tree_hash(by_hand)


@pytest.mark.parametrize("dialect", [name for name in NAMES if name != "openai"])
def test_removing_a_directory_takes_what_is_in_it_and_nothing_else(
    dialect: DialectName, files: Filesystem
):
    for path in ("a/b/c.txt", "a/d.txt", "ab/e.txt"):
        files.write(path, "x\n")
    Replay(dialect, files).play(RmParams("a"))
    assert tree(files) == {"ab": "directory", "ab/e.txt": b"x\n"}


words = st.sampled_from(["alpha", "beta", "gamma", "delta"])
lines = st.lists(words, min_size=1, max_size=6)


@st.composite
def scripts(draw: st.DrawFn) -> list[Any]:
    """Return random edits of one file, as they would be made by hand."""
    text = "".join(f"{number}: {word}\n" for number, word in enumerate(draw(lines)))
    made: list[Any] = [WriteFileParams("dir/file.txt", text)]
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, text.count("\n") - 1))
        line = text.splitlines(keepends=True)[number]
        word = draw(words)
        request: Any = draw(
            st.sampled_from(
                [
                    InsertTextParams("dir/file.txt", number, f"new {word}\n"),
                    WriteFileParams("dir/file.txt", f"{word}\n", "append"),
                    EditFileParams("dir/file.txt", "a", "A", replace_all=True),
                    EditFileParams("dir/file.txt", line, line.upper() + "!\n"),
                ]
            )
        )
        if isinstance(request, EditFileParams) and (
            text.count(request.old_string or "") != 1 and not (request.replace_all and "a" in text)
        ):
            continue
        made.append(request)
        text = apply_request(text, request)
    return made


@settings(max_examples=25)
@given(script=scripts())
def test_any_script_leaves_the_same_files_in_every_dialect(script: list[Any]):
    trees = {}
    for dialect in NAMES:
        files = InMemoryFilesystem()
        Replay(dialect, files).play(*script)
        trees[dialect] = tree(files)
    assert all(each == trees["wink"] for each in trees.values()), trees
