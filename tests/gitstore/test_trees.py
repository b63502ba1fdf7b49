"""Trees: every name survives, git accepts all of them, and interprets none."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gitstore.gitcommand import git, new_repository
from tests.sizes import size
from weakincentives.gitstore.objects import ObjectError, ObjectStore
from weakincentives.gitstore.trees import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    TreeEntry,
    decode_name,
    decode_tree,
    encode_entry,
    encode_name,
    encode_tree,
    tree_references,
)

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # of the empty file

RESERVED = [
    ".git",
    ".GIT",
    ".Git",
    ".git.",
    ".git ",
    ".git. . ",
    ".git:stream",
    ".git::$INDEX_ALLOCATION",
    "git~1",
    "GIT~1",
    "git~1.",
    "git~2",
    ".g\u200cit",
    "\u200d.git",
    ".git\ufeff",
    ".\u202agI\u206ft\u200f",
    "a\\.git",
    "\\.git",
    ".git\\x",
    "a\\git~1\\b",
    ".gitmodules",
    ".GitModules . ",
    "gitmod~1",
    "GITMOD~4",
    "gi7eba~1",
    "gi7eb~10",
    "~1000000",
    ".gitattributes",
    "gitatt~1",
    "gi7d29~1",
    ".gitignore",
    "gitign~1",
    "gi250a~1",
    ".mailmap",
    "mailma~1",
    "maba30~1",
    ".mail\u200cmap",
    ".gitmodules:$DATA",
    ".git\udcff",
    ".git\uffff",
    ".gitignore\u200c\udcffx",
]
PLAIN = [
    "a",
    "a.txt",
    ".github",
    ".gitkeep",
    ".gitlab-ci.yml",
    "git",
    "...",
    "....",
    "-rf",
    "--help",
    " ",
    "a b",
    "a\n",
    "\x1b[31m",
    "é",
    "日本語",
    "\u200c",
    "a:b",
    "HEAD",
    "foo~",
    "x.~1~",
]
ODD = ["%", "%41", "%2Egit", "100%", "\\", "a\\b", "\udcff", "\udcffgit", "a" * 255]

names = st.one_of(
    st.sampled_from(RESERVED + PLAIN + ODD),
    st.text(
        st.sampled_from([*".gitGIT~1 :\\%25E-\n", "\u200c", "\ufeff", "m", "o", "d"]), min_size=1
    ),
    st.binary(min_size=1, max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
).filter(lambda name: name not in {".", ".."} and not {"/", "\0"} & set(name))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "r")


def committed(repository: Path, entries: list[TreeEntry]) -> str:
    """Store a tree, with a branch that leads to it; return its id."""
    with ObjectStore(repository / "objects").begin_pack() as batch:
        batch.add("blob", b"")
        batch.add("tree", b"")
        tree = batch.add("tree", encode_tree(entries))
        batch.finish()
    commit = git(repository, "commit-tree", "-m", "x", tree).strip()
    git(repository, "update-ref", "refs/heads/main", commit)
    return tree


@pytest.mark.parametrize("mode", [FILE, EXECUTABLE, LINK, DIRECTORY])
def test_git_accepts_every_name_for_everything(repository: Path, mode: int) -> None:
    target = EMPTY_TREE if mode == DIRECTORY else BLOB
    entries = [TreeEntry(name, mode, target) for name in RESERVED + PLAIN + ODD]
    tree = committed(repository, entries)
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""
    assert len(git(repository, "ls-tree", "-z", tree).strip("\0").split("\0")) == len(entries)


@pytest.mark.parametrize("name", RESERVED)
def test_git_would_complain_or_act_without_the_encoding(name: str) -> None:
    assert b"%" in encode_name(name)
    assert b"\\" not in encode_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_ordinary_names_are_stored_as_they_are(name: str) -> None:
    assert encode_name(name) == name.encode()


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(found=st.sets(names, min_size=20, max_size=60))
def test_git_accepts_any_names_together(repository: Path, found: set[str]) -> None:
    modes = [FILE, EXECUTABLE, LINK, DIRECTORY]
    entries = [
        TreeEntry(name, modes[n % 4], EMPTY_TREE if n % 4 == 3 else BLOB)
        for n, name in enumerate(sorted(found))
    ]
    committed(repository, entries)
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""


@settings(max_examples=size(300, 3_000))
@given(name=names)
def test_every_name_comes_back(name: str) -> None:
    raw = encode_name(name)
    assert decode_name(raw) == name
    assert raw not in {b".", b".."}
    assert not {b"/", b"\0"} & {bytes([each]) for each in raw}


@settings(max_examples=size(200, 2_000))
@given(raw=st.binary(max_size=30) | st.text("%25EeG.git~1/\0").map(str.encode))
def test_there_is_one_way_to_write_a_name(raw: bytes) -> None:
    try:
        name = decode_name(raw)
    except ObjectError:
        return
    assert encode_name(name) == raw
    assert name not in {"", ".", ".."}
    assert not {"/", "\0"} & set(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0", "\ud800"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ObjectError, match=r"Not a valid file name|Name cannot be encoded"):
        encode_name(name)


@pytest.mark.parametrize(
    "raw",
    [b"%2E%2E", b"%2E", b"%2F", b"a%2Fb", b"%00", b"%41", b"%2egit", b"%", b"%2", b".git", b"a\\b"],
)
def test_names_in_another_form_are_refused(raw: bytes) -> None:
    with pytest.raises(ObjectError):
        decode_name(raw)


@settings(max_examples=200)
@given(
    found=st.dictionaries(names, st.sampled_from([FILE, EXECUTABLE, LINK, DIRECTORY]), max_size=20)
)
def test_a_tree_comes_back_whatever_the_order(found: dict[str, int]) -> None:
    entries = [TreeEntry(name, mode, os.urandom(20).hex()) for name, mode in found.items()]
    data = encode_tree(entries)
    assert sorted(decode_tree(data)) == sorted(entries)
    assert encode_tree(reversed(entries)) == data
    assert encode_tree(decode_tree(data)) == data
    expected = sorted((entry.mode == DIRECTORY, entry.id) for entry in entries)
    assert sorted(tree_references(data)) == expected


def test_an_empty_directory_is_the_empty_tree(repository: Path) -> None:
    assert encode_tree([]) == b""
    assert decode_tree(b"") == []
    assert committed(repository, []) == EMPTY_TREE


def test_directories_sort_as_git_sorts_them(repository: Path) -> None:
    entries = [
        TreeEntry("a", DIRECTORY, EMPTY_TREE),
        TreeEntry("a-", FILE, BLOB),
        TreeEntry("a.b", FILE, BLOB),
        TreeEntry("a0", FILE, BLOB),
    ]
    assert [entry.name for entry in decode_tree(encode_tree(entries))] == ["a-", "a.b", "a", "a0"]
    committed(repository, entries)
    git(repository, "fsck", "--strict")


@pytest.mark.parametrize("modes", [(FILE, FILE), (FILE, DIRECTORY), (LINK, EXECUTABLE)])
def test_a_name_is_there_once(modes: tuple[int, int]) -> None:
    twice = [TreeEntry("a", mode, BLOB) for mode in modes]
    with pytest.raises(ObjectError, match="twice"):
        encode_tree([*twice, TreeEntry("a-", FILE, BLOB)])


def item(mode: bytes, name: bytes) -> bytes:
    return mode + b" " + name + b"\0" + bytes(20)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"100644 a\0" + bytes(19),
        b"100644 a" + bytes(19),
        b"100644a\0" + bytes(30),
        item(b"100664", b"a"),
        item(b"160000", b"a"),
        item(b"040000", b"a"),
        item(b"", b"a"),
        item(b"100644", b""),
        item(b"100644", b".."),
        item(b"100644", b"a/b"),
        item(b"100644", b".git"),
        item(b"100644", b"b") + item(b"100644", b"a"),
        item(b"100644", b"a") + item(b"100644", b"a"),
        item(b"100644", b"a") + item(b"100644", b"a-") + item(b"40000", b"a"),
        item(b"100644", b"a") + b"1",
    ],
)
def test_foreign_and_damaged_trees_are_refused(data: bytes) -> None:
    with pytest.raises(ObjectError):
        decode_tree(data)


@settings(max_examples=size(200, 2_000))
@given(data=st.binary(max_size=80))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        entries = decode_tree(data)
    except ObjectError:
        return
    assert encode_tree(entries) == data


def test_the_objects_of_a_foreign_tree_are_found_but_not_its_submodules() -> None:
    one, two, other = (bytes([number]) * 20 for number in (1, 2, 3))
    data = (
        b"100664 .git\0" + one + b"040000 d\0" + two + b"160000 submodule\0" + other + b"40000 e\0"
    ) + one
    assert list(tree_references(data)) == [
        (False, one.hex()),
        (True, two.hex()),
        (True, one.hex()),
    ]


@pytest.mark.parametrize("names", [["b", "a"], ["a", "a"], ["a", "b", "a"]])
def test_a_tree_that_is_not_in_order_is_refused(names: list[str]) -> None:
    data = b"".join(encode_entry(name, FILE, bytes.fromhex(BLOB)) for name in names)
    with pytest.raises(ObjectError):
        decode_tree(data)
