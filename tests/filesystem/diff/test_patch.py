"""Patches: the real git applies them, and the result is the other state."""

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem, ReadableFilesystem
from weakincentives.filesystem.diff import MAX_TEXT, quote_path
from weakincentives.filesystem.diff.diff import Diff, diff

Tree = dict[str, tuple[str, bytes]]
"""What is at each path: ("100644", data), ("100755", data), ("120000", target)."""

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CEILING_DIRECTORIES": "/",
    "HOME": os.devnull,
}
BINARY = bytes(range(256)) * 5


def git(*arguments: str, cwd: Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=cwd, input=data, capture_output=True, env=ENVIRONMENT)


def memory(tree: Tree) -> InMemoryFilesystem:
    """Return a filesystem that holds `tree`, whatever its names."""
    fs = InMemoryFilesystem()
    for path, (mode, data) in tree.items():
        parents = path.split("/")[:-1]
        for depth in range(len(parents)):
            parent = "/".join(parents[: depth + 1])
            if fs._lookup(parent) is None:
                fs._make_directory(parent)
        if mode == "120000":
            fs._make_link(path, os.fsdecode(data))
        else:
            fs._store(path, data, permissions=0o755 if mode == "100755" else 0o644)
    return fs


def put(tree: Tree, root: Path) -> Path:
    """Write `tree` to a new directory."""
    root.mkdir()
    for path, (mode, data) in tree.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            place.symlink_to(os.fsdecode(data))
        else:
            place.write_bytes(data)
            place.chmod(0o755 if mode == "100755" else 0o644)
    return root


def found(root: Path) -> Tree:
    tree: Tree = {}
    for folder, directories, files in os.walk(root):
        for name in [*directories, *files]:
            place = Path(folder, name)
            path = place.relative_to(root).as_posix()
            if place.is_symlink():
                tree[path] = ("120000", os.fsencode(place.readlink()))
            elif place.is_file():
                mode = "100755" if place.stat().st_mode & 0o100 else "100644"
                tree[path] = (mode, place.read_bytes())
    return tree


def between(before: Tree, after: Tree) -> Diff:
    return diff(memory(before), memory(after))


def applied(patch: bytes, before: Tree, root: Path, *options: str) -> Tree:
    put(before, root)
    result = git("apply", *options, "-", cwd=root, data=patch)
    assert result.returncode == 0, result.stderr.decode() + "\n" + patch.decode(errors="replace")
    return found(root)


