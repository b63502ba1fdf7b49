"""A bare git repository for snapshots: commits, refs, pruning, garbage collection and checks.

Objects, commits and refs are behind one lock. No git program runs.
"""

import hashlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Collection, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self
from uuid import UUID

from weakincentives.errors import SnapshotError
from weakincentives.gitstore.commit_log import CommitLog, LoggedCommit
from weakincentives.gitstore.directory import MAIN, PINS, GitDirectory, Refs
from weakincentives.gitstore.objects import ObjectError, ObjectStore, is_object_id
from weakincentives.gitstore.pack_writer import PackTransaction
from weakincentives.gitstore.trees import (
    Commit,
    commit_references,
    date_of_name,
    decode_commit,
    encode_commit,
    new_name,
    tag_reference,
    tree_references,
)
from weakincentives.gitstore.verify import SnapshotProblem, Verification
from weakincentives.posix import fault_point

_SNAPSHOT_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_MAX_LISTED = 5  # ids in a message
_KEPT = "refs/kept/"
_log = logging.getLogger(__name__)


def find_reachable(
    objects: ObjectStore, refs: Iterable[str], *, content: bool = True
) -> tuple[list[str], set[str]]:
    """Return the objects that are reachable from `refs`, and the commits whose parents are not.

    A commit of ours does not keep its parents: each snapshot has a ref. A commit that a
    person made with git keeps all its ancestors. Without `content` only commits and tags are
    read.

    Raises:
        ObjectError: A commit or a tree is missing or damaged.
    """
    found: dict[str, None] = {}
    blobs: dict[str, None] = {}
    parents: dict[str, list[str]] = {}
    pending: list[tuple[str, str | None]] = [(ref, None) for ref in sorted(set(refs))]
    while pending:
        ref, wanted = pending.pop()
        if ref in found:
            continue
        kind, data = objects.read(ref, wanted)
        found[ref] = None
        if kind == "commit":
            tree, parents[ref] = commit_references(data)
            pending += [(each, None) for each in ([] if _is_ours(ref, data) else parents[ref])]
            pending += [(tree, "tree")] if content else []
        elif kind == "tag":
            pending.append((tag_reference(data), None))
        elif kind == "tree" and content:
            references = list(tree_references(data))
            pending += [(each, kind) for is_tree, each in references if is_tree]
            blobs.update((each, None) for is_tree, each in references if not is_tree)
    shallow = {ref for ref, each in parents.items() if not found.keys() >= set(each)}
    return [*found, *blobs], shallow


def _is_ours(ref: str, data: bytes) -> bool:
    try:
        decode_commit(ref, data)
    except ObjectError:
        return False
    return True


