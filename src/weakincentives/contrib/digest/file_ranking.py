"""Ranking files by references: PageRank over the graph of who uses whose names.

A file points to another if it imports it, or uses a name that the other defines. A name that many
files define says little about which one is meant, so it counts less, and above a bound not at all.
With a focus, the walk starts at the files in focus and follows the edges in both directions, so
what they use and what uses them both rank high. The result is the same on every machine: the
iterations are fixed and every sum is made in the same order.
"""

import posixpath
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from math import sqrt

from weakincentives.contrib.digest.languages import SOURCE_SUFFIXES, language_of
from weakincentives.contrib.digest.scanner import FileNames
from weakincentives.posix import join, parent_of

MAX_DEFINERS = 8
"""Files that may define a name before it counts for nothing."""
MAX_EDGES = 40
"""The strongest edges that are kept of one file."""
_ITERATIONS = 16
_DAMPING = 0.7
_IMPORT = 8.0  # the weight of an import beside that of one name
_COMMON = 0.1  # the weight of a name that is private, or one lower-case word
_BACKWARD = 0.5  # with a focus: the weight of an edge against its direction
_SIDE = 0.2  # the factor for tests, examples, vendored and compiled code
_SIDE_PATH = re.compile(
    r"(?:^|/)(?:tests?|testing|spec|specs|__tests__|examples?|samples?|docs?|benchmarks?|bench"
    r"|vendor|external|deps|migrations)/"
    r"|(?:^|/)(?:dist|build|out|node_modules)/|\.d\.[cm]?ts$"
    r"|(?:^|/)(?:test_[^/]*|conftest)\.py$|[._-](?:test|spec|tests)\.[a-z]+$"
)
_COMPILED = re.compile(r"(.+)\.[cm]?js")  # with a declaration beside it, the output of TypeScript
_WORD = re.compile(r"_.*|[a-z]+")
_INDEX_NAMES = frozenset({"__init__", "index", "mod", "lib", "main"})
_SEPARATOR = re.compile(r"::|[./\\]")
_KIN = {"typescript": "javascript", "tsx": "javascript", "cpp": "c"}
_SOURCE_ROOTS = ("", "src", "lib", "include", "python")

Edges = dict[str, float]
Definers = dict[tuple[str, str], list[str]]
"""The files that define a name, by group of languages and name."""


def rank_files(
    names: Mapping[str, FileNames], *, focus: Iterable[str] = ()
) -> Sequence[tuple[str, float]]:
    """Return the paths of `names` with their rank, highest first; ties are in path order."""
    graph = _build_graph(names)
    start = dict.fromkeys((path for path in focus if path in names), 1.0)
    if start:
        graph = _both_directions(graph)
    ranks = page_rank(graph, start)
    if not start:
        ranks = {
            path: rank * (_SIDE if is_side(path, names) else 1) for path, rank in ranks.items()
        }
    return sorted(ranks.items(), key=lambda each: (-each[1], each[0]))


def is_side(path: str, paths: Container[str]) -> bool:
    """Whether a file is not the project's own code: a test, an example, vendored or compiled."""
    if _SIDE_PATH.search(path):
        return True
    compiled = _COMPILED.fullmatch(path)
    if compiled is None:
        return False
    stem = compiled[1]
    return any(f"{stem}{suffix}" in paths for suffix in (".d.ts", ".d.cts", ".d.mts", ".ts"))


def page_rank(graph: Mapping[str, Edges], start: Mapping[str, float]) -> dict[str, float]:
    """Return the PageRank of each node; the walk restarts at `start`, or anywhere if empty."""
    nodes = list(graph)
    if not nodes:
        return {}
    index = {node: number for number, node in enumerate(nodes)}
    total = sum(start.values()) or len(nodes)
    restart = [start.get(node, 0.0) / total if start else 1.0 / total for node in nodes]
    links: list[list[tuple[int, float]]] = []
    for node in nodes:
        weight = sum(graph[node].values()) or 1.0
        links.append([(index[other], each / weight) for other, each in graph[node].items()])
    ranks = restart
    for _ in range(_ITERATIONS):
        ranks = _iterate(ranks, links, restart)
    return dict(zip(nodes, ranks, strict=True))


def find_definers(names: Mapping[str, FileNames]) -> Definers:
    """Return for each name the files that define it, without names that too many define."""
    definers: Definers = {}
    for path, found in names.items():
        kin = _kin(path)
        for name in found.definitions:
            definers.setdefault((kin, name), []).append(path)
    return {name: paths for name, paths in definers.items() if len(paths) <= MAX_DEFINERS}


def _kin(path: str) -> str:
    """Return the group of languages in which names of this file mean the same thing."""
    family = language_of(path.rpartition("/")[2]).family
    return _KIN.get(family, family)