CASES: dict[str, tuple[Tree, Tree]] = {
    "a changed line": (
        {"a": ("100644", b"1\n2\n3\n4\n5\n6\n7\n8\n9\n")},
        {"a": ("100644", b"1\n2\n3\n4\nfive\n6\n7\n8\n9\n")},
    ),
    "carriage returns": (
        {"a": ("100644", b"1\r\n2\r\n3\n")},
        {"a": ("100644", b"1\r\ntwo\r\n3\r\n")},
    ),
    "only the line ends": ({"a": ("100644", b"1\n2\n")}, {"a": ("100644", b"1\r\n2\r\n")}),
    "a final newline lost": ({"a": ("100644", b"1\n2\n")}, {"a": ("100644", b"1\n2")}),
    "a final newline gained": ({"a": ("100644", b"1\n2")}, {"a": ("100644", b"1\n2\n")}),
    "no final newline twice": ({"a": ("100644", b"1\n2")}, {"a": ("100644", b"0\n2")}),
    "a byte order mark": (
        {"a": ("100644", b"\xef\xbb\xbf1\n2\n")},
        {"a": ("100644", b"1\n2\n")},
    ),
    "an empty file added": ({"b": ("100644", b"")}, {"b": ("100644", b""), "a": ("100644", b"")}),
    "an empty file removed": ({"a": ("100644", b""), "b": ("100644", b"")}, {"b": ("100644", b"")}),
    "a file emptied": ({"a": ("100644", b"1\n")}, {"a": ("100644", b"")}),
    "a file filled": ({"a": ("100644", b"")}, {"a": ("100644", b"1\n")}),
    "a file added": ({}, {"a": ("100644", b"1\n2\n")}),
    "a program added": ({}, {"a": ("100755", b"#!/bin/sh\n")}),
    "a file removed": ({"a": ("100644", b"1\n2\n")}, {}),
    "in new directories": ({}, {"x/y/z/a": ("100644", b"1\n")}),
    "with its directories": (
        {"x/y/z/a": ("100644", b"1\n"), "b": ("100644", b"")},
        {"b": ("100644", b"")},
    ),
    "made a program": ({"a": ("100644", b"1\n")}, {"a": ("100755", b"1\n")}),
    "a program no more": ({"a": ("100755", b"1\n")}, {"a": ("100644", b"1\n")}),
    "made a program and changed": ({"a": ("100644", b"1\n")}, {"a": ("100755", b"2\n")}),
    "renamed": ({"a": ("100644", b"1\n2\n")}, {"x/b": ("100644", b"1\n2\n")}),
    "renamed and changed": (
        {"a": ("100644", b"1\n2\n3\n4\n5\n")},
        {"x/b": ("100644", b"1\n2\nthree\n4\n5\n")},
    ),
    "a binary file renamed": ({"a": ("100644", BINARY)}, {"b": ("100644", BINARY)}),
    "a link added": ({}, {"a": ("120000", b"../b c")}),
    "a link removed": ({"a": ("120000", b"b")}, {}),
    "a link retargeted": ({"a": ("120000", b"b")}, {"a": ("120000", b"c\nd")}),
    "a link to any bytes": ({"a": ("120000", b"\xff\xfe")}, {"a": ("120000", b"\xfd")}),
    "a link renamed": ({"a": ("120000", b"x")}, {"b": ("120000", b"x")}),
    "a file made a link": ({"a": ("100644", b"1\n")}, {"a": ("120000", b"b")}),
    "a link made a file": ({"a": ("120000", b"b")}, {"a": ("100644", b"1\n")}),
    "a file made a directory": (
        {"a": ("100644", b"1\n"), "a-b": ("100644", b"")},
        {"a/b": ("100644", b"2\n"), "a-b": ("100644", b"")},
    ),
    "a directory made a file": ({"a/b/c": ("100644", b"1\n")}, {"a": ("100644", b"2\n")}),
    "a link made a directory": ({"a": ("120000", b"b")}, {"a/b": ("100644", b"2\n")}),
    "a directory made a link": ({"a/b": ("100644", b"1\n")}, {"a": ("120000", b"c")}),
    "a binary file added": ({}, {"a": ("100644", BINARY)}),
    "a binary file removed": ({"a": ("100644", BINARY)}, {}),
    "a binary file changed": ({"a": ("100644", BINARY)}, {"a": ("100755", BINARY[7:] + b"x")}),
    "a binary file made text": ({"a": ("100644", b"\0")}, {"a": ("100644", b"text\n")}),
    "text made a binary file": ({"a": ("100644", b"text\n")}, {"a": ("100644", b"\0")}),
    "a binary file emptied": ({"a": ("100644", BINARY)}, {"a": ("100644", b"")}),
    "binary files between others": (
        {"a": ("100644", b"1\n"), "b": ("100644", BINARY), "c": ("100644", b"1\n")},
        {"a": ("100644", b"2\n"), "b": ("100644", BINARY * 2), "c": ("100644", b"2\n")},
    ),
    "lines that look like a patch": (
        {"a": ("100644", b"--- a\n+++ b\n@@ -1 +1 @@\ndiff --git a/a b/a\n-- \n")},
        {"a": ("100644", b"++ b\n@@ -1 +1 @@\ndiff --git a/a b/a\n-- x\n\\ No newline\n")},
    ),
    "lone carriage returns and form feeds": (
        {"a": ("100644", b"1\r2\x0c3\x0b4\xc2\x85\n5\n")},
        {"a": ("100644", b"1\r2\x0c3\x0b4\xe2\x80\xa8\n5\n")},
    ),
    "text that is not UTF-8": (
        {"a": ("100644", b"caf\xe9\n1\n")},
        {"a": ("100644", b"caf\xe9\nna\xefve\n")},
    ),
    "names exchanged": (
        {"a": ("100644", b"1\n"), "b": ("100644", b"2\n")},
        {"a": ("100644", b"2\n"), "b": ("100644", b"1\n")},
    ),
}

