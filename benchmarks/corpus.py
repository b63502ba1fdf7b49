"""The trees that are measured: built once, kept in the temporary directory, checked before use.

A corpus is named by its recipe, so a changed recipe is another directory. It is built
beside its final place and moved there when whole; a directory of another user, or one
whose files no longer add up, is never used.
"""

import getpass
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

RECIPE = 3
FOLDER = 100
FEW = 10
SKIPPED = ("site-packages", "__pycache__")
SMALL_PART = ("json", "email", "asyncio", "unittest")


@dataclass(frozen=True, slots=True)
class Corpus:
    """A directory of files that no benchmark may change."""

    name: str
    root: Path
    files: int
    size_bytes: int

    def paths(self) -> list[str]:
        """Every file, relative to the root, sorted."""
        return sorted(path for path, _ in walk(self.root))

    def contents(self) -> dict[str, bytes]:
        """Every file with its bytes."""
        return {path: (self.root / path).read_bytes() for path in self.paths()}


def cache_directory() -> Path:
    """The private directory that keeps corpora between runs.

    Raises:
        PermissionError: Somebody else owns that directory.
    """
    place = Path(tempfile.gettempdir()) / f"wink-bench-{getpass.getuser()}"
    place.mkdir(mode=0o700, exist_ok=True)
    info = place.lstat()
    if info.st_uid != os.getuid() or place.is_symlink():
        raise PermissionError(f"The cache directory belongs to somebody else: {str(place)!r}")
    return place


def clean() -> None:
    """Remove every corpus."""
    shutil.rmtree(cache_directory(), ignore_errors=True)


def standard_library(*, part: bool = False) -> Corpus:
    """Corpus A: the running interpreter's standard library, or a few packages of it."""
    source = Path(sysconfig.get_path("stdlib"))
    name = "A-part" if part else "A"
    recipe = f"{name} {sys.version} {source} {RECIPE}"
    return _cached(name, recipe, lambda root: _copy_library(source, root, part=part))


def synthetic(files: int) -> Corpus:
    """A tree of `files` small files in folders of 100, and one folder of 10 among them."""
    name = f"S{files // 1000}k" if files >= 1000 else f"S{files}"
    return _cached(name, f"{name} {files} {RECIPE}", lambda root: write_synthetic(root, files))


def synthetic_files(files: int) -> Iterator[tuple[str, bytes]]:
    """The paths and contents of a synthetic tree; the last ten are in the folder `few`."""
    for number in range(files - FEW):
        yield f"d{number // FOLDER:04}/f{number:06}.py", b"value = %d\n" % number * 5
    for number in range(FEW):
        yield f"few/g{number}.py", b"few = %d\n" % number


def write_synthetic(root: Path, files: int) -> None:
    """Write a synthetic tree to an empty directory."""
    folder = ""
    for path, content in synthetic_files(files):
        parent = path.rpartition("/")[0]
        if parent != folder:
            (root / parent).mkdir()
            folder = parent
        (root / path).write_bytes(content)


def walk(root: Path) -> Iterator[tuple[str, int]]:
    """Yield every file below `root` with its size; links and special files are left out."""
    pending = [(str(root), "")]
    while pending:
        place, prefix = pending.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, f"{prefix}{entry.name}/"))
                elif entry.is_file(follow_symlinks=False):
                    yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size


def _cached(name: str, recipe: str, build: Callable[[Path], None]) -> Corpus:
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    home = cache_directory() / f"{name}-{digest}"
    if not _whole(home):
        shutil.rmtree(home, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache_directory()) as temporary:
            fresh = Path(temporary) / "new"
            (fresh / "files").mkdir(parents=True)
            build(fresh / "files")
            (fresh / "seal.json").write_text(json.dumps(_sum(fresh / "files")))
            fresh.rename(home)
    seal = json.loads((home / "seal.json").read_text())
    return Corpus(name, home / "files", seal["files"], seal["size_bytes"])


def _whole(home: Path) -> bool:
    """Whether the corpus there still has the files and bytes it was sealed with."""
    try:
        return json.loads((home / "seal.json").read_text()) == _sum(home / "files")
    except (OSError, ValueError):
        return False


@dataclass(slots=True)
class _Seal:
    files: int = 0
    size_bytes: int = 0


def _sum(root: Path) -> dict[str, int]:
    seal = _Seal()
    for _, size in walk(root):
        seal.files += 1
        seal.size_bytes += size
    return asdict(seal)


def _copy_library(source: Path, root: Path, *, part: bool) -> None:
    # `config-*` holds the static library and makefiles of the build, not library code
    ignore = shutil.ignore_patterns(*SKIPPED, "config-*")
    if not part:
        shutil.copytree(source, root, symlinks=True, ignore=ignore, dirs_exist_ok=True)
        return
    for package in SMALL_PART:
        shutil.copytree(source / package, root / package, symlinks=True, ignore=ignore)
