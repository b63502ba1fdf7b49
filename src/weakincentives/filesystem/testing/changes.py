"""Changes that every kind of undo must take back, and the checks that it does.

Savepoints, snapshots and archives differ in how a state is kept; what must come back is the same.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    FilesystemEvent,
    LimitExceededError,
    Limits,
)
from weakincentives.filesystem.testing.contract import (
    NAMES,
    STRANGE_NAMES,
    LimitedSuite,
    PlantingSuite,
    read_state,
)

F = TypeVar("F", bound=Filesystem)
B = TypeVar("B", bound=BaseFilesystem)
Undo: TypeAlias = Callable[[], object]
"""Restores a state that was kept."""
Check: TypeAlias = Callable[[Any, Callable[[Any], Undo]], None]
"""Checks a filesystem, with a function that keeps its state."""
QuotaCheck: TypeAlias = Callable[[LimitedSuite, Path, Callable[[BaseFilesystem], Undo]], None]
"""The same for filesystems with limits."""
Tree: TypeAlias = Mapping[str, str | bytes]
"""Files by path; a path with a slash at the end is a directory."""

EVERY_BYTE = bytes(range(256)) * 20
LINK_TARGETS = ("gone", "/etc/passwd", "..", "../../out", ".", "link 5", "a b/é", "x" * 300)
# those at even places are deleted and written again: an ordinary user may not overwrite 0o444
PERMISSIONS = (0o644, 0o755, 0o444, 0o600, 0o700, 0o777, 0o640)
_ENTRY_KINDS = ("file", "directory", "symlink", "nothing")
_CONTENTS = {
    "nothing": b"",
    "every byte": EVERY_BYTE,
    "line ends": b"a\r\nb\rc\n\n",
    "no last newline": b"a\nb",
    "byte order mark": b"\xef\xbb\xbfa\n",
    "no text": b"\xff\xfe\0\xe9",
    "head of a blob": b"blob 3\0abc",
    "keyword of git": b"$Id$\n",
    "long": b"x" * 40_000,
}


def write_sample(fs: Filesystem) -> None:
    """Write a sample tree with entries of every sort."""
    fs.write("README.md", "# Read me")
    fs.write("src/main.py", "print()\r\n")
    fs.write_bytes("src/data.bin", EVERY_BYTE)
    fs.write("src/nothing", "")
    fs.write(".gitignore", "*\n")
    fs.write(".gitattributes", "* text eol=crlf filter=none\n")
    fs.write("vendor/.git/HEAD", "ref: refs/heads/main")
    fs.mkdir("empty/below")


def change_sample(fs: Filesystem) -> None:
    """Change the tree of `write_sample`: contents, kinds, additions and deletions."""
    fs.write("README.md", "# Red me?")
    fs.write("src/main.py", "exit()\n", mode="append")
    fs.delete("src/data.bin")
    fs.mkdir("src/data.bin")
    fs.delete("vendor", recursive=True)
    fs.write("vendor", "a file now")
    fs.delete("empty", recursive=True)
    fs.delete(".gitignore")
    fs.write("new/deep/file", "new")
    fs.mkdir("new/empty")


@dataclass(frozen=True, slots=True)
class TreeChange:
    """How a tree is written, and how it is then changed."""

    prepare: Callable[[Any], object]
    apply: Callable[[Any], object]


Planted: TypeAlias = Callable[[PlantingSuite], TreeChange]
"""A change of entries that a suite makes."""


def replaced(before: Tree, *, delete: Iterable[str] = (), write: Tree | None = None) -> TreeChange:
    """Return the change from a tree: some paths deleted, then others written."""

    def apply(fs: Filesystem) -> None:
        for path in delete:
            fs.delete(path, recursive=True)
        _write_tree(fs, write or {})

    return TreeChange(lambda fs: _write_tree(fs, before), apply)


def _write_tree(fs: Filesystem, tree: Tree) -> None:
    for path, content in tree.items():
        if path.endswith("/"):
            fs.mkdir(path)
        elif isinstance(content, bytes):
            fs.write_bytes(path, content)
        else:
            fs.write(path, content)


def _skip(fs: Filesystem) -> None:
    """Change nothing."""


_DEEP = "/".join("d" * 16)
SAMPLE_CHANGE = TreeChange(write_sample, change_sample)
CHANGES: dict[str, TreeChange] = {
    "sample": SAMPLE_CHANGE,
    "nothing": TreeChange(write_sample, _skip),
    "from nothing": TreeChange(_skip, write_sample),
    "empty directories": replaced(
        {"kept/": "", "deleted/below/": ""}, delete=["deleted"], write={"kept/file": ""}
    ),
    "new empty directories": replaced({"dir/": ""}, write={"dir/new/": "", "new/below/": ""}),
    "kinds": replaced(
        {"dir/below": "file below a directory", "file": "file"},
        delete=["dir", "file"],
        write={"dir": "file", "file/below": "file below a directory"},
    ),
    "deepest path": replaced({_DEEP: "deep"}, delete=["d"]),
    **{
        content: replaced(
            {"changed": data, "deleted": data},
            delete=["deleted"],
            write={"changed": bytes(len(data)) + b"!"},
        )
        for content, data in _CONTENTS.items()
    },
    "any name": replaced({f"{name}/{name}": name for name in NAMES}, delete=NAMES),
    "names that differ in case": replaced(
        {"name": "lower", "NAME": "upper"}, delete=["name"], write={"NAME": "changed"}
    ),
}
"""Changes that any filesystem allows."""


def _change_kind(suite: PlantingSuite, then: str, now: str) -> TreeChange:
    """Return the change of an entry from one kind to another, or of its content."""

    def prepare(fs: BaseFilesystem) -> None:
        suite.make_link(fs, "then", "target then")
        suite.make_link(fs, "now", "target now")
        _make_entry(fs, then, "then")

    def apply(fs: BaseFilesystem) -> None:
        if then != "nothing":
            fs.delete("entry", recursive=True)
        _make_entry(fs, now, "now")

    return TreeChange(prepare, apply)


def _make_entry(fs: BaseFilesystem, kind: str, text: str) -> None:
    if kind == "file":
        fs.write("entry", text)
    elif kind == "directory":
        fs.write("entry/below", text)
    elif kind == "symlink":
        fs.copy(text, "entry")


def _change_links(suite: PlantingSuite) -> TreeChange:
    """Return a change of links to each of `LINK_TARGETS`: deleted, replaced, added."""

    def prepare(fs: BaseFilesystem) -> None:
        for number, target in enumerate(LINK_TARGETS):
            suite.make_link(fs, f"link {number}", target)
        suite.make_link(fs, "other", "elsewhere")

    def apply(fs: BaseFilesystem) -> None:
        for number in range(0, len(LINK_TARGETS), 2):
            fs.delete(f"link {number}")
        fs.write("link 0", "text")
        fs.delete("link 1")
        fs.copy("other", "link 1")
        fs.copy("other", "new")

    return TreeChange(prepare, apply)


def _change_permissions(suite: PlantingSuite) -> TreeChange:
    """Return a change of files with each of `PERMISSIONS`: written again, or replaced."""

    def prepare(fs: BaseFilesystem) -> None:
        for permissions in PERMISSIONS:
            suite.make_file(fs, f"{permissions:o}", b"text", permissions)
        suite.make_file(fs, "other", b"text", 0o711)

    def apply(fs: BaseFilesystem) -> None:
        for permissions in PERMISSIONS[::2]:
            fs.delete(f"{permissions:o}")
            fs.write(f"{permissions:o}", "text")
        for permissions in PERMISSIONS[1::2]:
            fs.copy("other", f"{permissions:o}", overwrite=True)

    return TreeChange(prepare, apply)


def _change_strange_names(suite: PlantingSuite, operation: str) -> TreeChange:
    """Return a change of files with each of `STRANGE_NAMES`: deleted or written."""

    def prepare(fs: BaseFilesystem) -> None:
        for name in STRANGE_NAMES:
            suite.make_file(fs, name, name.encode(errors="surrogateescape"))

    def apply(fs: BaseFilesystem) -> None:
        for name in STRANGE_NAMES:
            if operation == "delete":
                fs.delete(name)
            else:
                fs.write(name, "new")

    return TreeChange(prepare, apply)


PLANTED_CHANGES: dict[str, Planted] = {
    "links": _change_links,
    "permissions": _change_permissions,
    **{
        f"strange names {operation}": partial(_change_strange_names, operation=operation)
        for operation in ("delete", "write")
    },
    **{
        f"{then} to {now}": partial(_change_kind, then=then, now=now)
        for then in _ENTRY_KINDS
        for now in _ENTRY_KINDS
    },
}
"""Changes of entries that the protocol does not create."""


def check_undo(fs: F, change: TreeChange, keep: Callable[[F], Undo]) -> None:
    """Check that a change is undone completely."""
    change.prepare(fs)
    before = read_state(fs)
    undo = keep(fs)
    change.apply(fs)
    undo()
    assert read_state(fs) == before


def _check_results(fs: F, keep: Callable[[F], Undo]) -> None:
    """Check that pages, hashes and searches are of the state that came back."""
    fs.write("file", "one\ntwo\nthree\n")
    before = fs.stat("file").content_hash
    for text in ("four\nfive\nsix\n", "four\nfive\n"):  # the first has the same size
        undo = keep(fs)
        fs.write("file", text)
        assert fs.read("file", offset=1).content == text.removeprefix("four\n")
        undo()
        page = fs.read("file", offset=1)
        assert (page.content, page.total_lines) == ("two\nthree\n", 3)
        assert (fs.stat("file").size_bytes, fs.stat("file").content_hash) == (14, before)
        assert [match.line_number for match in fs.grep("t")] == [2, 3]


def _check_later_changes(fs: F, keep: Callable[[F], Undo]) -> None:
    """Check that the state that came back can be changed."""
    write_sample(fs)
    undo = keep(fs)
    change_sample(fs)
    undo()
    fs.write("README.md", ".", mode="append")
    fs.write("empty/below/file", "text")
    fs.delete("src/data.bin")
    fs.delete("vendor", recursive=True)
    assert fs.read("README.md").content == "# Read me."
    assert [match.path for match in fs.grep("text")] == [".gitattributes", "empty/below/file"]
    assert [match.path for match in fs.glob("[!.]*/**")] == [
        "empty/below/file",
        "src/main.py",
        "src/nothing",
    ]


RESULT_CHECKS: dict[str, Check] = {
    "pages, hashes, searches": _check_results,
    "later changes": _check_later_changes,
}
"""Checks that the state that came back is like any other."""


def record_undo(fs: B, keep: Callable[[B], Undo]) -> list[tuple[FilesystemEvent, str, int]]:
    """Undo a change; return each event with the text and the number of files seen at it."""
    fs.write("file", "then")
    undo = keep(fs)
    fs.write("file", "now")
    fs.write("dir/other", "")
    received: list[tuple[FilesystemEvent, str, int]] = []
    fs.subscribe(
        lambda event: received.append((event, fs.read("file").content, len(fs.glob("**"))))
    )
    undo()
    return received


_QUOTA = Limits(max_total_bytes=10, max_files=2)


def _check_quota(
    suite: LimitedSuite, tmp_path: Path, keep: Callable[[BaseFilesystem], Undo]
) -> None:
    """Check that a quota counts the state that came back."""
    fs = suite.make_limited(tmp_path, _QUOTA)
    fs.write("a", "1234567890")
    undo = keep(fs)
    fs.delete("a")
    fs.write("b", "1")
    undo()
    with pytest.raises(LimitExceededError, match="quota"):
        fs.write("c", "1")
    assert [entry.name for entry in fs.list()] == ["a"]


def _check_room(
    suite: LimitedSuite, tmp_path: Path, keep: Callable[[BaseFilesystem], Undo]
) -> None:
    """Check that what an undo removed makes room in a quota."""
    fs = suite.make_limited(tmp_path, _QUOTA)
    for _ in range(3):
        undo = keep(fs)
        fs.write("dir/a", "1234567890")
        undo()
    fs.write("dir/b", "1234567890")
    assert fs.read("dir/b").content == "1234567890"


QUOTA_CHECKS: dict[str, QuotaCheck] = {"growth": _check_quota, "room": _check_room}
"""Checks that a quota counts what came back, and not what an undo removed."""
