"""Reproducible files, such as `.git`, virtual environments and build output.

A path is reproducible if it is version control data, a virtual environment, a directory of
installed packages or of caches, or if a `.gitignore` or `.ignore` file excludes it. The rules of a
directory are read once, when it is first seen, so that the answer for a path stays the same.
"""

from collections.abc import Container, Iterable, Mapping

from weakincentives.filesystem.base import ReadableFilesystem, State, is_tool_output
from weakincentives.filesystem.base.searchable import Children
from weakincentives.filesystem.ignore import IGNORE_FILES, MAX_IGNORE_FILE, IgnoreRules
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import join

_CACHES = frozenset({"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"})
REPRODUCIBLE_NAMES = frozenset(
    {
        *_CACHES,
        "node_modules",
        "bower_components",
        ".git",
        ".hg",
        ".svn",
        ".jj",
        ".tox",
        ".nox",
        ".venv",
        ".gradle",
        ".terraform",
        ".cache",
        ".eggs",
    }
)
"""Names of directories with reproducible files."""
REPRODUCIBLE_MARKERS = frozenset({"CACHEDIR.TAG", "pyvenv.cfg"})
"""Files that mark such a directory, whatever its name is."""
_MAX_PATHS = 1_000
_MAX_RULES = 64  # ignore files above one directory; hostile trees have one per level


def is_cache(path: str) -> bool:
    """Return whether a normalized path is, or is in, a cache that a test run or a linter makes."""
    return not _CACHES.isdisjoint(path.split("/"))


def is_byproduct(path: str) -> bool:
    """Return whether a path is git's data, a cache or the output of a tool: no work on the project.

    What a person reads about a call leaves it out; data, undo and comparisons do not.
    """
    return is_tool_output(path) or is_cache(path) or ".git" in path.split("/")


class ReproducibleFiles:
    """Tells which files of a workspace are reproducible, and remembers the outermost of them."""

    def __init__(self, filesystem: ReadableFilesystem) -> None:
        """Read the ignore files of `filesystem`."""
        self._filesystem = filesystem
        self._rules: dict[str, tuple[IgnoreRules, int] | None] = {}
        self._seen: set[str] = set()
        self._kept: set[str] = set()
        self.paths: list[str] = []
        """The outermost reproducible paths that were seen, of a bounded number."""

    def __contains__(self, found: FileStat) -> bool:
        """Whether an entry is reproducible, by itself or by a directory above it."""
        if found.path in self._kept:
            return False
        rules = self._directory_rules(found.path.rpartition("/")[0])
        if rules is None:
            return True
        is_reproducible = self._is_excluded(found, rules[0])
        if is_reproducible and len(self._seen) < _MAX_PATHS and found.path not in self._seen:
            self._seen.add(found.path)
            self.paths.append(found.path)
        return is_reproducible

    def excludes(self, path: str) -> bool:
        """Return whether a file is reproducible, even if it was written on purpose."""
        rules = self._directory_rules(path.rpartition("/")[0])
        found = FileStat(path, is_file=True, is_directory=False)
        return rules is None or self._is_excluded(found, rules[0])

    def find_names(self, directory: str, names: Mapping[str, bool]) -> set[str]:
        """Return the reproducible entries of a directory; `names` says which are directories."""
        rules = self._directory_rules(directory)
        suspects = names
        if rules is not None and not rules[0]:  # then only directories can be, and `.git`
            suspects = {each: inner for each, inner in names.items() if inner or each == ".git"}
        return {
            name
            for name, inner in suspects.items()
            if FileStat(join(directory, name), is_file=not inner, is_directory=inner) in self
        }

    def keep(self, path: str) -> None:
        """Count a path as not reproducible from now on, because it was written on purpose."""
        while path and path not in self._kept:
            self._kept.add(path)
            path = path.rpartition("/")[0]

    def _is_excluded(self, found: FileStat, rules: IgnoreRules) -> bool:
        name = found.path.rpartition("/")[2]
        if rules.ignores(found.path, is_directory=found.is_directory):
            return True
        if not found.is_directory:
            return False
        return name in REPRODUCIBLE_NAMES or self._has_marker(found.path)

    def _has_marker(self, directory: str) -> bool:
        return any(self._find(join(directory, name)) is not None for name in REPRODUCIBLE_MARKERS)

    def _directory_rules(self, directory: str) -> tuple[IgnoreRules, int] | None:
        """Return the rules in a directory, and of how many files; None if it is reproducible."""
        if directory not in self._rules:
            self._rules[directory] = self._read_rules(directory)
        return self._rules[directory]

    def _read_rules(self, directory: str) -> tuple[IgnoreRules, int] | None:
        rules, count = IgnoreRules(), 0
        if directory:
            above = self._directory_rules(directory.rpartition("/")[0])
            found = self._find(directory)
            if above is None or (found is not None and self._is_excluded(found, above[0])):
                return None
            rules, count = above
        text = self._read_ignore_files(directory) if count < _MAX_RULES else ""
        return rules.child(directory, text), count + bool(text)

    def _find(self, path: str) -> FileStat | None:
        try:
            return State(self._filesystem).lookup(path)
        except OSError:  # nobody may look into the directory
            return None

    def _read_ignore_files(self, directory: str) -> str:
        state = State(self._filesystem)
        texts: list[str] = []
        for name in IGNORE_FILES:
            found = self._find(join(directory, name))
            if found is not None and found.is_file:
                try:
                    with state.open(found.path) as content:
                        data = content.read(0, MAX_IGNORE_FILE)
                except OSError:
                    continue
                texts.append(data.decode("utf-8-sig", "replace"))
        return "\n".join(texts)


