"""Directories that a change only gives another name: one rename instead of every file anew.

A rename carries everything along, so that nothing is displaced: not a save at that moment, nor an
attribute, nor what a program has open. What has come to the new name is compared afterwards.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from weakincentives.history.entries import EntryState, LiveTree, matches, resembles
from weakincentives.history.records import PathOperation
from weakincentives.posix import parent_of

_OWNER_ACCESS = 0o700


def find_differences(tree: LiveTree, top: str, states: Mapping[str, EntryState]) -> list[str]:
    """Return the paths below a directory that are not as expected, sorted."""
    found = {path[len(top) + 1 :] for path, _ in tree.walk(top)}
    common = found & states.keys()
    changed = {name for name in common if not matches(tree, _below(top, name), states[name])}
    return sorted(found ^ states.keys() | changed)


def list_paths(move: PathOperation) -> Iterator[str]:
    """Yield all paths at the old and the new name of a directory."""
    return (_below(top, name) for top in move.paths for name in move.inside)


def _below(top: str, name: str) -> str:
    return f"{top}/{name}" if name else top


def find_moves(
    tree: LiveTree, gone: Mapping[str, EntryState], made: Mapping[str, EntryState]
) -> list[PathOperation]:
    """Return the moves of the outermost directories that are gone at one path, and made at another.

    All of their content is the same, nothing else is in them, and no other directory is equal.
    """
    keys: dict[object, int] = {}
    old, new = (_find_unique(states, keys) for states in (gone, made))
    found: list[PathOperation] = []
    for key, path in sorted(old.items(), key=lambda item: item[1].count("/")):
        is_inside = any(path.startswith(f"{each.slot}/") for each in found)
        if key in new and not is_inside:
            with suppress(PermissionError):  # it is made accessible later
                found += _look(tree, path, new[key], gone)
    return found


def _find_unique(states: Mapping[str, EntryState], keys: dict[object, int]) -> dict[int, str]:
    """Return the directories with files whose content no other has, by an id of the content."""
    below: dict[str, list[tuple[str, int]]] = {}
    found: dict[int, list[str]] = {}
    for path in sorted(states, key=lambda each: each.count("/"), reverse=True):
        content = states[path], tuple(sorted(below.get(path, ())))
        key = keys.setdefault(content, len(keys))
        parent, _, name = path.rpartition("/")
        below.setdefault(parent, []).append((name, key))
        if content[1]:
            found.setdefault(key, []).append(path)
    return {key: paths[0] for key, paths in found.items() if len(paths) == 1}


def _look(
    tree: LiveTree, old: str, new: str, gone: Mapping[str, EntryState]
) -> list[PathOperation]:
    """Return the move of a directory, unless its metadata says that it is not as expected."""
    start = len(old) + 1
    states = {
        path[start:]: state for path, state in gone.items() if f"{path}/".startswith(f"{old}/")
    }
    found = {path[start:]: entry for path, entry in tree.walk(old)}
    # the parent of the new name may be created by the same change, but only later
    is_possible = found.keys() == states.keys() and tree.is_directory(parent_of(new))
    if is_possible and all(_is_movable(found[name], state) for name, state in states.items()):
        state, inode = states[""], found[""].st_ino
        return [PathOperation("move directory", new, old, state, state, inode=inode, inside=states)]
    return []


def _is_movable(found: os.stat_result, state: EntryState) -> bool:
    is_closed = state.kind == "directory" and state.mode & _OWNER_ACCESS != _OWNER_ACCESS
    return resembles(found, state) and not is_closed
