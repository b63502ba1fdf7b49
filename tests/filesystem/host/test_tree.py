"""A captured directory and a git tree are compared entry by entry, whatever differs."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem.host.snapshots.tree import (
    Captured,
    CapturedDirectory,
    CapturedFile,
    directory_entry,
    find_differences,
    sort_as_git,
)
from weakincentives.gitstore import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    ObjectError,
    TreeEntry,
    decode_tree,
    encode_entry,
    encode_tree,
    hash_object,
)

NAMES = ["a", "a-b", "a.b", "a0", "ab", "b", "x100644 a", "40000 a", "%", ".git"]
IDS = [hash_object("blob", bytes([number])) for number in range(3)]
STATES = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(st.sampled_from([FILE, EXECUTABLE, DIRECTORY]), st.sampled_from(IDS)),
)


def captured(state: dict[str, tuple[int, str]]) -> CapturedDirectory:
    """Return a directory that has this state in git."""
    children: dict[str, Captured] = {}
    for name, (mode, object_id) in state.items():
        if mode == DIRECTORY:
            entry = directory_entry(name, object_id)
            children[name] = CapturedDirectory(entry, {}, 0o755, frozenset())
        else:
            permissions = 0o755 if mode == EXECUTABLE else 0o644
            identity = (0, 0, 0, 0, 0, permissions)
            children[name] = CapturedFile.of(name, object_id, identity)
    return CapturedDirectory(bytes(20), sort_as_git(children), 0o755, frozenset())


def stored(state: dict[str, tuple[int, str]]) -> bytes:
    return encode_tree([TreeEntry(name, *rest) for name, rest in state.items()])


@given(STATES, STATES)
def test_what_differs_is_found_on_both_sides(
    here: dict[str, tuple[int, str]], then: dict[str, tuple[int, str]]
) -> None:
    children, entries = find_differences(captured(here), stored(then))
    assert children.keys() == {name for name in here if then.get(name) != here[name]}
    assert {name: (entry.mode, entry.id) for name, entry in entries.items()} == {
        name: rest for name, rest in then.items() if here.get(name) != rest
    }


@pytest.mark.parametrize(
    "names",
    [["b", "a"], ["a", "a"], ["c", "b"], ["a", "b", "a"]],
)
def test_a_tree_that_is_not_in_order_is_refused(names: list[str]) -> None:
    data = b"".join(encode_entry(name, FILE, bytes.fromhex(IDS[0])) for name in names)
    for here in ({}, {"a": (FILE, IDS[0])}, {"a": (FILE, IDS[0]), "b": (FILE, IDS[0])}):
        with pytest.raises(ObjectError):
            decode_tree(data)
        with pytest.raises(ObjectError):
            find_differences(captured(here), data)


def test_a_file_and_a_directory_of_one_name_are_refused() -> None:
    data = encode_entry("a", FILE, bytes.fromhex(IDS[0])) + encode_entry(
        "a", DIRECTORY, bytes.fromhex(IDS[1])
    )
    for here in ({}, {"a": (FILE, IDS[0])}, {"a": (DIRECTORY, IDS[1])}):
        with pytest.raises(ObjectError, match="twice"):
            find_differences(captured(here), data)


def test_a_damaged_tree_is_refused() -> None:
    data = stored({"a": (FILE, IDS[0]), "b": (FILE, IDS[1])})
    for size in (1, 10, len(data) - 1):
        with pytest.raises(ObjectError):
            find_differences(captured({"a": (FILE, IDS[1])}), data[:size])
    with pytest.raises(ObjectError):
        find_differences(captured({}), os.urandom(8) + data)
