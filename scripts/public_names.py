"""The public names: what `__all__` lists in each module, traced to where it is defined.

Everything is read from the sources and nothing is imported, so the answer is
the same on every Python.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.steps import ROOT

SOURCES = ROOT / "src"

Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Definition = Documented | ast.Assign | ast.AnnAssign


@dataclass(frozen=True, slots=True)
class Module:
    """A module's source, parsed."""

    name: str
    source: str
    tree: ast.Module

    @property
    def public(self) -> tuple[str, ...]:
        """What `__all__` lists, dunder names left out."""
        for statement in self.tree.body:
            if "__all__" in _assigned(statement) and isinstance(
                statement, ast.Assign | ast.AnnAssign
            ):
                listed: list[str] = ast.literal_eval(statement.value) if statement.value else []
                return tuple(name for name in listed if not name.startswith("__"))
        return ()

    def text(self, node: ast.expr) -> str:
        """Return an expression as it is written, on one line."""
        return " ".join((ast.get_source_segment(self.source, node) or "").split())


@dataclass(frozen=True, slots=True)
class PublicName:
    """A public name and the statement that defines it."""

    name: str
    home: Module
    definition: Definition

    @property
    def docstring(self) -> str:
        """The docstring, or the string that follows the assignment; empty where there is none."""
        if isinstance(self.definition, Documented):
            return ast.get_docstring(self.definition) or ""
        body = self.home.tree.body
        after = body[body.index(self.definition) + 1 :][:1]
        match after:
            case [ast.Expr(ast.Constant(str(text)))]:
                return " ".join(text.split())
            case _:
                return ""


def public_modules() -> Iterator[Module]:
    """Yield the modules that list public names, by name; bundled data is none."""
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        packages = path.parents[: len(parts) - 1]
        if not all((package / "__init__.py").exists() for package in packages):
            continue
        found = module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        if found.public:
            yield found


def names_of(found: Module) -> list[PublicName]:
    """Return the public names of a module with their definitions.

    Raises:
        LookupError: A listed name is defined nowhere.
    """
    return [definition_of(found, name) for name in found.public]


def definition_of(found: Module, name: str) -> PublicName:
    """Return where `name` of a module is defined, following its imports.

    Raises:
        LookupError: It is defined nowhere.
    """
    for statement in found.tree.body:
        if isinstance(statement, Definition) and name in _assigned(statement):
            return PublicName(name, found, statement)
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                if name == (alias.asname or alias.name):
                    return definition_of(module(statement.module), alias.name)
    raise LookupError(f"Public name is defined nowhere: {found.name + '.' + name!r}")


@cache
def module(name: str) -> Module:
    """Return the module called `name`."""
    base = SOURCES.joinpath(*name.split("."))
    path = base / "__init__.py" if base.is_dir() else Path(f"{base}.py")
    source = path.read_text(encoding="utf-8")
    stub = path.with_suffix(".pyi")
    if stub.exists():  # of a package whose names load late
        source += stub.read_text(encoding="utf-8")
    return Module(name, source, ast.parse(source))


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement defines."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()
