"""The tree of a workspace, changed path by path.

A step stores what it changed, not the directories above. They are computed: by the recorder, whose
tree has the id that the step stores, and by whoever reads the step and must get the same id.
"""

from collections.abc import Callable, Iterator

from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.filesystem.manifest import (
    DIRECTORY_PERMISSIONS,
    FILES,
    MANIFEST,
    SnapshotManifest,
    default_file_permissions,
)
from weakincentives.gitstore import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    ObjectError,
    ObjectStore,
    TreeEntry,
    decode_tree,
    encode_entry,
    encode_tree,
    entry_key,
)
from weakincentives.posix import join, parents_of
from weakincentives.runtime.timeline.steps import Entry, FileChanges

_LINK_PERMISSIONS = 0o777
_SPECIAL_PERMISSIONS = 0o644
_MAX_TARGET = 4096
_UNKNOWN = "0" * 40  # the id of a directory that is not written yet


class Directory:
    """A directory whose entries are known; directories in it are read when they are needed.

    Each entry is kept as git encodes it too, because mostly one of many changes.
    """

    __slots__ = ("_is_sorted", "encoded", "entries", "inner", "is_changed")

    def __init__(
        self, entries: dict[str, TreeEntry] | None = None, encoded: dict[str, bytes] | None = None
    ) -> None:
        """Begin with these entries; an empty directory is new."""
        self.entries: dict[str, TreeEntry] = entries or {}
        if encoded is None:
            found = self.entries.values()
            encoded = {each.name: _encode(each) for each in found}
        self.encoded: dict[str, bytes] = encoded
        self.inner: dict[str, Directory] = {}
        self.is_changed: bool = entries is None
        self._is_sorted = False

    def copy(self) -> "Directory":
        """Return a copy that can be changed, without the directories in it."""
        copy = Directory(dict(self.entries), dict(self.encoded))
        copy._is_sorted = self._is_sorted  # of the same class
        return copy

    def put(self, name: str, mode: int, object_id: str) -> None:
        """Add or replace an entry."""
        known = self.entries.get(name)
        self._is_sorted &= known is not None and (known.mode == DIRECTORY) == (mode == DIRECTORY)
        self.entries[name] = entry = TreeEntry(name, mode, object_id)
        self.encoded[name] = _encode(entry)

    def remove(self, name: str) -> None:
        """Remove an entry, if it is there."""
        self.entries.pop(name, None)
        self.encoded.pop(name, None)
        self.inner.pop(name, None)

    def content(self) -> bytes:
        """Return the git tree."""
        if not self._is_sorted:
            found = self.encoded.items()
            self.encoded = dict(sorted(found, key=lambda each: entry_key(each[1])))
            self._is_sorted = True
        return b"".join(self.encoded.values())


def _encode(entry: TreeEntry) -> bytes:
    return encode_entry(entry.name, entry.mode, bytes.fromhex(entry.id))