NAMES = [
    b"with blank",
    b" at the edges ",
    b"directory /with blank /at the end ",
    b"two of them  / ",
    b"blank /and caf\xc3\xa9",
    b'with "quotes"',
    b"with 'quotes'",
    b"with\ttab",
    b"with\nnewline",
    b"with\\backslash",
    b"caf\xc3\xa9",
    b"not utf-8 \xff\xe9",
    b"\x01\x07\x08\x0b\x0c\r\x7f",
    b"a b/b/x b/a b",
    b"-dash",
    b"dev/null",
    b"b/b",
    b"{old => new}",
    b".gitignore",
    b".gitattributes",
    b".gitmodules",
]


@pytest.mark.parametrize("case", CASES)
def test_git_turns_one_state_into_the_other(case: str, tmp_path: Path):
    before, after = CASES[case]
    change = between(before, after)
    patch = change.patch_bytes()
    assert applied(patch, before, tmp_path / "bytes") == after
    assert applied(change.patch().encode(), before, tmp_path / "text") == after
    assert applied(patch, after, tmp_path / "back", "-R") == before


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, ("100644", b"1\n")),
        (None, ("100644", b"")),
        (("100644", b"1\n"), ("100644", b"2\n")),
        (("100644", b"1\n"), ("100755", b"1\n")),
        (("100644", b"\0"), ("100644", b"\1\0")),
        (("100644", b"1\n"), None),
        (("100644", b""), None),
    ],
    ids=["added", "added empty", "changed", "mode", "binary", "removed", "removed empty"],
)
def test_git_finds_a_file_by_any_name(
    name: bytes, old: tuple[str, bytes] | None, new: tuple[str, bytes] | None, tmp_path: Path
):
    path = os.fsdecode(name)
    before: Tree = {} if old is None else {path: old}
    after: Tree = {} if new is None else {path: new}
    patch = between(before, after).patch()
    assert applied(patch.encode(), before, tmp_path / "there") == after


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_git_renames_from_and_to_any_name(name: bytes, tmp_path: Path):
    path = os.fsdecode(name)
    here: Tree = {"plain": ("100644", b"1\n2\n3\n4\n")}
    there: Tree = {path: ("100644", b"1\n2\n3\nfour\n")}
    for number, (before, after) in enumerate([(here, there), (there, here)]):
        change = between(before, after)
        assert [each.kind for each in change.entries if not each.is_directory] == ["renamed"]
        assert applied(change.patch_bytes(), before, tmp_path / str(number)) == after


def test_names_are_quoted_as_git_does(tmp_path: Path):
    tree: Tree = {os.fsdecode(name): ("100644", b"1\n") for name in NAMES}
    put({}, tmp_path / "a")
    put(tree, tmp_path / "b")
    theirs = git("diff", "--no-index", "--full-index", "--no-prefix", "a", "b", cwd=tmp_path)
    wanted = [line for line in theirs.stdout.split(b"\n") if line.startswith(b"+++ ")]
    ours = between({}, tree).patch_bytes().split(b"\n")
    assert sorted(line for line in ours if line.startswith(b"+++ ")) == sorted(wanted)
    assert quote_path(b"b/plain") == b"b/plain"


def git_diff(before: Tree, after: Tree, place: Path) -> bytes:
    """Return the patch that git writes between two trees."""
    git("init", "-q", ".", cwd=place)
    trees: list[str] = []
    for name, tree in (("before", before), ("after", after)):
        put(tree, place / name)
        work = (f"--git-dir={place / '.git'}", "--work-tree=.")
        git(*work, "add", "-A", ".", cwd=place / name)
        trees.append(git("write-tree", cwd=place).stdout.decode().strip())
    return git("diff", "--binary", "--full-index", "-M", *trees, cwd=place).stdout


def test_a_patch_is_what_git_would_write(tmp_path: Path):
    before: Tree = {
        "a": ("100644", b"".join(b"%d\n" % n for n in range(40))),
        "b": ("100755", b"1\n"),
        "gone": ("100644", b"x\n"),
        "link": ("120000", b"a"),
        "old name": ("100644", b"1\n2\n3\n4\n"),
    }
    after: Tree = {
        "a": ("100644", b"".join(b"%d\n" % (n if n not in (3, 9, 30) else -n) for n in range(40))),
        "b": ("100644", b"1\n2"),
        "link": ("120000", b"b"),
        "new": ("100644", b"y\n"),
        "new name": ("100644", b"1\n2\n3\n5\n"),
    }
    theirs = git_diff(before, after, tmp_path).split(b"\n")
    ours = between(before, after).patch_bytes().split(b"\n")
    # the similarity of a renamed file is measured in another way, functions are not named
    ignored = (b"similarity", b"@@")
    assert [x for x in ours if not x.startswith(ignored)] == [
        x for x in theirs if not x.startswith(ignored)
    ]
    assert [x for x in ours if x.startswith(b"@@")] == [
        x[: x.index(b"@@", 2) + 2] for x in theirs if x.startswith(b"@@")
    ]


