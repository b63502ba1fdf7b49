"""A bare git repository of our own: objects, commits and refs behind one lock."""

import hashlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from weakincentives.errors import SnapshotError
from weakincentives.gitstore.commits import (
    Commit,
    commit_references,
    decode_commit,
    encode_commit,
    tag_reference,
)
from weakincentives.gitstore.directory import GitDirectory
from weakincentives.gitstore.objects import ObjectError, ObjectStore, is_object_id
from weakincentives.gitstore.pack_writer import PackTransaction
from weakincentives.gitstore.refs import MAIN, PINS, Refs
from weakincentives.gitstore.trees import tree_references
from weakincentives.gitstore.verify import SnapshotProblem, Verification
from weakincentives.posix import fault_point


@dataclass(frozen=True, slots=True)
class Reachable:
    """The objects to keep, without repetition, and the commits whose parents are not kept."""

    commits: dict[str, None] = field(default_factory=dict[str, None])
    trees: dict[str, None] = field(default_factory=dict[str, None])
    blobs: dict[str, None] = field(default_factory=dict[str, None])
    cut: set[str] = field(default_factory=set[str])

    def __iter__(self) -> Iterator[str]:
        """Yield every object: first what says most, last what is largest."""
        yield from self.commits
        yield from self.trees
        yield from self.blobs


def reachable(objects: ObjectStore, refs: Iterable[str], *, content: bool = True) -> Reachable:
    """Return what must be kept so that `refs` can be read.

    A commit of ours does not keep its parents: each snapshot is kept by a ref of its
    own. A commit that a person has made keeps all that was before it. Without `content`
    only commits and tags are looked at.

    Raises:
        ObjectError: A commit or a tree is missing or damaged.
    """
    found = Reachable()
    wanted = set(refs)
    parents: dict[str, list[str]] = {}
    pending = sorted(wanted)
    while pending:
        ref = pending.pop()
        if ref in found.commits or ref in found.trees or ref in found.blobs:
            continue
        kind, data = objects.read(ref)
        if kind in {"commit", "tag"}:
            found.commits[ref] = None
        if kind == "commit":
            tree, parents[ref] = commit_references(data)
            pending += [] if _is_ours(ref, data) else parents[ref]
            if content:
                _add_tree(objects, tree, found)
        elif kind == "tag":
            pending.append(tag_reference(data))
        elif kind == "tree":
            _add_tree(objects, ref, found)
        else:
            found.blobs[ref] = None
    found.cut.update(ref for ref, each in parents.items() if not found.commits.keys() >= set(each))
    return found


def _add_tree(objects: ObjectStore, tree: str, found: Reachable) -> None:
    pending = [tree]
    while pending:
        tree = pending.pop()
        if tree in found.trees:
            continue
        kind, data = objects.read(tree)
        if kind != "tree":
            raise ObjectError(f"Object is no tree but a {kind}: {tree!r}")
        found.trees[tree] = None
        for is_tree, object_id in tree_references(data):
            if is_tree:
                pending.append(object_id)
            else:
                found.blobs[object_id] = None


def _is_ours(ref: str, data: bytes) -> bool:
    try:
        decode_commit(ref, data)
    except ObjectError:
        return False
    return True


_SNAPSHOT_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_SHOWN = 5  # ids in a message
_log = logging.getLogger(__name__)


