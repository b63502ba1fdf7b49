"""The shape of the source tree in figures: `make shape` prints them beside their goals.

Files are counted, names are read and imports are resolved from the sources; only the
number of modules that one `edit_file` call crosses is measured by running one.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.steps import ROOT

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
_VERBS = frozenset({"bring", "embed", "exceed", "feed", "need", "nothing", "proceed", "seed"})
_TRACE = """
import sys, threading
from pathlib import Path
from tempfile import TemporaryDirectory
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.contrib.tools import HostWorkspaceSection
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session
crossed = set()
def note(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    if name.startswith("weakincentives"):
        crossed.add(name)
with TemporaryDirectory() as root:
    Path(root, "a.py").write_text("x = 1\\n")
    session = Session()
    section = HostWorkspaceSection(root=root, session=session)
    context = ToolContext(None, None, None, session, filesystem=section.filesystem)
    executor = ToolExecutor(section.tools, context=context)
    arguments = {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"}
    sys.setprofile(note)
    threading.setprofile(note)
    executor.execute(ToolCall("edit_file", arguments))
    sys.setprofile(None)
    assert Path(root, "a.py").read_text() == "x = 2\\n"
print(len(crossed))
"""


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
        self.lines = 0
        self.files = 0
        for path in sorted(sources.rglob("*.py")):
            relative = path.relative_to(sources.parent)
            text = path.read_text(encoding="utf-8")
            self.files += 1
            self.lines += len(text.splitlines())
            if BUNDLED in relative.parts or "demo_project" in relative.parts:
                continue
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = ast.parse(text)

    def imports(self) -> Iterator[tuple[str, ast.ImportFrom | ast.Import, str]]:
        """Yield the importing module, the statement and each imported module of the package."""
        for name, tree in self.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    yield from ((name, node, each.name) for each in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    yield from ((name, node, each) for each in self._targets(node, node.module))

    def _targets(self, node: ast.ImportFrom, module: str) -> set[str]:
        inner = {f"{module}.{each.name}" for each in node.names} & set(self.modules)
        return inner or {module}


def figures(tree: Tree) -> list[Figure]:
    """Return every figure that is read from the sources."""
    leaves = [name.rpartition(".")[2] for name in tree.modules]
    gerunds = [each for each in leaves if each.endswith("ing") and each not in NOUNS]
    functions = list(_functions(tree))
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
    for name, _, target in tree.imports():
        importers[target].add(name)
    return sorted(
        name
        for name, users in importers.items()
        if name in tree.modules and len(users) == 1 and _folder(name) == _folder(next(iter(users)))
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
        for name, module in tree.modules.items()
        if not name.startswith(f"{PACKAGE}.filesystem")
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "isinstance"
        and classes.intersection(re.findall(r"\w+", ast.unparse(node.args[1])))
    ]


def crossed_modules() -> int:
    """Return how many modules run code while one `edit_file` call is executed."""
    command = [sys.executable, "-c", _TRACE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


def main() -> int:
    """Print the table."""
    tree = Tree()
    print(f"{tree.files} files, {tree.lines} lines")
    crossed = Figure("modules that one edit_file call crosses", crossed_modules(), 45)
    for figure in (*figures(tree), crossed):
        print(figure)
    return 0


def _filesystem_classes(tree: Tree) -> set[str]:
    """Return the names of the filesystem classes that are not protocols."""
    return {
        node.name
        for name, module in tree.modules.items()
        if name.startswith(f"{PACKAGE}.filesystem")
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Filesystem")
        and "Protocol" not in map(ast.unparse, node.bases)
    }


def _functions(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and not _is_property(node):
                yield node.name


def _is_property(node: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def _import_lines(tree: Tree) -> int:
    statements = (
        node
        for module in tree.modules.values()
        for node in module.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in statements)


def _folder(name: str) -> str:
    return name.rpartition(".")[0]


def _is_package(tree: Tree, name: str) -> bool:
    return any(each.startswith(f"{name}.") for each in tree.modules)


if __name__ == "__main__":
    sys.exit(main())