@pytest.mark.parametrize(
    "path",
    [".git/config", "x/.GIT/hooks/a", "git~1/x", ".git. ./x", ".git:x", "\u200c.g\u200dit/x"],
)
def test_what_git_refuses_by_name_is_a_remark_and_the_rest_applies(path: str, tmp_path: Path):
    before: Tree = {"a": ("100644", b"1\n")}
    change = between(before, {"a": ("100644", b"2\n"), path: ("100644", b"1\n")})
    patch = change.patch()
    assert "# wink: added, left out because git refuses this name: " in patch
    assert applied(patch.encode(), before, tmp_path / "there") == {"a": ("100644", b"2\n")}


def test_a_link_that_git_refuses_is_a_remark(tmp_path: Path):
    before: Tree = {"a": ("100644", b"1\n")}
    patch = between(before, {"a": ("100644", b"2\n"), ".gitmodules": ("120000", b"a")}).patch()
    assert "# wink: added, left out because git refuses this name: .gitmodules" in patch
    assert applied(patch.encode(), before, tmp_path / "there") == {"a": ("100644", b"2\n")}


def remarks(change: Diff) -> list[str]:
    return [line[8:] for line in change.patch().split("\n") if line.startswith("# wink: ")]


def test_empty_directories_are_remarks(tmp_path: Path):
    before, after = InMemoryFilesystem(), InMemoryFilesystem()
    for path in ("gone/inner", "emptied/deep", "kept"):
        before.mkdir(path)
    for path in ("made/inner", "emptied", "kept"):
        after.mkdir(path)
    before.write("filled/a", "1\n")
    after.write("filled/b/c", "2\n")
    change = diff(before, after)
    assert remarks(change) == [
        "directory removed: emptied/deep",
        "directory removed: gone",
        "directory removed: gone/inner",
        "directory added, permissions 0755: made",
        "directory added, permissions 0755: made/inner",
    ]
    patch = change.patch().encode()
    tree: Tree = {"filled/a": ("100644", b"1\n")}
    assert applied(patch, tree, tmp_path / "there") == {"filled/b/c": ("100644", b"2\n")}


def test_a_directory_that_git_would_take_away_is_a_remark():
    before, after = InMemoryFilesystem(), InMemoryFilesystem()
    before.write("d/a", "1\n")
    after.mkdir("d")
    assert remarks(diff(before, after)) == ["directory stays, empty: d"]


def test_other_permissions_are_remarks(tmp_path: Path):
    roots = tmp_path / "before", tmp_path / "after"
    for root, mode in zip(roots, (0o600, 0o640), strict=True):
        put({"a": ("100644", b"1\n"), "b": ("100644", b"1\n"), "d/c": ("100644", b"")}, root)
        (root / "a").chmod(mode)
        (root / "b").chmod(0o600)
        (root / "d").chmod(0o700 if mode == 0o600 else 0o755)
    (roots[1] / "b").write_bytes(b"2\n")
    os.mkfifo(roots[1] / "pipe")
    change = diff(HostFilesystem(roots[0]), HostFilesystem(roots[1]))
    (roots[1] / "pipe").chmod(0o644)
    assert remarks(change)[:3] == [
        "permissions 0640: a",
        "permissions 0600: b",
        "permissions 0755: d",
    ]
    assert remarks(change)[3].startswith("special file added: pipe")
    patch = change.patch().encode()
    assert git("apply", "-", cwd=roots[0], data=patch).returncode == 0
    assert (roots[0] / "b").read_bytes() == b"2\n"


