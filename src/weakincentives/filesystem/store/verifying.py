"""Whether a snapshot is all there and undamaged."""

from collections.abc import Iterator
from dataclasses import dataclass

from weakincentives.filesystem.store.commits import decode_commit
from weakincentives.filesystem.store.objects import ObjectError, ObjectStore
from weakincentives.filesystem.store.trees import DIRECTORY, decode_tree


@dataclass(frozen=True, slots=True)
class SnapshotProblem:
    """Something that is wrong with a store, and the first snapshot that it was seen in."""

    snapshot_id: str | None
    text: str


def snapshot_problems(
    objects: ObjectStore, snapshot_id: str, ref: str | None, seen: set[tuple[str, str]]
) -> Iterator[SnapshotProblem]:
    """Yield what is wrong with a snapshot; objects that were `seen` are not read again."""
    if ref is None:
        yield SnapshotProblem(snapshot_id, "Ref is damaged")
        return
    try:
        commit = decode_commit(ref, _content(objects, ref, "commit"))
        if commit.snapshot_id != snapshot_id:
            yield SnapshotProblem(snapshot_id, f"Commit is that of another snapshot: {ref!r}")
    except ObjectError as error:
        yield SnapshotProblem(snapshot_id, str(error))
        return
    pending = [commit.tree]
    while pending:
        tree = pending.pop()
        if ("tree", tree) not in seen:
            seen.add(("tree", tree))
            yield from _tree_problems(objects, snapshot_id, tree, seen, pending)


def _tree_problems(
    objects: ObjectStore,
    snapshot_id: str,
    tree: str,
    seen: set[tuple[str, str]],
    pending: list[str],
) -> Iterator[SnapshotProblem]:
    try:
        entries = decode_tree(_content(objects, tree, "tree"))
    except ObjectError as error:
        yield SnapshotProblem(snapshot_id, f"Directory is damaged: {tree!r}: {error}")
        return
    for entry in entries:
        if entry.mode == DIRECTORY:
            pending.append(entry.id)
        elif ("blob", entry.id) not in seen:
            seen.add(("blob", entry.id))
            try:
                for _ in objects.chunks(entry.id):
                    pass
            except ObjectError as error:
                yield SnapshotProblem(snapshot_id, f"File is damaged: {entry.name!r}: {error}")


def _content(objects: ObjectStore, object_id: str, wanted: str) -> bytes:
    kind, data = objects.read(object_id)
    if kind != wanted:
        raise ObjectError(f"Object is no {wanted} but a {kind}: {object_id!r}")
    return data