def _iterate(
    ranks: list[float], links: list[list[tuple[int, float]]], restart: list[float]
) -> list[float]:
    dangling = sum(rank for rank, out in zip(ranks, links, strict=True) if not out)
    moved = [(1 - _DAMPING + _DAMPING * dangling) * each for each in restart]
    for rank, out in zip(ranks, links, strict=True):
        share = rank * _DAMPING
        for other, weight in out:
            moved[other] += share * weight
    return moved


def _build_graph(names: Mapping[str, FileNames]) -> dict[str, Edges]:
    definers = find_definers(names)
    modules = _ModuleIndex(names)
    return {path: _edges(path, found, definers, modules) for path, found in names.items()}


def _edges(path: str, found: FileNames, definers: Definers, modules: "_ModuleIndex") -> Edges:
    edges: Edges = {}
    for module in found.imports:
        target = modules.resolve(path, module)
        if target is not None and target != path:
            edges[target] = _IMPORT  # once, however many names are imported
    kin = _kin(path)
    for name, times in found.references:
        paths = definers.get((kin, name))
        if paths is None or path in paths:
            continue  # a name of the file's own is not a reference to another
        weight = sqrt(times) / len(paths) * (_COMMON if _WORD.fullmatch(name) else 1.0)
        for other in paths:
            edges[other] = edges.get(other, 0.0) + weight
    if len(edges) <= MAX_EDGES:
        return edges
    strongest = sorted(edges.items(), key=lambda each: (-each[1], each[0]))
    return dict(strongest[:MAX_EDGES])


def _both_directions(graph: Mapping[str, Edges]) -> dict[str, Edges]:
    both = {path: dict(edges) for path, edges in graph.items()}
    for path, edges in graph.items():
        for other, weight in edges.items():
            both[other][path] = both[other].get(path, 0.0) + weight * _BACKWARD
    return both


class _ModuleIndex:
    """Finds the file that an import means, by the end of its path."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(paths)
        self._by_last: dict[str, list[tuple[str, str]]] = {}
        for path in self._paths:
            module = _module_path(path)
            self._by_last.setdefault(module.rpartition("/")[2], []).append((module, path))
        for candidates in self._by_last.values():
            candidates.sort(key=lambda each: (each[0].count("/"), each[1]))

    def resolve(self, importer: str, module: str) -> str | None:
        """Return the file that `module` means in `importer`; None if it is not in the workspace."""
        directory = parent_of(importer)
        if importer.endswith(_QUOTED_PATHS):
            return self._resolve_path(directory, module)
        if module.startswith("."):
            depth = len(module) - len(module.lstrip("."))
            for _ in range(depth - 1):
                directory = parent_of(directory)
            rest = module[depth:].split(".")
            whole = "/".join(rest)
            package = "/".join(rest[:-1])
            return self._at(join(directory, whole)) or self._at(
                join(directory, package) if package else directory
            )
        segments = [each for each in _SEPARATOR.split(module) if each]
        if segments and segments[0] in {"crate", "self", "super"}:
            segments = segments[1:]
        for length in range(len(segments), 0, -1):
            if found := self._by_suffix(directory, segments[:length]):
                return found
        return None

    def _resolve_path(self, directory: str, written: str) -> str | None:
        """Return the file for a quoted path, as JavaScript, Ruby and C write it."""
        path = posixpath.normpath(f"/{directory}/{written}").lstrip("/")
        found = path if path in self._paths else self._at(_module_path(path) if path else "")
        if found or written.startswith("."):
            return found
        segments = _module_path(written).split("/")
        same = self._by_suffix(directory, segments)
        suffix = "/" + written
        exact = [each for _, each in self._by_last.get(segments[-1], ()) if each.endswith(suffix)]
        return exact[0] if exact else same

    def _at(self, module: str) -> str | None:
        for found, path in self._by_last.get(module.rpartition("/")[2], ()):
            if found == module:
                return path
        return None

    def _by_suffix(self, directory: str, segments: Sequence[str]) -> str | None:
        wanted = "/".join(segments)
        for found, path in self._by_last.get(segments[-1], ()):
            if found == wanted or (len(segments) > 1 and found.endswith("/" + wanted)):
                return path
            # a single name is too little to find a file anywhere in the tree
            if found.rpartition("/")[0] in {directory, *_SOURCE_ROOTS} and len(segments) == 1:
                return path
        return None


_QUOTED_PATHS = (
    *(".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".rb", ".c", ".h"),
    *(".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx"),
)


def _module_path(path: str) -> str:
    """Return `path` without its suffix; that of a package or an index file is its directory."""
    directory, _, name = path.rpartition("/")
    stem, _, suffix = name.rpartition(".")
    if suffix not in SOURCE_SUFFIXES or not stem:
        stem = name
    return directory if stem in _INDEX_NAMES and directory else join(directory, stem)