def test_a_page_ends_between_files_and_says_how_to_go_on(tmp_path: Path):
    before: Tree = {f"f{n}": ("100644", b"old\n" * 20) for n in range(9)}
    after: Tree = {f"f{n}": ("100644", b"new\n" * 20) for n in range(9)}
    change = between(before, after)
    whole = change.patch()
    pages: list[str] = []
    start = 0
    while start < 9:
        page = change.patch(max_characters=1_200, start=start)
        assert len(page) <= 1_200
        note = page.rstrip("\n").rpartition("\n")[2]
        pages.append(page.removesuffix(note + "\n") if note.startswith("# wink:") else page)
        start += page.count("diff --git")
        if start < 9:
            left = f"{9 - start} of 9 changes are left out"
            assert note == f"# wink: {left}: continue with start={start}, 'f{start}'"
    assert "".join(pages) == whole
    assert len(pages) > 2
    first = change.patch(max_characters=1_200).encode()
    tree = applied(first, before, tmp_path / "there")
    assert 0 < sum(data == b"new\n" * 20 for _, data in tree.values()) < 9


def test_a_change_that_fits_no_page_can_be_skipped():
    change = between({}, {"a": ("100644", b"x" * 5_000), "b": ("100644", b"y\n")})
    page = change.patch(max_characters=1_000)
    assert page == (
        "# wink: 2 of 2 changes are left out:"
        " 'a' does not fit into max_characters, start=1 skips it\n"
    )
    assert "+y\n" in change.patch(max_characters=1_000, start=1)
    assert len(change.patch(max_characters=10)) == 10


def test_the_last_change_needs_no_room_for_a_note():
    change = between({}, {"a": ("100644", b"1\n"), "b": ("100644", b"1\n")})
    whole = change.patch()
    assert change.patch(max_characters=len(whole)) == whole
    assert change.patch(max_characters=len(whole) - 1) != whole


