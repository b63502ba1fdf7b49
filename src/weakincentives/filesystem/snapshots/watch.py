"""What is known about a directory: its last capture, and what has changed since."""

from collections.abc import Iterator
from dataclasses import dataclass

from weakincentives.filesystem.hostfile import identity_of
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.snapshots.capture import capture
from weakincentives.filesystem.snapshots.captured import Captured, CapturedDirectory, CapturedFile
from weakincentives.filesystem.snapshots.index import changed_files, load_index, save_index
from weakincentives.filesystem.snapshots.partial import store_tree
from weakincentives.filesystem.snapshots.view import Manifest
from weakincentives.filesystem.store.batches import Batch
from weakincentives.filesystem.store.repository import Repository

_INDEX = "wink-index"


class Watch:
    """One directory; `exclusive` if nobody changes it without telling."""

    def __init__(self, directory: RootedDirectory, *, exclusive: bool) -> None:
        """Know nothing yet."""
        self._directory = directory
        self._exclusive = exclusive
        self._known: CapturedDirectory | None = None
        self._tree = ""
        self._manifest = ""
        self._epoch = ""
        self._touched: set[str] = set()
        self._saved: CapturedDirectory | None = None
        self._outside = 0  # how often somebody else may have changed something
        self._looked = 0  # how often of these we have looked

    @property
    def known(self) -> CapturedDirectory:
        """What was captured last."""
        if self._known is None:
            raise RuntimeError("Nothing has been captured yet")
        return self._known

    def touch(self, *paths: str) -> None:
        """Take note that what is at `paths` changes."""
        if self._exclusive:
            self._touched.update(paths)

    def changed_outside(self) -> None:
        """Take note that anything may have changed."""
        self._outside += 1

    def forget(self) -> None:
        """Know nothing any more."""
        self._known = None

    def look(self, repository: Repository, batch: Batch) -> "Look":
        """Capture the directory, with every new object in `batch`."""
        repository.objects.refresh(closely=True)
        epoch = f"{repository.epoch()} {repository.objects.losses}"
        # what was stored may have been removed since
        known = self._known if epoch == self._epoch else None
        prior = known or self._remembered(repository)
        touched, outside = frozenset(self._touched), self._outside
        trusted = self._exclusive and self._looked == outside and known is not None
        found = capture(self._directory, batch, prior, touched if trusted else None)
        tree = self._tree
        manifest = self._manifest
        if known is None or found.notes != known.notes:
            manifest = batch.add("blob", Manifest(found.modes, found.specials).encode())
        if found is not known:
            tree = store_tree(batch, found.id, manifest)
        return Look(self, found, tree, manifest, epoch, touched, outside)

    def save(self, repository: Repository, *, least: int = 1) -> None:
        """Keep what is known for the next process, if at least so many files are new."""
        known = self._known
        if known is not None and changed_files(self._saved, known) >= least:
            path = repository.git_dir / _INDEX
            save_index(path, known, root=repository.root, epoch=repository.epoch())
            self._saved = known

    def _remembered(self, repository: Repository) -> CapturedDirectory | None:
        """Return what an earlier process has seen, if all of it is still stored."""
        if self._known is not None:
            return None
        path = repository.git_dir / _INDEX
        found = load_index(path, root=repository.root, epoch=repository.epoch())
        if found is None or not all(map(repository.objects.knows, _ids(found))):
            return None
        self._saved = found
        return found

    def learn(self, look: "Look") -> None:
        """Rely on a capture from now on: its objects are stored."""
        self._known, self._tree, self._epoch = look.found, look.tree, look.epoch
        self._manifest = look.manifest
        self._touched -= look.touched
        self._looked = look.outside

    def blob_id(self, path: str) -> str | None:
        """Return git's id of a file's content, if the file is surely as it was captured."""
        node: Captured | None = self._known
        for segment in path.split("/"):
            if not isinstance(node, CapturedDirectory):
                return None
            node = node.children.get(segment)
        if not isinstance(node, CapturedFile):
            return None
        try:
            found, _ = self._directory.lstat(path)
        except OSError:
            return None
        return node.id if node.identity == identity_of(found) else None


def _ids(captured: CapturedDirectory) -> Iterator[str]:
    """Yield the id of every object that is part of a capture."""
    pending: list[CapturedDirectory] = [captured]
    while pending:
        directory = pending.pop()
        yield directory.id
        for child in directory.children.values():
            if isinstance(child, CapturedDirectory):
                pending.append(child)
            else:
                yield child.id


@dataclass(frozen=True, slots=True)
class Look:
    """What a capture found; it is relied on once `remember` is called."""

    watch: Watch
    found: CapturedDirectory
    tree: str
    manifest: str
    epoch: str
    touched: frozenset[str]
    outside: int

    def remember(self) -> None:
        """Say that everything that was found has been stored."""
        self.watch.learn(self)
