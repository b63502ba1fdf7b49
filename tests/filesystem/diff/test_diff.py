"""Differences between two states: every kind of change, at a known cost."""

import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    HostFilesystem,
    InMemoryFilesystem,
    ReadableFilesystem,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.diff import renames
from weakincentives.filesystem.diff.changes import Change, StaleDiffError, chunks
from weakincentives.filesystem.diff.diff import Diff, DiffStatistics, LineCount, diff
from weakincentives.filesystem.types import FileStat
from weakincentives.history import hash_content

Fill = Callable[[InMemoryFilesystem], object]


class Watched(InMemoryFilesystem):
    """A filesystem that says what is read of it, and may know git's ids."""

    def __init__(self, *, knows_ids: bool = False) -> None:
        super().__init__()
        self.knows_ids = knows_ids
        self.opened: list[str] = []
        self.looked_up = 0

    def _stable_view(self) -> "Watched":
        return self

    def _lookup(self, path: str) -> FileStat | None:
        self.looked_up += 1
        return super()._lookup(path)

    def _open(self, path: str):
        self.opened.append(path)
        return super()._open(path)

    def _blob_id(self, path: str) -> str | None:
        content = super()._open(path)
        return hash_content(content.size, chunks(content)) if self.knows_ids else None


def filled(fill: Fill | None = None) -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    if fill is not None:
        fill(fs)
    return fs


def entries(
    before: ReadableFilesystem, after: ReadableFilesystem, renames: bool = True
) -> list[str]:
    return [str(change) for change in diff(before, after, renames=renames).entries]


def memory(**files: str) -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    for path, text in files.items():
        fs.write(path, text)
    return fs