def test_a_file_too_large_for_lines_is_binary(tmp_path: Path):
    data = (b"x" * 63 + b"\n") * (MAX_TEXT // 64)
    change = between({"a": ("100644", data)}, {"a": ("100644", data + b"y\n")})
    pieces = list(change.patch_chunks())
    assert max(map(len, pieces)) < MAX_TEXT // 8
    patch = b"".join(pieces)
    assert b"GIT binary patch" in patch
    tree = applied(patch, {"a": ("100644", data)}, tmp_path / "there")
    assert tree["a"][1] == data + b"y\n"


def test_the_number_of_lines_around_a_change_can_be_set(tmp_path: Path):
    before: Tree = {"a": ("100644", b"".join(b"%d\n" % n for n in range(50)))}
    after: Tree = {"a": ("100644", before["a"][1].replace(b"20\n", b"x\n").replace(b"31\n", b""))}
    change = between(before, after)
    sizes = [change.patch(context=n).count("\n ") for n in (0, 1, 3, 5, 100)]
    assert sizes == [0, 4, 12, 20, 48]
    for context in (1, 5, 100):
        patch = change.patch_bytes(context=context)
        assert applied(patch, before, tmp_path / str(context)) == after
    assert applied(change.patch_bytes(context=0), before, tmp_path / "0", "--unidiff-zero") == after


@pytest.mark.parametrize(
    "call",
    [
        lambda change: change.patch(context=-1),
        lambda change: change.patch(max_characters=-1),
        lambda change: change.patch(start=-1),
        lambda change: change.patch_bytes(context=-1),
    ],
)
def test_negative_numbers_are_refused(call: Callable[[Diff], object]):
    with pytest.raises(ValueError, match="must be non-negative: -1"):
        call(between({}, {}))


def random_content(rng: random.Random) -> bytes:
    kind = rng.randrange(10)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.randbytes(rng.randrange(200))
    if kind == 2:
        return b"".join(rng.choice([b"a", b"\xff", b"\r", b"\n", b" "]) for _ in range(12))
    ends = [b"\n"] if kind < 8 else [b"\n", b"\r\n"]
    words = (b"", b"}", b"alpha", b"beta", b"\t gamma ", b"d\xc3\xa9")
    lines = [rng.choice(words) + rng.choice(ends) for _ in range(rng.randrange(25))]
    return b"".join(lines) + rng.choice([b"", b"", b"tail"])


def random_entry(rng: random.Random, known: list[bytes]) -> tuple[str, bytes]:
    if rng.random() < 0.1:
        # none leads to itself: below such a link git finds nothing, not even room
        return "120000", rng.choice([b"nowhere", b"../b", b"caf\xe9", b"x\ny"])
    data = rng.choice(known) if known and rng.random() < 0.5 else random_content(rng)
    known.append(data)
    return rng.choice(["100644", "100644", "100755"]), data


def edited(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(lines) + 1)
        lines[at : at + rng.randrange(2)] = [b"edited %d" % rng.randrange(9)] * rng.randrange(3)
    return b"\n".join(lines)


def random_tree(rng: random.Random) -> Tree:
    tree: Tree = {}
    known: list[bytes] = []
    for _ in range(rng.randrange(9)):
        add(tree, random_path(rng), random_entry(rng, known))
    return tree


def random_path(rng: random.Random) -> str:
    names = ["a", "b", "a b", 'q"', "t\tab", "n\nl", "\u00e9", "\udcff", "b\\"]
    return "/".join(rng.choice(names) for _ in range(rng.randrange(1, 4)))


def add(tree: Tree, path: str, entry: tuple[str, bytes]) -> None:
    """Put an entry where it hides no other and nothing hides it."""
    parts = path.split("/")
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    if not above & tree.keys() and not any(each.startswith(path + "/") for each in tree):
        tree[path] = entry


def random_successor(rng: random.Random, before: Tree) -> Tree:
    """Return another tree, which has much in common with `before`."""
    after: Tree = {}
    for path, (mode, data) in before.items():
        action = rng.randrange(8)
        if action == 0:
            continue
        if action == 1:
            add(after, random_path(rng), (mode, data))
        elif action == 2 and mode != "120000":
            add(after, random_path(rng), (mode, edited(rng, data)))
        elif action == 3 and mode != "120000":
            add(after, path, (mode, edited(rng, data)))
        elif action == 4:
            add(after, path, random_entry(rng, [data]))
        else:
            add(after, path, (mode, data))
    for _ in range(rng.randrange(3)):
        add(after, random_path(rng), random_entry(rng, [data for _, data in before.values()]))
    return after


@pytest.mark.parametrize("seed", range(8))
def test_git_turns_any_state_into_any_other(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    for number in range(40):
        before = random_tree(rng)
        after = random_successor(rng, before) if rng.random() < 0.8 else random_tree(rng)
        change = between(before, after)
        patch = change.patch_bytes() if number % 2 else change.patch().encode()
        if before == after:
            assert patch == b""
        else:
            assert applied(patch, before, tmp_path / str(number)) == after


def numstat(before: Tree, after: Tree, place: Path) -> tuple[int, int, int]:
    """Return the insertions, deletions and binary files that git counts."""
    place.mkdir()
    put(before, place / "a")
    put(after, place / "b")
    options = ("--no-index", "--numstat", "--minimal", "--no-renames")
    output = git("diff", *options, "a", "b", cwd=place).stdout
    rows = [row.split(b"\t")[:2] for row in output.split(b"\n") if row]
    text = [row for row in rows if row[0] != b"-"]
    return sum(int(row[0]) for row in text), sum(int(row[1]) for row in text), len(rows) - len(text)


@pytest.mark.parametrize("seed", range(4))
def test_the_statistics_are_those_of_git(seed: int, tmp_path: Path):
    rng = random.Random(1_000 + seed)
    for number in range(25):
        before = random_tree(rng)
        # git counts no lines where a link became a file or a file a link
        after = {
            path: entry
            for path, entry in random_successor(rng, before).items()
            if (before.get(path, entry)[0] == "120000") == (entry[0] == "120000")
        }
        ours = diff(memory(before), memory(after), renames=False).statistics
        theirs = numstat(before, after, tmp_path / str(number))
        assert (ours.insertions, ours.deletions, ours.binary_files) == theirs


def test_two_directories_on_disk_give_the_same_patch_as_in_memory(tmp_path: Path):
    rng = random.Random(3)
    for number in range(20):
        before = random_tree(rng)
        after = random_successor(rng, before)
        sides: list[ReadableFilesystem] = []
        for name, tree in (("before", before), ("after", after)):
            sides.append(HostFilesystem(put(tree, tmp_path / f"{name}{number}")))
        assert diff(*sides).patch_bytes() == between(before, after).patch_bytes()