def default_git_dir(root: Path) -> Path:
    """Return the default location of a workspace's snapshots."""
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()
    return Path(tempfile.gettempdir()) / f"wink-git-{os.getuid()}-{digest[:32]}"


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a repository; `bytes` counts its files on disk."""

    bytes: int
    objects: int
    packs: int
    snapshots: int


class Repository:
    """The snapshots of one workspace; safe to share between threads and processes.

    Changes that belong together, such as a batch of objects and the commit that uses them, are
    made inside one `with repository.lock()`.
    """

    def __init__(self, directory: GitDirectory, *, durable: bool = True) -> None:
        """Use `create` or `open`."""
        self._directory = directory
        self._refs = Refs(directory, durable=durable)
        self._mutex = threading.RLock()
        self._depth = 0
        self._last = "", 0  # the last commit made here, and its sequence number
        self.objects: ObjectStore = ObjectStore(directory.path / "objects", durable=durable)
        self._log = CommitLog(directory, self._refs, self.objects)
        if durable and self._log.needs_replay:
            with self.lock():
                self._log.checkpoint()

    @classmethod
    def create(cls, git_dir: Path, *, root: Path, durable: bool = True) -> Self:
        """Return the repository at `git_dir` for the workspace `root`; create it if missing.

        Raises:
            SnapshotError: The directory was not made by this package, or is of another workspace.
        """
        return cls(GitDirectory(git_dir, str(root.resolve())), durable=durable)

    @classmethod
    def open(cls, git_dir: Path, *, durable: bool = True) -> Self:
        """Return the repository at `git_dir`.

        Raises:
            SnapshotError: It is missing, or was not made by this package.
        """
        return cls(GitDirectory(git_dir), durable=durable)

    @property
    def git_dir(self) -> Path:
        """The directory of the repository."""
        return self._directory.path

    @property
    def root(self) -> str:
        """The workspace it belongs to."""
        return self._directory.marker.root

    def epoch(self) -> str:
        """Return a token that changes whenever objects may have been removed.

        A cache of stored object ids is invalid when it changes.
        """
        return self._directory.epoch()

    @contextmanager
    def lock(self) -> Generator[None, None, None]:
        """Hold the exclusive write lock; waits for other writers; reentrant."""
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
        """Hold a shared lock that keeps other processes from removing the repository."""
        return self._directory.prevent_removal()

    def commit(
        self,
        tree: str,
        *,
        snapshot_id: str,
        created_at: datetime,
        tag: str | None = None,
        batch: PackTransaction | None = None,
        wait: bool = True,
    ) -> str:
        """Commit a tree that is stored, or in `batch`, as a snapshot; return the commit.

        The batch is finished: all of it becomes visible with the commit. Without `wait`, a small
        one reaches the disk soon after.

        Raises:
            SnapshotError: The id is invalid or taken, or the tree is missing.
        """
        pin = _pin(snapshot_id)
        with self.lock():
            if not self._last[0]:
                self._directory.sweep()
            if self._refs.read(pin) is not None:
                raise SnapshotError(f"Snapshot exists already: {snapshot_id!r}")
            parents, sequence = self._find_parent()
            with batch or self.objects.begin_pack() as objects:
                if tree not in objects and tree not in self.objects:
                    raise SnapshotError(f"Tree is missing: {tree!r}")
                new = snapshot_id, sequence + 1, created_at, tag, self.root
                ref = objects.add("commit", encode_commit(Commit("", tree, parents, *new)))
                self._publish(ref, pin, objects, wait=wait)
            self._last = ref, sequence + 1
            self._merge_packs()
        return ref

    def name_again(self, snapshot_id: str, commit: str, now: datetime) -> UUID | None:
        """Give the latest snapshot another id and return that; None if it is not the latest.

        The new ref is a hard link to the other one. It needs no sync: the commit is durable.
        """
        name, pins = new_name(now), f"{self.git_dir}/{PINS}"
        with self.lock():
            if self._read_main() != commit or commit not in self.objects:
                return None
            try:
                os.link(pins + snapshot_id, f"{pins}{name}")
            except OSError:  # forgotten, packed by git, or not supported here
                return None
        return name

    def keep(self, name: str, object_id: str, batch: PackTransaction | None = None) -> None:
        """Keep an object, and all that it refers to, by a name; `prune` does not remove it.

        A `batch` with new objects is finished first.
        """
        with self.lock():
            if batch is not None:
                batch.finish()
            self._refs.write(_KEPT + _pin(name).removeprefix(PINS), object_id)

    def read_commit(self, ref: str) -> Commit:
        """Return a commit.

        Raises:
            SnapshotError: It is missing, damaged, or was not made by this package.
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
        """Return all snapshots, oldest first; unreadable ones are logged and left out."""
        found: list[Commit] = []
        for name, ref in self._refs.read_all(PINS).items():
            snapshot_id = name.removeprefix(PINS)
            date = date_of_name(snapshot_id)
            try:
                commit = self.read_commit(ref or "")
                if date is not None:
                    commit = replace(commit, snapshot_id=snapshot_id, created_at=date, tag=None)
                found.append(commit)
            except SnapshotError as error:
                _log.warning("Snapshot cannot be read: %r: %s", name, error)
        return sorted(found, key=lambda each: (each.sequence, each.created_at, each.ref))

    def find_commit(self, tree: str) -> str | None:
        """Return the latest commit of this tree, or None."""
        found = (each.ref for each in reversed(self.commits()) if each.tree == tree)
        return next(found, None)

    def prune(self, snapshot_ids: Collection[str]) -> None:
        """Remove the refs of snapshots; idempotent.

        Their content is removed by the next `gc`. History stays readable for git: the new ends
        of history are recorded in `shallow`.
        """
        pins = {_pin(each) for each in snapshot_ids}
        with self.lock():
            self._directory.sweep()
            found = self._refs.read_all(PINS)
            removed = {ref for name, ref in found.items() if name in pins}
            removed -= {ref for name, ref in found.items() if name not in pins}
            is_main_removed = self._read_main() in removed
            self._log.checkpoint()  # in the next epoch it is not valid any more
            self._directory.begin_epoch()
            self._refs.delete(pins & found.keys())  # first: it frees space on a full disk
            fault_point("prune.unpinned")
            if is_main_removed:
                self._move_main(removed)
                fault_point("prune.moved")
            self._update_shallow()

    def gc(self) -> None:
        """Collect garbage: keep what can be reached, in one pack or two, and remove the rest.

        Raises:
            SnapshotError: A ref, or an object that is needed, is missing or damaged;
                nothing was removed. The message names the snapshots to forget.
        """
        with self.lock():
            self._directory.sweep()
            self._repair_main()
            try:
                kept, shallow = find_reachable(self.objects, self._find_roots())
                self._log.checkpoint()  # in the next epoch it is not valid any more
                self._directory.begin_epoch()
                self._refs.write_shallow(shallow)
                fault_point("gc.marked")
                self.objects.collect(kept)
            except ObjectError as error:
                advice = self._advice()
                raise SnapshotError(f"Snapshot store is damaged: {error}; {advice}") from error

    def verify(self) -> list[SnapshotProblem]:
        """Verify every object of every snapshot; return what is missing or damaged."""
        with self.lock():
            found = self._refs.read_all(PINS)
            problems = [
                SnapshotProblem(None, f"Pack cannot be read: {name!r}: {error}")
                for name, error in self.objects.damaged_packs().items()
            ]
            if not self._refs.is_head_on_main():
                problems.append(SnapshotProblem(None, "HEAD does not point to the main branch"))
            if found and self._read_main() is None:
                problems.append(SnapshotProblem(None, f"Ref is missing or damaged: {MAIN!r}"))
            return problems + self._find_snapshot_problems()

    def size(self) -> StoreSize:
        """Return the size of the repository."""
        with self.lock():
            return StoreSize(
                bytes=_bytes_below(self.git_dir),
                objects=len(set(self.objects.ids())),
                packs=len(self.objects.packs()),
                snapshots=len(self._refs.read_all(PINS)),
            )

    def remove(self) -> bool:
        """Remove the repository unless it is in use; return whether it is gone."""
        with self._mutex:
            self.objects.close()
            return self._directory.remove()

    def close(self) -> None:
        """Close the open files, and free what only an open repository needs."""
        if self._log.is_used:
            with suppress(OSError, SnapshotError), self.lock():  # it may be gone
                self._log.trim()
        self.objects.close()

    def _find_snapshot_problems(self) -> list[SnapshotProblem]:
        verification = Verification(self.objects)
        pins = sorted(self._refs.read_all(PINS).items())
        return [
            problem
            for name, ref in pins
            for problem in verification.find_problems(name.removeprefix(PINS), ref)
        ]

    def _advice(self) -> str:
        """Return how to fix damage that stops gc."""
        ids = sorted({each.snapshot_id or "" for each in self._find_snapshot_problems()})
        if not ids:
            return "no snapshot needs it, but a ref created with git does: remove that with git"
        more = f" and {len(ids) - _MAX_LISTED} more" if len(ids) > _MAX_LISTED else ""
        names = ", ".join(map(repr, ids[:_MAX_LISTED]))
        return (
            f"forget the snapshots that need it, which verify() lists, and try again: {names}{more}"
        )

    def _repair_main(self) -> None:
        """Move the main branch to the latest snapshot if its commit cannot be pruned.

        That is a commit of ours without a pin, or an unreadable one. A commit that a person
        made stays.
        """
        main = self._read_main()
        if main is None or main in self._refs.read_all(PINS).values():
            return
        try:
            _, data = self.objects.read(main)
        except ObjectError:
            self._move_main([main])
            return
        with suppress(ObjectError):  # it was not made by this package
            decode_commit(main, data)
            self._move_main([main])

    def _publish(self, ref: str, pin: str, objects: PackTransaction, *, wait: bool) -> None:
        """Publish a commit with all the objects of its batch, then its refs."""

        def log(pack: bytes, index: bytes) -> bool:
            return self._log.append(LoggedCommit(ref, pin, pack, index), wait=wait)

        with self._refs.prepare(ref) as main, self._refs.prepare(ref) as pinned:
            try:
                objects.finish((main.descriptor, pinned.descriptor), log)
                fault_point("commit.stored")
                self._refs.publish(main, MAIN)
                fault_point("commit.moved")
                self._refs.publish(pinned, pin, durable=not objects.is_logged)
                fault_point("commit.pinned")
            except BaseException:
                self._log.withdraw(ref)
                raise

    def _read_main(self) -> str | None:
        """Return the commit of the main branch; None if damaged, for pins keep snapshots."""
        try:
            return self._refs.read(MAIN)
        except SnapshotError:
            return None

    def _find_parent(self) -> tuple[tuple[str, ...], int]:
        """Return the parents of the next commit, none or one, and the last sequence number."""
        main = self._read_main()
        ref, sequence = self._last
        if ref == main and ref in self.objects:
            return (ref,), sequence
        latest = None
        if main is not None:
            try:
                latest = self.read_commit(main)
            except SnapshotError as error:
                _log.warning("Main branch is damaged and will be reset: %s", error)
        latest = latest or max(self.commits(), key=lambda each: each.sequence, default=None)
        return ((), 0) if latest is None else ((latest.ref,), latest.sequence)

    def _move_main(self, removed: Collection[str | None]) -> None:
        left = [commit for commit in self.commits() if commit.ref not in removed]
        if left:
            self._refs.write(MAIN, left[-1].ref)
        else:
            self._refs.delete([MAIN])

    def _update_shallow(self) -> None:
        """Record which commits have lost their parents; if it fails, `gc` does it."""
        try:
            _, shallow = find_reachable(self.objects, self._find_roots(), content=False)
            self._refs.write_shallow(shallow)
        except (ObjectError, SnapshotError, OSError) as error:
            _log.warning("Could not update the file 'shallow': %s", error)

    def _find_roots(self) -> set[str]:
        """Return the targets of all refs, ours and those created with git."""
        found = self._refs.read_all()
        damaged = sorted(name for name, ref in found.items() if ref is None and name != MAIN)
        if damaged:
            name = damaged[0]
            advice = "remove it with git"
            if name.startswith(PINS):
                advice = f"forget {name.removeprefix(PINS)!r}"
            raise SnapshotError(f"Ref is damaged: {name!r}; {advice}")
        head = self._refs.read_detached_head()
        return {ref for ref in (*found.values(), head) if ref is not None}

    def _merge_packs(self) -> None:
        """Keep the number of packs small; a failure does not affect the snapshot."""
        try:
            self.objects.merge_small_packs()
        except (ObjectError, OSError) as error:
            _log.warning("Packs could not be merged: %s", error)


def _pin(snapshot_id: str) -> str:
    if not _SNAPSHOT_ID.fullmatch(snapshot_id):
        raise SnapshotError(
            "Snapshot id must be 1 to 64 letters, digits, '-' or '_', starting with a letter or"
            f" digit: {snapshot_id!r}"
        )
    return PINS + snapshot_id


def _bytes_below(directory: Path) -> int:
    """Return the total size of all files; files that disappear meanwhile count as empty."""
    total = 0
    for top, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(top, name).lstat().st_size
    return total
