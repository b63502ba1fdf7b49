"""Git's ids of contents and trees, computed without git: what a snapshot must hold."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Folder:
    """A directory: the ids of its files, and its directories."""

    files: dict[str, str] = field(default_factory=dict[str, str])
    folders: dict[str, "_Folder"] = field(default_factory=dict[str, "_Folder"])


class ExpectedTree:
    """Files that must be there, no more and no less, and the one id that git has for them all."""

    def __init__(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Expect `files`."""
        self._root = _Folder()
        self._id = ""
        for path, content in files:
            self.write(path, content)

    def write(self, path: str, content: bytes) -> None:
        """Expect `content` at `path` from now on."""
        *folders, name = path.split("/")
        folder = self._root
        for each in folders:
            folder = folder.folders.setdefault(each, _Folder())
        folder.files[name] = object_id("blob", content)
        self._id = ""

    @property
    def id(self) -> str:
        """The id of the whole tree."""
        self._id = self._id or _tree_id(self._root)
        return self._id


def object_id(kind: str, data: bytes) -> str:
    """The id of a git object."""
    header = f"{kind} {len(data)}\0".encode()
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def _tree_id(folder: _Folder) -> str:
    entries = sorted(_entries(folder), key=lambda entry: entry[0])
    return object_id("tree", b"".join(encoded for _, encoded in entries))


def _entries(folder: _Folder) -> Iterator[tuple[str, bytes]]:
    """Yield what a tree is sorted by (directories as if they ended with `/`), and its bytes."""
    for name, blob in folder.files.items():
        yield name, f"100644 {name}\0".encode() + bytes.fromhex(blob)
    for name, child in folder.folders.items():
        yield f"{name}/", f"40000 {name}\0".encode() + bytes.fromhex(_tree_id(child))
