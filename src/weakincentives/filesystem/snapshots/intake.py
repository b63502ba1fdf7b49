"""A state of any kind, stored as the objects of a snapshot."""

import os

from weakincentives.filesystem.snapshots.partial import store_tree
from weakincentives.filesystem.snapshots.view import Manifest
from weakincentives.filesystem.states import State
from weakincentives.filesystem.store.batches import Batch
from weakincentives.filesystem.store.objects import ObjectStore
from weakincentives.filesystem.store.trees import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    TreeEntry,
    encode_tree,
)
from weakincentives.filesystem.types import FileStat

_PIECE = 1024 * 1024


def store_state(state: State, objects: ObjectStore, batch: Batch) -> str:
    """Store everything that is in `state`; return the id of the commit's tree.

    Of a pipe, socket or device it is kept that it was there.
    """
    specials: list[str] = []
    modes: dict[str, int] = {}
    listings = list(state.directories("Import"))
    trees: dict[str, str] = {}
    for path, children in reversed(listings):  # a directory comes before those below it
        entries: list[TreeEntry] = []
        for name, found in children.items():
            if found.is_directory:
                entries.append(TreeEntry(name, DIRECTORY, trees.pop(found.path)))
            elif found.is_file:
                mode = EXECUTABLE if found.permissions & 0o100 else FILE
                entries.append(TreeEntry(name, mode, _blob(state, found, objects, batch)))
            elif found.link_target is not None:
                target = os.fsencode(found.link_target)
                entries.append(TreeEntry(name, LINK, batch.add("blob", target)))
            if found.kind == "special":
                specials.append(found.path)
            elif _is_odd(found):
                modes[found.path] = found.permissions
        trees[path] = batch.add("tree", encode_tree(entries))
    return store_tree(
        batch, trees[""], batch.add("blob", Manifest(modes, tuple(sorted(specials))).encode())
    )


def _is_odd(found: FileStat) -> bool:
    """Return whether git's tree does not say what the permissions are."""
    if found.is_symlink:
        return False
    plain = {0o755} if found.is_directory else {0o644, 0o755}
    return found.permissions not in plain


def _blob(state: State, found: FileStat, objects: ObjectStore, batch: Batch) -> str:
    known = state.known_id(found)
    if known is not None and objects.knows(known):
        return known
    with state.open(found.path) as content:
        if content.size <= _PIECE:
            return batch.add("blob", content.read(0, content.size))
        size = content.size
        pieces = (content.read(offset, _PIECE) for offset in range(0, size, _PIECE))
        return batch.add_blob(size, pieces)
