"""The shape of the source tree in figures: `make shape` prints them beside their goals.

Most of them may not get worse: `scripts.ratchet` compares them with `scripts/shape.toml`.

Files are counted, names are read and imports are resolved from the sources; only the walks,
the modules and functions that an operation crosses, are measured by running it (`scripts.walks`).
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.ratchet import FILE, TOTAL, UPDATE, Ratchet, figures_before
from scripts.steps import ROOT
from scripts.walks import WALKS, measure

PACKAGE = "weakincentives"
SOURCES = ROOT / "src" / PACKAGE
BUNDLED = "project"  # the project that the demo works on is data

# nouns of the field that happen to end in -ing
NOUNS = frozenset({"mapping", "recording", "rendering", "routing", "string", "testing", "tracing"})
_IRREGULAR = frozenset(
    {
        *("begun", "bound", "broken", "brought", "built", "chosen", "done", "drawn", "found"),
        *("given", "gone", "heard", "held", "hidden", "kept", "known", "laid", "left", "lost"),
        *("made", "meant", "met", "put", "said", "seen", "sent", "shown", "split", "spoken"),
        *("stood", "taken", "thought", "told", "torn", "understood", "withheld", "written"),
    }
)
_COUNTED = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Import, ast.ImportFrom, ast.Call),
)
_VERBS = frozenset({"bring", "embed", "exceed", "feed", "need", "nothing", "proceed", "seed"})
BUDGET: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "gitstore": (3_300, ("gitstore",)),
    "history": (3_800, ("history",)),
    "host/snapshots + journal": (
        3_800,
        ("filesystem/host/snapshots", "filesystem/host/journal"),
    ),
    "runtime: session, timeline, transactions, ...": (
        4_400,
        (
            "runtime/session",
            "runtime/timeline",
            "runtime/transactions.py",
            "runtime/rollback.py",
            "runtime/before_images.py",
            "runtime/checkpoints.py",
        ),
    ),
    "contrib/review": (3_500, ("contrib/review",)),
    "mcp": (3_050, ("mcp",)),
    "cli: runs, dumps, state, timeline, ...": (
        1_150,
        (
            "cli/runs.py",
            "cli/state.py",
            "cli/steps.py",
            "cli/status.py",
            "cli/timeline",
            "cli/run/workspace.py",
            "cli/run/resume.py",
        ),
    ),
}
"""The lines that undo may have, by what they are about: a goal, and folders or modules."""
MAX_UNDO_LINES = 23_000
MAX_LINES = 92_000
MAX_MODULES = 410
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 6
MAX_WALKS: Mapping[str, int] = {"edit_file": 48, "MCP undo": 45}
"""The modules that an operation may cross; others are only printed."""
NAMES = "Names of the specification: "
"""How the docstring of a module of re-exports begins: other names beside the real ones."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what is measured, its value and the goal."""

    name: str
    value: float
    goal: float
    unit: str = ""

    def __str__(self) -> str:
        """Return the row as it is printed."""
        met = "met" if self.value <= self.goal else "MISSED"
        value = f"{self.value:.1f}" if self.value % 1 else f"{self.value:.0f}"
        return f"{self.name:<52}{value + self.unit:>8}   goal <= {self.goal:g}{self.unit}   {met}"