class CompletedFilesystem(ReadableFilesystem):
    """A recorded state without reproducible files, completed with those of another filesystem."""

    def __init__(self, recorded: ReadableFilesystem, original: ReadableFilesystem) -> None:
        """Show `recorded`, and where it has nothing, the reproducible files of `original`."""
        super().__init__(limits=recorded.limits)
        self._root = recorded.root
        self._recorded = State(recorded)
        self._original = State(original)
        self._reproducible = ReproducibleFiles(original)

    @property
    def root(self) -> str:
        """The root of the recorded state."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = self._recorded.lookup(path)
        if found is not None:
            return found
        other = self._original.lookup(path)
        return other if other is not None and other in self._reproducible else None

    def _stats(self, path: str) -> dict[str, FileStat]:
        found = self._recorded.children(path)
        for name, other in self._original.children(path).items():
            if name not in found and other in self._reproducible:
                found[name] = other
        return found

    def _children(self, path: str) -> Children:
        return Children.of(self._stats(path))

    def _open(self, path: str) -> Content:
        is_recorded = self._recorded.lookup(path) is not None
        return (self._recorded if is_recorded else self._original).open(path)


class SourceFilesystem(ReadableFilesystem):
    """A read-only view of a filesystem without its reproducible files."""

    def __init__(self, base: ReadableFilesystem, reproducible: Container[FileStat]) -> None:
        """Show `base` without what is in `reproducible`."""
        super().__init__(limits=base.limits)
        self._root = base.root
        self._base = State(base)
        self._reproducible = reproducible

    @property
    def root(self) -> str:
        """The root of the underlying filesystem."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = self._base.lookup(path)
        return None if found is None or (path and found in self._reproducible) else found

    def _stats(self, path: str) -> dict[str, FileStat]:
        found = self._base.children(path)
        return {name: each for name, each in found.items() if each not in self._reproducible}

    def _children(self, path: str) -> Children:
        files, directories, *others = self._base.names(path)
        return Children(
            self._select(path, files, is_file=True),
            self._select(path, directories, is_directory=True),
            *(self._select(path, each) for each in others),
        )

    def _select(
        self, path: str, names: Iterable[str], *, is_file: bool = False, is_directory: bool = False
    ) -> list[str]:
        """Return the names of entries that are not reproducible, of one kind."""
        left_out = self._reproducible
        return [
            name
            for name in names
            if FileStat(join(path, name), is_file=is_file, is_directory=is_directory)
            not in left_out
        ]

    def _open(self, path: str) -> Content:
        return self._base.open(path)

    def _blob_id(self, path: str) -> str | None:
        found = self._lookup(path)
        return None if found is None else self._base.known_id(found)