def default_git_dir(root: Path) -> Path:
    """Return where the snapshots of a workspace are, unless somebody says otherwise."""
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()
    return Path(tempfile.gettempdir()) / f"wink-git-{os.getuid()}-{digest[:32]}"


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How much a repository holds; bytes are those of its files."""

    bytes: int
    objects: int
    packs: int
    snapshots: int


class Repository:
    """The snapshots of one workspace; threads, instances and processes may share it.

    What belongs together, such as a batch of objects and the commit that uses them,
    is done inside one `with repository.lock()`.
    """

    def __init__(self, directory: GitDirectory, *, durable: bool = True) -> None:
        """Use `create` or `open`."""
        self._directory = directory
        self._refs = Refs(directory, durable=durable)
        self._mutex = threading.RLock()
        self._depth = 0
        self._last = "", 0  # the snapshot that we have made last, and its number
        self.objects: ObjectStore = ObjectStore(directory.path / "objects", durable=durable)

    @classmethod
    def create(cls, git_dir: Path, *, root: Path, durable: bool = True) -> Self:
        """Return the repository at `git_dir` for the workspace `root`, made if it is not there.

        Raises:
            SnapshotError: Something is there that is not ours, or of another workspace.
        """
        return cls(GitDirectory(git_dir, str(root.resolve())), durable=durable)

    @classmethod
    def open(cls, git_dir: Path, *, durable: bool = True) -> Self:
        """Return the repository at `git_dir`.

        Raises:
            SnapshotError: It is not there, or not ours.
        """
        return cls(GitDirectory(git_dir), durable=durable)

    @property
    def git_dir(self) -> Path:
        """Where it is."""
        return self._directory.path

    @property
    def root(self) -> str:
        """The workspace that it belongs to."""
        return self._directory.marker.root

    def epoch(self) -> str:
        """Return a token that changes whenever objects may have been removed.

        Who remembers that an object is stored must forget it when this changes.
        """
        return self._directory.epoch()

    @contextmanager
    def lock(self) -> Generator[None, None, None]:
        """Keep every other writer out; waits until they are done; may be nested."""
        with self._mutex:
            if self._depth:
                yield
                return
            with self._directory.lock():
                self._depth = 1
                try:
                    yield
                finally:
                    self._depth = 0

    def prevent_removal(self) -> AbstractContextManager[None]:
        """Keep everybody from removing the repository."""
        return self._directory.prevent_removal()

    def commit(
        self,
        tree: str,
        *,
        snapshot_id: str,
        created_at: datetime,
        tag: str | None = None,
        batch: PackTransaction | None = None,
    ) -> str:
        """Make a snapshot of a tree that is stored, or in `batch`; return its commit.

        The batch is finished: all of it becomes visible with the commit.

        Raises:
            SnapshotError: The id cannot be used, or the tree is missing.
        """
        pin = _pin(snapshot_id)
        with self.lock():
            self._directory.sweep()
            if self._refs.read(pin) is not None:
                raise SnapshotError(f"Snapshot exists already: {snapshot_id!r}")
            parents, sequence = self._latest()
            with batch or self.objects.begin_pack() as objects:
                if tree not in objects and tree not in self.objects:
                    raise SnapshotError(f"Tree is missing: {tree!r}")
                data = encode_commit(
                    tree,
                    parents,
                    snapshot_id=snapshot_id,
                    sequence=sequence + 1,
                    created_at=created_at,
                    tag=tag,
                    root=self.root,
                )
                ref = objects.add("commit", data)
                self._publish(ref, pin, objects)
            self._last = ref, sequence + 1
            self._tidy()
        return ref

    def read_commit(self, ref: str) -> Commit:
        """Return what a commit says.

        Raises:
            SnapshotError: There is no such commit, or it is damaged or not ours.
        """
        if not is_object_id(ref) or ref not in self.objects:
            raise SnapshotError(f"Unknown snapshot: {ref!r}")
        try:
            kind, data = self.objects.read(ref)
            if kind != "commit":
                raise SnapshotError(f"Unknown snapshot: {ref!r} is a {kind}")
            return decode_commit(ref, data)
        except ObjectError as error:
            raise SnapshotError(f"Snapshot is damaged: {error}") from error

    def commits(self) -> list[Commit]:
        """Return all snapshots, the oldest first; those that cannot be read are left out."""
        found: list[Commit] = []
        for name, ref in self._refs.found(PINS).items():
            try:
                found.append(self.read_commit(ref or ""))
            except SnapshotError as error:
                _log.warning("Snapshot cannot be read: %r: %s", name, error)
        return sorted(found, key=lambda each: (each.sequence, each.created_at, each.ref))

    def find_commit(self, tree: str) -> str | None:
        """Return the latest snapshot that is of this tree, or None."""
        found = (each.ref for each in reversed(self.commits()) if each.tree == tree)
        return next(found, None)

    def prune(self, snapshot_ids: Collection[str]) -> None:
        """Forget snapshots; those that are not there are none the less forgotten.

        Their content goes with the next `gc`. History stays readable: git is told where
        it has been cut.
        """
        pins = {_pin(each) for each in snapshot_ids}
        with self.lock():
            self._directory.sweep()
            found = self._refs.found(PINS)
            gone = {ref for name, ref in found.items() if name in pins}
            gone -= {ref for name, ref in found.items() if name not in pins}
            moves = self._main() in gone
            self._directory.begin_epoch()
            self._refs.delete(pins & found.keys())  # first: it makes room on a full disk
            fault_point("prune.unpinned")
            if moves:
                self._move_main(gone)
                fault_point("prune.moved")
            self._cut()

    def gc(self) -> None:
        """Put everything that can be reached into one pack, and remove the rest.

        Raises:
            SnapshotError: A ref, or an object that is needed, is missing or damaged;
                nothing has been removed. The message says which snapshots to forget.
        """
        with self.lock():
            self._directory.sweep()
            self._mend_main()
            try:
                kept = reachable(self.objects, self._roots())
                self._directory.begin_epoch()
                self._refs.write_shallow(kept.cut)
                fault_point("gc.marked")
                replaced = [*self.objects.packs(), *self.objects.damaged_packs()]
                self.objects.rewrite(kept, replaced)
            except ObjectError as error:
                advice = self._advice()
                raise SnapshotError(f"Snapshot store is damaged: {error}; {advice}") from error
            self.objects.remove_loose()

    def verify(self) -> list[SnapshotProblem]:
        """Read every object of every snapshot; return what is missing or damaged."""
        with self.lock():
            found = self._refs.found(PINS)
            problems = [
                SnapshotProblem(None, f"Pack cannot be read: {name!r}: {error}")
                for name, error in self.objects.damaged_packs().items()
            ]
            if not self._refs.head_is_ours():
                problems.append(SnapshotProblem(None, "HEAD does not lead to the main branch"))
            if found and self._main() is None:
                problems.append(SnapshotProblem(None, f"Ref is missing or damaged: {MAIN!r}"))
            return problems + self._snapshot_problems()

    def size(self) -> StoreSize:
        """Return how much there is."""
        with self.lock():
            return StoreSize(
                bytes=_bytes_below(self.git_dir),
                objects=len(set(self.objects.ids())),
                packs=len(self.objects.packs()),
                snapshots=len(self._refs.found(PINS)),
            )

    def remove(self) -> bool:
        """Remove the repository unless somebody uses it; return whether it is gone."""
        with self._mutex:
            self.objects.close()
            return self._directory.remove()

    def close(self) -> None:
        """Let go of the files that are open."""
        self.objects.close()

    def _snapshot_problems(self) -> list[SnapshotProblem]:
        verification = Verification(self.objects)
        pins = sorted(self._refs.found(PINS).items())
        return [
            problem
            for name, ref in pins
            for problem in verification.problems(name.removeprefix(PINS), ref)
        ]

    def _advice(self) -> str:
        """Return what to do about damage that gc cannot pass over."""
        ids = sorted({each.snapshot_id or "" for each in self._snapshot_problems()})
        if not ids:
            return "no snapshot needs it, but a ref that git has made: remove that with git"
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        names = ", ".join(map(repr, ids[:_SHOWN]))
        return (
            f"forget the snapshots that need it, which verify() names, and try again: {names}{more}"
        )

    def _mend_main(self) -> None:
        """Let the main branch follow again if it leads to what nobody can forget.

        That is a commit of ours that was never pinned, or one that cannot be read. What
        a person has put there stays.
        """
        main = self._main()
        if main is None or main in self._refs.found(PINS).values():
            return
        try:
            _, data = self.objects.read(main)
        except ObjectError:
            self._move_main([main])
            return
        with suppress(ObjectError):  # it is not one of ours
            decode_commit(main, data)
            self._move_main([main])

    def _publish(self, ref: str, pin: str, objects: PackTransaction) -> None:
        """Make a commit visible with all the objects of its batch, and then its refs."""
        with self._refs.prepared(ref) as main, self._refs.prepared(ref) as pinned:
            objects.finish(beside=(main.descriptor, pinned.descriptor))
            fault_point("commit.stored")
            self._refs.publish(main, MAIN)
            fault_point("commit.moved")
            self._refs.publish(pinned, pin)
            fault_point("commit.pinned")

    def _main(self) -> str | None:
        """Return the commit of the main branch; it only follows, so damage is not fatal."""
        try:
            return self._refs.read(MAIN)
        except SnapshotError:
            return None

    def _latest(self) -> tuple[tuple[str, ...], int]:
        """Return the snapshot that the next one follows, if there is one, and its number."""
        main = self._main()
        ref, sequence = self._last
        if ref == main and ref in self.objects:
            return (ref,), sequence
        latest = None
        if main is not None:
            try:
                latest = self.read_commit(main)
            except SnapshotError as error:
                _log.warning("Main branch is damaged, and starts again: %s", error)
        latest = latest or max(self.commits(), key=lambda each: each.sequence, default=None)
        return ((), 0) if latest is None else ((latest.ref,), latest.sequence)

    def _move_main(self, gone: Collection[str | None]) -> None:
        left = [commit for commit in self.commits() if commit.ref not in gone]
        if left:
            self._refs.write(MAIN, left[-1].ref)
        else:
            self._refs.delete([MAIN])

    def _cut(self) -> None:
        """Tell git which commits have lost their parents; if it fails, `gc` does it."""
        try:
            kept = reachable(self.objects, self._roots(), content=False)
            self._refs.write_shallow(kept.cut)
        except (ObjectError, SnapshotError, OSError) as error:
            _log.warning("History cannot be cut: %s", error)

    def _roots(self) -> set[str]:
        """Return every commit that something points to, whoever made it do so."""
        found = self._refs.found()
        damaged = sorted(name for name, ref in found.items() if ref is None and name != MAIN)
        if damaged:
            name = damaged[0]
            advice = "remove it with git"
            if name.startswith(PINS):
                advice = f"forget {name.removeprefix(PINS)!r}"
            raise SnapshotError(f"Ref is damaged: {name!r}; {advice}")
        head = self._refs.detached_head()
        return {ref for ref in (*found.values(), head) if ref is not None}

    def _tidy(self) -> None:
        """Keep the number of packs small; the snapshot is made, whatever happens here."""
        try:
            self.objects.merge_small_packs()
        except (ObjectError, OSError) as error:
            _log.warning("Packs could not be merged: %s", error)


def _pin(snapshot_id: str) -> str:
    if not _SNAPSHOT_ID.fullmatch(snapshot_id):
        raise SnapshotError(f"Snapshot id is not a plain name: {snapshot_id!r}")
    return PINS + snapshot_id


def _bytes_below(directory: Path) -> int:
    """Return the size of all files; one that goes meanwhile, as temporary ones do, has none."""
    total = 0
    for top, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_size
    return total