class Tree:
    """Every module of the package, parsed once."""

    def __init__(self, sources: Path = SOURCES) -> None:
        """Read the sources below `sources`."""
        self.modules: dict[str, ast.Module] = {}
        self.nodes: dict[str, list[ast.AST]] = {}  # those that are counted, by module
        self.sizes: dict[str, int] = {}  # lines by path, data and all
        for path in sorted(sources.rglob("*.py")):
            relative = path.relative_to(sources.parent)
            text = path.read_text(encoding="utf-8")
            self.sizes[path.relative_to(sources).as_posix()] = len(text.splitlines())
            if BUNDLED in relative.parts or "demo_project" in relative.parts:
                continue
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = ast.parse(text)
            every = ast.walk(self.modules[name])
            self.nodes[name] = [each for each in every if isinstance(each, _COUNTED)]

    @property
    def lines(self) -> int:
        """The lines of all files."""
        return sum(self.sizes.values())

    @property
    def files(self) -> int:
        """The number of all files."""
        return len(self.sizes)

    def size_of(self, *places: str) -> tuple[int, int]:
        """Return the lines and modules of folders and of single modules."""
        prefixes = tuple(each if each.endswith(".py") else f"{each}/" for each in places)
        found = [lines for path, lines in self.sizes.items() if path.startswith(prefixes)]
        return sum(found), len(found)

    def imports(self) -> Iterator[tuple[str, ast.ImportFrom | ast.Import, str]]:
        """Yield the importing module, the statement and each imported module of the package."""
        for name, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, ast.Import):
                    yield from ((name, node, each.name) for each in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    yield from ((name, node, each) for each in self._targets(node, node.module))

    def reexports(self) -> set[str]:
        """Return the modules that only offer names of the specification under its module paths."""
        return {name for name, module in self.modules.items() if _is_reexport(module)}

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Yield every function and method."""
        for nodes in self.nodes.values():
            for node in nodes:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node

    def _targets(self, node: ast.ImportFrom, module: str) -> set[str]:
        # a package may offer a function that has the name of its module
        given = {
            f"{module}.{each.name}" for each in node.names if not self._offers(module, each.name)
        }
        return given & self.modules.keys() or {module}

    def _offers(self, package: str, name: str) -> bool:
        return any(
            isinstance(node, ast.ImportFrom)
            and f"{node.module}.{name}" not in self.modules
            and any((each.asname or each.name) == name for each in node.names)
            for node in (self.modules[package].body if package in self.modules else ())
        )


def figures(tree: Tree) -> list[Figure]:
    """Return every figure that is read from the sources."""
    leaves = [name.rpartition(".")[2] for name in tree.modules]
    gerunds = [each for each in leaves if each.endswith("ing") and each not in NOUNS]
    functions = [each.name for each in tree.functions() if not _is_property(each)]
    participles = [each for each in functions if is_participle(each)]
    return [
        Figure("files per 1,000 lines", round(1000 * tree.files / tree.lines, 1), 4.5),
        Figure("modules named by a gerund, of 100", 100 * len(gerunds) / len(leaves), 3),
        Figure(
            "functions named by a participle", 100 * len(participles) / len(functions), 1.5, " %"
        ),
        Figure("lines that are imports", 100 * _import_lines(tree) / tree.lines, 6, " %"),
        Figure("modules imported by one sibling only", len(only_children(tree)), 25),
        Figure("imports past another package's __init__", len(past_the_door(tree)), 20),
        Figure("isinstance on filesystem classes, not protocols", len(class_checks(tree)), 5),
    ]


def is_participle(name: str) -> bool:
    """Return whether a function's name is a participle or ends in one."""
    words = name.strip("_").split("_")
    word = words[-1] if len(words) <= 2 and words[0] not in {"is", "has", "are", "was"} else ""
    if not word or word in _VERBS:
        return False
    return word in _IRREGULAR or bool(re.fullmatch(r"\w{2,}(ed|ing)", word))


def only_children(tree: Tree) -> list[str]:
    """Return the modules that just one module, in the same folder, imports."""
    importers: dict[str, set[str]] = defaultdict(set)
    counted = tree.modules.keys() - tree.reexports()  # neither children nor importers
    for name, _, target in tree.imports():
        if name in counted:
            importers[target].add(name)
    return sorted(
        name
        for name, users in importers.items()
        if name in counted and len(users) == 1 and _folder(name) == _folder(next(iter(users)))
    )


def past_the_door(tree: Tree) -> list[str]:
    """Return the imports of a module inside another top-level package, past its `__init__`."""
    return sorted(
        f"{name} -> {target}"
        for name, _, target in set(tree.imports())
        if target.count(".") >= 2
        and target in tree.modules
        and name.split(".")[1:2] != target.split(".")[1:2]
        and not _is_package(tree, target)
    )


def class_checks(tree: Tree) -> list[str]:
    """Return the `isinstance` checks on classes of `filesystem`, outside of that package.

    Checks on protocols do not count: they ask for a capability.
    """
    classes = _filesystem_classes(tree)
    return [
        f"{name}:{node.lineno}"
        for name, nodes in tree.nodes.items()
        if not name.startswith(f"{PACKAGE}.filesystem")
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and classes.intersection(re.findall(r"\w+", ast.unparse(node.args[1])))
    ]


def packages(tree: Tree) -> list[tuple[str, int, int]]:
    """Return the lines and modules of each package."""
    names = sorted({path.partition("/")[0] for path in tree.sizes})
    return [(name, *tree.size_of(name)) for name in names]


def budget(tree: Tree) -> list[tuple[Figure, int]]:
    """Return the lines of what undo consists of, beside its budget, with the modules of each."""
    rows: list[tuple[Figure, int]] = []
    for name, (goal, places) in BUDGET.items():
        lines, modules = tree.size_of(*places)
        rows.append((Figure(name, lines, goal), modules))
    total = sum(row.value for row, _ in rows), sum(modules for _, modules in rows)
    return [*rows, (Figure("undo, all of it", total[0], MAX_UNDO_LINES), total[1])]


def measure_all(tree: Tree, walks: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return the figures that may not get worse, by name."""
    return {
        TOTAL: tree.lines,
        **{f"{TOTAL}: {name}": lines for name, lines, _ in packages(tree)},
        "modules": tree.files,
        **{f"modules crossed by {name}": modules for name, (modules, _) in walks.items()},
        "modules imported by one sibling only": len(only_children(tree)),
        "imports past another package's __init__": len(past_the_door(tree)),
        "isinstance on filesystem classes, not protocols": len(class_checks(tree)),
        f"functions over {MAX_FUNCTION_LINES} lines": sum(map(_is_long, tree.functions())),
        f"functions with more than {MAX_PARAMETERS} parameters": sum(
            _count_parameters(each) > MAX_PARAMETERS for each in tree.functions()
        ),
        "class names used twice": _count_repeated(
            node.name
            for module in tree.modules.values()
            for node in module.body
            if isinstance(node, ast.ClassDef)
        ),
        "module names used twice": _count_repeated(
            each.rpartition(".")[2] for each in tree.modules.keys() - tree.reexports()
        ),
    }


def measure_walks() -> dict[str, tuple[int, int]]:
    """Return the modules and functions that each operation crosses."""
    with ThreadPoolExecutor(len(WALKS)) as pool:
        return dict(zip(WALKS, pool.map(measure, WALKS), strict=True))


def main(arguments: Sequence[str] = ()) -> int:
    """Print the tables and what got worse; with `--update`, write down what got better."""
    tree, walks = Tree(), measure_walks()
    _print_tables(tree, walks)
    measured = measure_all(tree, walks)
    ratchet = Ratchet.parse(FILE.read_text(encoding="utf-8"))
    if "--update" in arguments:
        ratchet = ratchet.update(measured)
        FILE.write_text(str(ratchet), encoding="utf-8")
    better = ratchet.improvements(measured)
    if better:
        print(f"\nBetter than scripts/shape.toml; write it down with `{UPDATE}`")
        print("\n".join(better))
    worse = list(ratchet.problems(measured, figures_before()))
    if worse:
        print("\nWorse than scripts/shape.toml")
        print("\n".join(worse))
    return 1 if worse else 0


def _print_tables(tree: Tree, walks: Mapping[str, tuple[int, int]]) -> None:
    for name, lines, modules in packages(tree):
        print(f"{name:<52}{lines:>8} lines {modules:>5} modules")
    print(Figure("lines", tree.lines, MAX_LINES))
    print(Figure("modules", tree.files, MAX_MODULES))
    print("\nLines beside the budget")
    for row, modules in budget(tree):
        print(f"{row}   {modules} modules")
    print("\nModules that one operation crosses")
    for name, (crossed, functions) in walks.items():
        row = Figure(name, crossed, MAX_WALKS.get(name, 0))
        print(row if name in MAX_WALKS else f"{name:<52}{crossed:>8}", f"  {functions} functions")
    print("\nNames and imports")
    for figure in figures(tree):
        print(figure)


def _is_long(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES


def _count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    others = (given.vararg, given.kwarg)
    return sum(each.arg not in {"self", "cls"} for each in named) + sum(map(bool, others))


def _count_repeated(names: Iterable[str]) -> int:
    return sum(times > 1 for times in Counter(names).values())


def _filesystem_classes(tree: Tree) -> set[str]:
    """Return the names of the filesystem classes that are not protocols."""
    return {
        node.name
        for name, nodes in tree.nodes.items()
        if name.startswith(f"{PACKAGE}.filesystem")
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Filesystem")
        and "Protocol" not in map(ast.unparse, node.bases)
    }


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def _import_lines(tree: Tree) -> int:
    statements = (
        node
        for module in tree.modules.values()
        for node in module.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in statements)


def _is_reexport(module: ast.Module) -> bool:
    """Return whether a module says that it is one, and has nothing but imports and `__all__`."""
    is_marked = (ast.get_docstring(module) or "").startswith(NAMES)
    return is_marked and not any(
        isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "__all__")
        for node in module.body
    )


def _folder(name: str) -> str:
    return name.rpartition(".")[0]


def _is_package(tree: Tree, name: str) -> bool:
    return any(each.startswith(f"{name}.") for each in tree.modules)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