CASES: dict[str, tuple[Fill, Fill, list[str]]] = {
    "a file added": (lambda fs: None, lambda fs: fs.write("a", "1"), ["added a"]),
    "a file removed": (lambda fs: fs.write("a", "1"), lambda fs: None, ["removed a"]),
    "a file modified": (
        lambda fs: fs.write("a", "1"),
        lambda fs: fs.write("a", "2"),
        ["modified a"],
    ),
    "a file and its directories": (
        lambda fs: None,
        lambda fs: fs.write("x/y/a", "1"),
        ["added x/", "added x/y/", "added x/y/a"],
    ),
    "an empty directory added": (
        lambda fs: None,
        lambda fs: fs.mkdir("x/y"),
        ["added x/", "added x/y/"],
    ),
    "an empty directory removed": (lambda fs: fs.mkdir("x"), lambda fs: None, ["removed x/"]),
    "a directory emptied": (
        lambda fs: fs.write("x/a", "1"),
        lambda fs: fs.mkdir("x"),
        ["removed x/a"],
    ),
    "permissions": (
        lambda fs: fs._store("a", b"1", permissions=0o600),
        lambda fs: fs._store("a", b"1", permissions=0o755),
        ["mode-changed a (0600 -> 0755)"],
    ),
    "bytes and permissions": (
        lambda fs: fs._store("a", b"1", permissions=0o644),
        lambda fs: fs._store("a", b"2", permissions=0o755),
        ["modified a"],
    ),
    "a link added": (lambda fs: None, lambda fs: fs._make_link("l", "a"), ["added l"]),
    "a link retargeted": (
        lambda fs: fs._make_link("l", "a"),
        lambda fs: fs._make_link("l", "b"),
        ["modified l"],
    ),
    "a file made a link": (
        lambda fs: fs.write("a", "b"),
        lambda fs: fs._make_link("a", "b"),
        ["modified a (file -> symlink)"],
    ),
    "a file made a directory": (
        lambda fs: fs.write("a", "1"),
        lambda fs: fs.write("a/b", "2"),
        ["modified a (file -> directory)", "added a/b"],
    ),
    "a directory made a file": (
        lambda fs: fs.write("a/b", "2"),
        lambda fs: fs.write("a", "1"),
        ["modified a (directory -> file)", "removed a/b"],
    ),
    "a rename": (
        lambda fs: fs.write("x/a", "1"),
        lambda fs: (fs.mkdir("x"), fs.write("b", "1")),
        ["renamed x/a -> b (100 % the same)"],
    ),
    "a link renamed": (
        lambda fs: fs._make_link("l", "a"),
        lambda fs: fs._make_link("m", "a"),
        ["renamed l -> m (100 % the same)"],
    ),
    "a rename with an edit": (
        lambda fs: fs.write("a", "1\n2\n3\n4\n"),
        lambda fs: fs.write("b", "1\n2\n3\nx\n"),
        ["renamed a -> b (75 % the same)"],
    ),
    "too little in common": (
        lambda fs: fs.write("a", "1\n2\n3\n4\n"),
        lambda fs: fs.write("b", "1\nx\ny\nz\n"),
        ["removed a", "added b"],
    ),
    "a link and a file with its bytes": (
        lambda fs: fs._make_link("l", "a"),
        lambda fs: fs.write("m", "a"),
        ["removed l", "added m"],
    ),
    "a program and a file with its bytes": (
        lambda fs: fs._store("a", b"1", permissions=0o755),
        lambda fs: fs._store("b", b"1", permissions=0o644),
        ["removed a", "added b"],
    ),
    "empty files, which are all the same": (
        lambda fs: fs.write("a", ""),
        lambda fs: fs.write("b", ""),
        ["removed a", "added b"],
    ),
    "a copy, which leaves the first": (
        lambda fs: fs.write("a", "1"),
        lambda fs: (fs.write("a", "1"), fs.write("b", "1")),
        ["added b"],
    ),
    "paths in the order of strings": (
        lambda fs: None,
        lambda fs: [fs.write(path, "") for path in ("a/b", "a-b", "a.b", "A")],
        ["added A", "added a/", "added a-b", "added a.b", "added a/b"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_called_what_it_is(case: str):
    before, after, expected = CASES[case]
    result = diff(filled(before), filled(after))
    by_path = sorted(result.entries, key=lambda change: change.path)
    assert list(result.entries) == by_path
    assert sorted(map(str, result.entries)) == sorted(expected)


def test_equal_states_have_no_difference():
    fs = memory(**{"x/a": "1", "b": "2"})
    other = memory(**{"x/a": "1", "b": "2"})
    for result in (diff(fs, fs), diff(fs, other)):
        assert not result
        assert result.entries == ()
        assert result.patch() == ""
        assert str(result) == "0 files changed, 0 insertions(+), 0 deletions(-)"


def test_a_change_has_both_sides():
    (change,) = diff(memory(a="1"), memory(a="12")).entries
    assert isinstance(change, Change)
    assert change.before
    assert change.after
    assert (change.before.size_bytes, change.after.size_bytes) == (1, 2)
    (renamed,) = diff(memory(a="1"), memory(b="1")).entries
    assert (renamed.path, renamed.source, renamed.similarity) == ("b", "a", 100)
    assert renamed.before
    assert renamed.before.path == "a"
    assert change.source is None


def test_only_what_is_below_the_path_is_compared():
    before = memory(**{"x/a": "1", "y": "1"})
    after = memory(**{"x/a": "2", "y": "2"})
    assert [change.path for change in diff(before, after, path="x").entries] == ["x/a"]
    assert [change.path for change in diff(before, after, path="/y").entries] == ["y"]
    after.delete("x", recursive=True)
    assert [change.path for change in diff(before, after, path="x").entries] == ["x", "x/a"]
    with pytest.raises(FileNotFoundError):
        diff(before, after, path="z")


def test_files_of_the_same_name_are_paired_first():
    before = memory(**{"old/a": "1", "old/b": "1", "old/c": "1"})
    after = memory(**{"new/b": "1", "new/x": "1"})
    renamed = [change for change in diff(before, after).entries if change.kind == "renamed"]
    assert [(change.source, change.path) for change in renamed] == [
        ("old/b", "new/b"),
        ("old/a", "new/x"),
    ]


def test_the_most_similar_files_are_paired():
    before = memory(a="1\n2\n3\n4\n", b="1\n2\n3\n5\n")
    after = memory(c="1\n2\n3\n5\n6\n", d="0\n1\n2\n3\n4\n")
    assert entries(before, after) == [
        "renamed b -> c (80 % the same)",
        "renamed a -> d (80 % the same)",
    ]


def test_renames_can_be_left_alone():
    assert entries(memory(a="1"), memory(b="1"), renames=False) == ["removed a", "added b"]


def test_so_many_files_are_not_compared_for_similarity():
    before, after = InMemoryFilesystem(), InMemoryFilesystem()
    for number in range(150):
        before.write(f"old{number}", f"{number}\n" * 9)
        after.write(f"new{number}", f"{number}\n" * 8)
    assert {change.kind for change in diff(before, after).entries} == {"added", "removed"}
    for number in range(10, 150):
        before.delete(f"old{number}")
    assert sum(change.kind == "renamed" for change in diff(before, after).entries) == 10


def test_similarity_is_looked_for_with_a_bounded_number_of_lines(
    monkeypatch: pytest.MonkeyPatch,
):
    before = memory(a="1\n2\n3\n", b="4\n5\n6\n")
    after = memory(c="1\n2\n3\n0\n", d="4\n5\n6\n0\n")
    assert sum(change.kind == "renamed" for change in diff(before, after).entries) == 2
    monkeypatch.setattr(renames, "_MAX_LINES", 3)
    assert entries(before, after) == [
        "removed b",
        "renamed a -> c (75 % the same)",
        "added d",
    ]


def test_a_thousand_equal_files_are_paired_in_order():
    before, after = InMemoryFilesystem(), InMemoryFilesystem()
    for number in range(1_000):
        before.write(f"old{number:04}", "same")
        after.write(f"new{number:04}", "same")
    sources = [(change.source, change.path) for change in diff(before, after).entries]
    assert sources == [(f"old{number:04}", f"new{number:04}") for number in range(1_000)]


@pytest.mark.parametrize("seed", range(4))
def test_the_entries_turn_one_state_into_the_other(seed: int):
    rng = random.Random(seed)
    for _ in range(150):
        before, after = random_state(rng), random_state(rng)
        result = diff(before, after)
        model = described(before)
        new = described(after)
        for change in result.entries:
            if change.before is not None:
                del model[change.before.path]
        for change in result.entries:
            if change.after is not None:
                assert change.path not in model
                model[change.path] = new[change.path]
        assert model == new
        assert bool(result) == (described(before) != new)


def random_state(rng: random.Random) -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    for _ in range(rng.randrange(8)):
        path = "/".join(rng.choice("abc") for _ in range(rng.randrange(1, 4)))
        above = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
        if fs.exists(path) or not all(fs._has_directory(p) or not fs.exists(p) for p in above):
            continue
        kind = rng.randrange(6)
        if kind == 0:
            fs.mkdir(path)
            continue
        for parent in above:
            fs.mkdir(parent)
        if kind == 1:
            fs._make_link(path, rng.choice("xy"))
        else:
            data = b"".join(rng.choice([b"1\n", b"2\n", b"\0"]) for _ in range(rng.randrange(5)))
            fs._store(path, data, permissions=rng.choice([0o644, 0o755, 0o600]))
    return fs


def described(fs: InMemoryFilesystem) -> dict[str, tuple[object, ...]]:
    """Return everything that is compared, by path."""
    return {
        found.path: (
            found.kind,
            found.permissions,
            found.link_target,
            found.is_file and fs.read_bytes(found.path).content,
        )
        for found in fs._walk_tree("")
        if found.path
    }


def test_memory_and_disk_can_be_compared(tmp_path: Path):
    host = HostFilesystem(tmp_path)
    fs = InMemoryFilesystem()
    for each in (host, fs):
        each.write("x/a", "1")
        each.mkdir("y")
    for path in ("x", "y"):
        (tmp_path / path).chmod(0o755)
    (tmp_path / "x/a").chmod(0o644)
    assert entries(host, fs) == []
    host.write("x/a", "2")
    fs._make_link("z", "x")
    assert entries(host, fs) == ["modified x/a", "added z"]
    assert "-2" in diff(host, fs).patch()


def test_special_files_are_entries(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    change = diff(HostFilesystem(tmp_path), InMemoryFilesystem())
    assert [str(each) for each in change.entries] == ["removed pipe"]
    assert change.statistics.files_changed == 1


def test_files_whose_ids_are_known_are_not_read():
    before, after = Watched(knows_ids=True), Watched(knows_ids=True)
    for fs in (before, after):
        fs.write("same", "1")
        fs.write("size", "1" if fs is before else "22")
        fs.write("bytes", "1" if fs is before else "2")
    before.opened.clear()
    after.opened.clear()
    assert entries(before, after) == ["modified bytes", "modified size"]
    assert before.opened == after.opened == []


def test_files_of_another_size_are_not_read():
    before, after = Watched(), Watched()
    for fs in (before, after):
        fs.write("same", "1")
        fs.write("size", "1" if fs is before else "22")
        fs.write("empty", "")
    before.opened.clear()
    assert entries(before, after) == ["modified size"]
    assert before.opened == ["same"]


def test_every_entry_is_looked_up_once():
    before, after = Watched(knows_ids=True), Watched(knows_ids=True)
    for fs in (before, after):
        for number in range(50):
            fs.write(f"d{number % 5}/f{number}", "1")
        fs.looked_up = 0
    diff(before, after)
    assert before.looked_up == after.looked_up == 55


def test_known_ids_pair_renamed_files_without_reading():
    before, after = Watched(knows_ids=True), Watched(knows_ids=True)
    before.write("a", "1")
    after.write("b", "1")
    after.write("c", "2")
    before.opened.clear()
    assert entries(before, after) == ["renamed a -> b (100 % the same)", "added c"]
    assert before.opened == after.opened == []


def test_what_goes_away_during_the_walk_is_no_error():
    class Vanishing(Watched):
        """Loses what it has listed before it is looked into."""

        def _children(self, path: str):
            if path == "d":
                raise FileNotFoundError(path)
            return super()._children(path)

        def _open(self, path: str):
            raise FileNotFoundError(path)

    before, after = Vanishing(), Watched()
    for fs in (before, after):
        fs.write("a", "1")
        fs.write("d/b", "2")
    assert entries(before, after) == ["modified a", "added d/b"]


def test_ids_that_differ_are_believed():
    before, after = Watched(knows_ids=True), Watched(knows_ids=True)
    before.write("a", "1\n2\n")
    after.write("a", "1\n3\n")
    result = diff(before, after)
    assert result.statistics == DiffStatistics(1, 1, 1, 0)


def test_a_deep_tree_is_compared_without_recursion():
    before, after = InMemoryFilesystem(), InMemoryFilesystem()
    path = ""
    for _ in range(1_100):
        path = f"{path}/d" if path else "d"
        before._make_directory(path)
        after._make_directory(path)
    after._store(f"{path}/a", b"1\n")
    (change,) = diff(before, after).entries
    assert change.path == f"{path}/a"
    assert "+1\n" in diff(before, after).patch()
    assert len(diff(InMemoryFilesystem(), after).entries) == 1_101


def test_a_state_in_memory_is_compared_as_it_was():
    before, after = memory(a="1\n"), memory(a="2\n")
    result = diff(before, after)
    after.write("a", "3\n")
    before.delete("a")
    assert "-1\n+2\n" in result.patch()


@pytest.mark.parametrize("act", ["write", "delete"])
@pytest.mark.parametrize("ask", [Diff.patch, Diff.patch_bytes, str], ids=["text", "bytes", "str"])
def test_a_file_that_changed_since_is_not_told_about(
    act: str, ask: Callable[[Diff], object], tmp_path: Path
):
    host = HostFilesystem(tmp_path)
    host.write("a", "1\n2\n")
    result = diff(InMemoryFilesystem(), host)
    if act == "write":
        host.write("a", "1\n2\n3\n")
    else:
        host.delete("a")
    with pytest.raises(StaleDiffError, match="File has changed since it was compared: 'a'"):
        ask(result)


def test_a_time_limit_ends_a_comparison():
    ticks = count()
    fs = memory(**{f"d{number}/a": "1" for number in range(20)})
    with time_limit(10, clock=lambda: next(ticks)), pytest.raises(TimeLimitError):
        diff(fs, InMemoryFilesystem())


def test_the_statistics_count_files_lines_and_binaries():
    before = memory(text="1\n2\n3\n", data="\0", gone="1\n2\n", moved="a\nb\nc\n")
    after = memory(text="1\ntwo\n3\n4\n", data="\0\0", come="x", renamed="a\nb\nc\n")
    before.mkdir("directory")
    result = diff(before, after)
    assert result.statistics == DiffStatistics(
        files_changed=5,
        insertions=3,
        deletions=3,
        binary_files=1,
        files_added=1,
        files_removed=1,
        files_renamed=1,
    )
    counts = dict(zip([change.path for change in result.entries], result.line_counts, strict=True))
    assert counts["text"] == LineCount(2, 1)
    assert counts["data"] == LineCount(is_binary=True)
    assert counts["directory"] == LineCount()


def test_the_summary_is_short_and_readable():
    before = memory(**{"src/a.py": "1\n2\n", "data": "\0", "old": "a\nb\nc\nd\n", "run": "x"})
    after = memory(**{"src/a.py": "1\n3\n4\n", "data": "\0\0", "new": "a\nb\nc\ne\n"})
    after.mkdir("empty")
    after._store("run", b"x", permissions=0o755)
    assert str(diff(before, after)) == (
        "modified data (binary)\n"
        "added empty/\n"
        "renamed old -> new (75 % the same) (+1, -1)\n"
        "mode-changed run (0644 -> 0755)\n"
        "modified src/a.py (+2, -1)\n"
        "4 files changed (1 renamed), 3 insertions(+), 2 deletions(-), 1 binary"
    )


def test_a_long_summary_is_cut():
    after = InMemoryFilesystem()
    for number in range(60):
        after.write(f"f{number:02}", "1\n")
    lines = str(diff(InMemoryFilesystem(), after)).split("\n")
    assert len(lines) == 52
    assert lines[-2:] == [
        "... and 10 more",
        "60 files changed (60 added), 60 insertions(+), 0 deletions(-)",
    ]
    assert repr(diff(after, after)) == "<Diff of 0 entries>"


def test_a_long_summary_names_everything_that_was_removed():
    before, after = InMemoryFilesystem(), InMemoryFilesystem()
    for number in range(60):
        after.write(f"f{number:02}", "1\n")
    for name in ("g", "old/a", "old/deep/b", "old/deep/c", "z"):
        before.write(name, "1\n")
    lines = str(diff(before, after, renames=False)).split("\n")
    assert lines[50:] == [
        "... and 17 more",
        "removed g",
        "removed old/ with 3 files",
        "removed z",
        "65 files changed (60 added, 5 removed), 60 insertions(+), 5 deletions(-)",
    ]


def test_names_in_a_summary_are_shown_escaped():
    after = InMemoryFilesystem()
    after._store("a\nb", b"")
    assert str(diff(InMemoryFilesystem(), after)).split("\n")[0] == "added a\\nb (+0, -0)"
