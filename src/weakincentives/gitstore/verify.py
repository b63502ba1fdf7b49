"""Whether snapshots are all there and undamaged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from weakincentives.gitstore.commits import decode_commit
from weakincentives.gitstore.objects import ObjectError, ObjectStore
from weakincentives.gitstore.trees import DIRECTORY, TreeEntry, decode_tree
from weakincentives.posix import check_time, display_path, join, shorten_path

_MOST = 100  # problems that are told of one directory and all below it
_FILES = "files/"  # below which the workspace is in the tree of a commit


@dataclass(frozen=True, slots=True)
class SnapshotProblem:
    """Something that is wrong with a store, and a snapshot that needs it, if one does.

    Who forgets these snapshots has a store that is whole again.
    """

    snapshot_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class _Damage:
    path: str
    what: str
    error: str

    def below(self, name: str) -> "_Damage":
        return _Damage(join(name, self.path) if self.path else name, self.what, self.error)

    def __str__(self) -> str:
        path = display_path(shorten_path(self.path.removeprefix(_FILES)))
        return f"{self.what} is damaged: {path!r}: {self.error}"


class Verification:
    """Reads what snapshots hold: each object once, however many of them hold it."""

    def __init__(self, objects: ObjectStore) -> None:
        """Read `objects`."""
        self._objects = objects
        self._trees: dict[str, Sequence[_Damage]] = {}
        self._blobs: dict[str, str | None] = {}

    def problems(self, snapshot_id: str, ref: str | None) -> Iterator[SnapshotProblem]:
        """Yield what is wrong with a snapshot, which is the commit `ref`."""
        if ref is None:
            yield SnapshotProblem(snapshot_id, "Ref is damaged")
            return
        try:
            commit = decode_commit(ref, self._content(ref, "commit"))
            if commit.snapshot_id != snapshot_id:
                yield SnapshotProblem(snapshot_id, f"Commit is that of another snapshot: {ref!r}")
        except ObjectError as error:
            yield SnapshotProblem(snapshot_id, str(error))
            return
        for damage in self._tree(commit.tree):
            yield SnapshotProblem(snapshot_id, str(damage))

    def _tree(self, top: str) -> Sequence[_Damage]:
        """Return what is wrong with a tree and all below it, without recursion."""
        pending = [top]
        while pending:
            check_time("Verification")
            tree = pending[-1]
            if tree in self._trees:
                pending.pop()
                continue
            try:
                entries = decode_tree(self._content(tree, "tree"))
            except ObjectError as error:
                self._trees[tree] = [_Damage("", "Directory", str(error))]
                continue
            below = [each.id for each in entries if each.mode == DIRECTORY]
            unknown = [each for each in below if each not in self._trees]
            pending += unknown
            if not unknown:
                self._trees[tree] = list(islice(self._found(entries), _MOST))
        return self._trees[top]

    def _found(self, entries: Sequence[TreeEntry]) -> Iterator[_Damage]:
        for entry in entries:
            if entry.mode == DIRECTORY:
                yield from (each.below(entry.name) for each in self._trees[entry.id])
            elif (error := self._blob(entry.id)) is not None:
                yield _Damage(entry.name, "File", error)

    def _blob(self, blob: str) -> str | None:
        if blob not in self._blobs:
            self._blobs[blob] = None
            try:
                for _ in self._objects.chunks(blob):
                    check_time("Verification")
            except ObjectError as error:
                self._blobs[blob] = str(error)
        return self._blobs[blob]

    def _content(self, object_id: str, wanted: str) -> bytes:
        kind, data = self._objects.read(object_id)
        if kind != wanted:
            raise ObjectError(f"Object is no {wanted} but a {kind}: {object_id!r}")
        return data