class WorkspaceTree:
    """The files of a workspace at one step, by path; `write` computes the tree after changes."""

    def __init__(
        self,
        objects: ObjectStore,
        tree: str | None = None,
        known: dict[str, Directory] | None = None,
    ) -> None:
        """Begin with the stored `tree` of a snapshot, or with an empty workspace.

        Directories are added to `known`, by tree, and need not be read again.

        Raises:
            ObjectError: It is missing or damaged.
            SnapshotRestoreError: It is not the tree of a snapshot.
        """
        self._objects = objects
        self._known = known
        self._root = Directory()
        self._modes: dict[str, int] = {}
        self._specials: set[str] = set()
        self._manifest: str | None = None  # the blob, while it is valid
        self._sizes: dict[str, int] = {}  # of content that was put in
        self._targets: dict[str, str] = {}
        if tree is not None:
            found = SnapshotFilesystem(objects, tree, "/")
            self._root = self._load(found.files)
            self._modes = dict(found.manifest.modes)
            self._specials = set(found.manifest.specials)
            self._manifest = found.manifest_id
        self._tree = tree

    def names(self, path: str) -> set[str]:
        """Return the names in a directory; none if it is something else, or nothing."""
        directory = self._find_directory(path)
        if directory is None:
            return set()
        prefix = f"{path}/" if path else ""
        specials = {
            each.removeprefix(prefix)
            for each in self._specials
            if each.startswith(prefix) and "/" not in each[len(prefix) :]
        }
        return directory.entries.keys() | specials

    def entry(self, path: str) -> Entry | None:
        """Return the entry at a path; None if there is none.

        Raises:
            ObjectError: It is damaged.
        """
        found = self.find(path)
        if found is None:
            is_special = path in self._specials
            return Entry(path, "special", _SPECIAL_PERMISSIONS) if is_special else None
        if found.mode == DIRECTORY:
            return Entry(path, "directory", self.permissions(path, DIRECTORY))
        if found.mode == LINK:
            target = self._targets.get(found.id)
            if target is None:
                data = self._objects.read(found.id)[1][:_MAX_TARGET]
                target = data.decode("utf-8", "surrogateescape")
            return Entry(path, "link", _LINK_PERMISSIONS, id=found.id, target=target)
        size = self._sizes.get(found.id)
        if size is None:
            size = self._objects.size_of(found.id)
        return Entry(path, "file", self.permissions(path, found.mode), size, found.id)

    def find(self, path: str) -> TreeEntry | None:
        """Return what git knows of the entry at a path, which is not a special file."""
        parent, _, name = path.rpartition("/")
        directory = self._find_directory(parent)
        return None if directory is None else directory.entries.get(name)

    def permissions(self, path: str, mode: int) -> int:
        """Return the permissions of an entry with this git mode."""
        default = DIRECTORY_PERMISSIONS
        if mode != DIRECTORY:
            default = default_file_permissions(executable=mode == EXECUTABLE)
        return self._modes.get(path, default)

    def paths(self, path: str = "") -> Iterator[str]:
        """Yield every path below a directory, each directory before what is in it."""
        pending = [path]
        for directory in pending:  # grows while it is iterated
            for name in sorted(self.names(directory)):
                pending.append(join(directory, name))
                yield pending[-1]

    def ids(self, path: str) -> Iterator[str]:
        """Yield the id of the content of every file and link at and below a path."""
        for each in (path, *self.paths(path)):
            found = self.find(each)
            if found is not None and found.mode != DIRECTORY:
                yield found.id

    def apply(self, changes: FileChanges) -> None:
        """Make the changes of a step."""
        for path in changes.removed:
            self.remove(path)
        for each in changes.entries:
            self.put(each)

    def remove(self, path: str) -> None:
        """Remove an entry with everything below it."""
        parent, _, name = path.rpartition("/")
        if self.find(path) is not None:
            directory = self._change_directory(parent)
            directory.remove(name)
        self._forget(path)

    def put(self, entry: Entry) -> None:
        """Add or replace an entry; the directories above it are created.

        Raises:
            ObjectError: A file is in the way of a directory.
        """
        parent, _, name = entry.path.rpartition("/")
        directory = self._change_directory(parent)
        known = directory.entries.get(name)
        if known is not None and (known.mode == DIRECTORY) != (entry.kind == "directory"):
            self.remove(entry.path)
        self._note(entry)
        if entry.kind == "directory":
            if name not in directory.entries:
                directory.inner[name] = Directory()
                directory.put(name, DIRECTORY, _UNKNOWN)
            return
        directory.inner.pop(name, None)
        if entry.id is None:  # a special file, or one that cannot be read
            directory.remove(name)
            return
        if entry.target is not None:
            self._targets[entry.id] = entry.target
        self._sizes[entry.id] = entry.size
        mode = LINK if entry.kind == "link" else EXECUTABLE if entry.permissions & 0o100 else FILE
        directory.put(name, mode, entry.id)

    def write(self, add: Callable[[str, bytes], str]) -> str:
        """Return the id of the tree; `add` stores each new object, and returns its id."""
        if self._manifest is None:
            manifest = SnapshotManifest(self._modes, tuple(sorted(self._specials)))
            self._manifest = add("blob", manifest.encode())
            self._tree = None
        if self._root.is_changed or self._tree is None:
            files = self._write(add)
            entries = (
                TreeEntry(MANIFEST, FILE, self._manifest),
                TreeEntry(FILES, DIRECTORY, files),
            )
            self._tree = add("tree", encode_tree(entries))
        return self._tree

    def _write(self, add: Callable[[str, bytes], str]) -> str:
        """Store the directories that have changed, the innermost first."""
        found: list[tuple[Directory | None, str, Directory]] = [(None, "", self._root)]
        for _, _, directory in found:  # grows while it is iterated
            found += [
                (directory, name, inner)
                for name, inner in directory.inner.items()
                if inner.is_changed
            ]
        tree = ""
        for above, name, directory in reversed(found):
            tree = add("tree", directory.content())
            if above is not None:
                above.put(name, DIRECTORY, tree)
            directory.is_changed = False
            if self._known is not None:
                self._known[tree] = directory.copy()
        return tree

    def _note(self, entry: Entry) -> None:
        """Keep in the manifest what git cannot express of an entry."""
        path = entry.path
        plain = DIRECTORY_PERMISSIONS
        if entry.kind == "file":
            plain = default_file_permissions(executable=bool(entry.permissions & 0o100))
        is_special = entry.id is None and entry.kind != "directory"
        has_mode = entry.kind in {"file", "directory"} and entry.permissions != plain
        mode = entry.permissions if has_mode and not is_special else None
        if self._modes.get(path) != mode:
            self._manifest = None
            self._modes.pop(path, None)
            if mode is not None:
                self._modes[path] = mode
        if is_special != (path in self._specials):
            self._manifest = None
            (self._specials.add if is_special else self._specials.discard)(path)

    def _forget(self, path: str) -> None:
        """Remove what the manifest says about a path and everything below it."""
        prefix = f"{path}/"
        for name in [*self._modes, *self._specials]:
            if name == path or name.startswith(prefix):
                self._manifest = None
                self._modes.pop(name, None)
                self._specials.discard(name)

    def _find_directory(self, path: str) -> Directory | None:
        directory = self._root
        for name in path.split("/") if path else ():
            inner = directory.inner.get(name)
            if inner is None:
                found = directory.entries.get(name)
                if found is None or found.mode != DIRECTORY:
                    return None
                inner = directory.inner[name] = self._load(found.id)
            directory = inner
        return directory

    def _change_directory(self, path: str) -> Directory:
        """Return a directory to change; it is created if it is missing."""
        for each in parents_of(path) if path else ():
            if self._find_directory(each) is None:
                self.put(Entry(each, "directory", DIRECTORY_PERMISSIONS))
        if path and self._find_directory(path) is None:
            self.put(Entry(path, "directory", DIRECTORY_PERMISSIONS))
        directory = self._root
        directory.is_changed = True
        for name in path.split("/") if path else ():
            directory = directory.inner[name]
            directory.is_changed = True
        return directory

    def _load(self, tree: str) -> Directory:
        if self._known is not None and tree in self._known:
            return self._known[tree].copy()
        kind, data = self._objects.read(tree)
        if kind != "tree":
            raise ObjectError(f"Object is a {kind}, not a tree: {tree!r}")
        found = Directory({each.name: each for each in decode_tree(data)})
        if self._known is not None:
            self._known[tree] = found.copy()
        return found
