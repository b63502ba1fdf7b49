"""Integrity check of snapshots: find missing and damaged commits, trees and blobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from weakincentives.gitstore.objects import ObjectError, ObjectStore
from weakincentives.gitstore.trees import (
    DIRECTORY,
    TreeEntry,
    date_of_name,
    decode_commit,
    decode_tree,
)
from weakincentives.posix import check_time, display_path, join, shorten_path

_MAX_PROBLEMS = 100  # reported for one directory and everything below it
_FILES = "files/"  # where the tree of a commit has the workspace


@dataclass(frozen=True, slots=True)
class SnapshotProblem:
    """Damage in a store, and the snapshot it affects, if any.

    Forgetting the affected snapshots makes the store consistent again.
    """

    snapshot_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class _Damage:
    path: str
    what: str
    error: str

    def move_below(self, name: str) -> "_Damage":
        return _Damage(join(name, self.path) if self.path else name, self.what, self.error)

    def __str__(self) -> str:
        path = display_path(shorten_path(self.path.removeprefix(_FILES)))
        return f"{self.what} is damaged: {path!r}: {self.error}"


class Verification:
    """Reads the objects of snapshots, each object once, however many snapshots share it."""

    def __init__(self, objects: ObjectStore) -> None:
        """Check `objects`."""
        self._objects = objects
        self._trees: dict[str, Sequence[_Damage]] = {}
        self._blobs: dict[str, str | None] = {}

    def find_problems(self, snapshot_id: str, ref: str | None) -> Iterator[SnapshotProblem]:
        """Yield the problems of a snapshot, whose commit is `ref`."""
        if ref is None:
            yield SnapshotProblem(snapshot_id, "Ref is damaged")
            return
        try:
            commit = decode_commit(ref, self._objects.read(ref, "commit")[1])
            if commit.snapshot_id != snapshot_id and date_of_name(snapshot_id) is None:
                yield SnapshotProblem(snapshot_id, f"Commit belongs to another snapshot: {ref!r}")
        except ObjectError as error:
            yield SnapshotProblem(snapshot_id, str(error))
            return
        for damage in self._check_tree(commit.tree):
            yield SnapshotProblem(snapshot_id, str(damage))

    def _check_tree(self, top: str) -> Sequence[_Damage]:
        """Return the damage in a tree and everything below it, without recursion."""
        pending = [top]
        while pending:
            check_time("Verification")
            tree = pending[-1]
            if tree in self._trees:
                pending.pop()
                continue
            try:
                entries = decode_tree(self._objects.read(tree, "tree")[1])
            except ObjectError as error:
                self._trees[tree] = [_Damage("", "Directory", str(error))]
                continue
            below = [each.id for each in entries if each.mode == DIRECTORY]
            unknown = [each for each in below if each not in self._trees]
            pending += unknown
            if not unknown:
                self._trees[tree] = list(islice(self._check_entries(entries), _MAX_PROBLEMS))
        return self._trees[top]

    def _check_entries(self, entries: Sequence[TreeEntry]) -> Iterator[_Damage]:
        for entry in entries:
            if entry.mode == DIRECTORY:
                yield from (each.move_below(entry.name) for each in self._trees[entry.id])
            elif (error := self._check_blob(entry.id)) is not None:
                yield _Damage(entry.name, "File", error)

    def _check_blob(self, blob: str) -> str | None:
        if blob not in self._blobs:
            self._blobs[blob] = None
            try:
                for _ in self._objects.chunks(blob):
                    check_time("Verification")
            except ObjectError as error:
                self._blobs[blob] = str(error)
        return self._blobs[blob]
