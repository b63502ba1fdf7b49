"""The API reference: one Markdown page per public module, generated from the docstrings."""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache

from scripts.public_names import (
    Documented,
    Module,
    PublicName,
    definition_of,
    names_of,
    public_modules,
)

FOLDER = "reference/api"

_SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")
_WIDTH = 88

Function = ast.FunctionDef | ast.AsyncFunctionDef


def pages() -> dict[str, str]:
    """Return the text of every page by its path below `docs/`."""
    modules = list(public_modules())
    contents = {f"{FOLDER}/{_stem(each)}.md": _page(each, modules) for each in modules}
    contents[f"{FOLDER}.md"] = _index(modules)
    return contents


def _index(modules: Sequence[Module]) -> str:
    rows = [f"- [`{each.name}`](api/{_stem(each)}.md): {_summary(_doc(each))}" for each in modules]
    return "\n".join(("# API reference", "", *rows, ""))


def _page(page: Module, modules: Sequence[Module]) -> str:
    names = names_of(page)
    parts = [f"# `{page.name}`", _markdown(_doc(page))]
    parts.append(
        "\n".join(f"- [`{each.name}`](#{_slug(each.name)}){_teaser(each)}" for each in names)
    )
    for each in names:
        parts += [f"## `{each.name}`", *_entry(each, page, modules)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(entry: PublicName, page: Module, modules: Sequence[Module]) -> Iterator[str]:
    """Yield the blocks of one name; a name that another page explains gets a link to it."""
    for other in modules:
        if other.name != page.name and _is_explained_by(entry, other, page):
            yield f"See [`{other.name}`]({_stem(other)}.md#{_slug(entry.name)})."
            return
    yield _code(_heading(entry))
    yield _markdown(entry.docstring)
    if isinstance(entry.definition, ast.ClassDef):
        for home, method in _methods(entry.home, entry.definition):
            yield f"### `{entry.name}.{method.name}`"
            yield _code(_signature(home, method))
            yield _markdown(ast.get_docstring(method) or "")


def _is_explained_by(entry: PublicName, other: Module, page: Module) -> bool:
    """Say whether `other` is nearer to the definition than `page` and lists the name too."""
    nearness = [len(_shared(entry.home.name, each.name)) for each in (other, page)]
    return entry.name in other.public and nearness[0] > nearness[1]


def _shared(first: str, second: str) -> list[str]:
    """Return the parts that two dotted names begin with."""
    both = zip(first.split("."), second.split("."), strict=False)
    shared: list[str] = []
    for one, other in both:
        if one != other:
            break
        shared.append(one)
    return shared


def _heading(entry: PublicName) -> str:
    """Return the name's definition in short: a signature, a class with its fields, or a value."""
    node, home = entry.definition, entry.home
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(home.text(each) for each in node.bases)
        head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
        return "\n".join((head, *(f"    {line}" for line in _class_lines(home, node)))).rstrip(":")
    if isinstance(node, Documented):
        return _signature(home, node)
    value = f" = {home.text(node.value)}" if node.value else ""
    kind = f": {home.text(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    return f"{entry.name}{kind}{value}"


def _class_lines(home: Module, node: ast.ClassDef) -> Iterator[str]:
    """Yield a class's public fields and its constructor."""
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                value = f" = {home.text(each.value)}" if each.value else ""
                yield f"{name}: {home.text(each.annotation)}{value}"
            case ast.FunctionDef(name="__init__"):
                yield from _signature(home, each).split("\n")
            case _:
                pass


def _methods(home: Module, node: ast.ClassDef) -> Iterator[tuple[Module, Function]]:
    """Yield the public methods and properties; setters, overloads and tests are left out.

    Those of base classes that are not public themselves are among them.
    """
    seen: set[str] = set()
    for module, each in _lineage(home, node):
        for member in each.body:
            if isinstance(member, Function) and not (
                member.name.startswith(("_", "test_"))
                or member.name in seen
                or any(module.text(each) == "overload" for each in member.decorator_list)
            ):
                seen.add(member.name)
                yield module, member


def _lineage(home: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yield a class, then the classes of ours that it derives from and that have no entry."""
    yield home, node
    for base in node.bases:
        try:
            found = definition_of(home, home.text(base).partition("[")[0])
        except (LookupError, FileNotFoundError):
            continue  # not one of ours
        if isinstance(found.definition, ast.ClassDef) and found.name not in _public():
            yield from _lineage(found.home, found.definition)


@cache
def _public() -> frozenset[str]:
    return frozenset(name for each in public_modules() for name in each.public)


def _signature(home: Module, node: Function) -> str:
    """Return a function's first line, one parameter a line where it is long."""
    returns = f" -> {home.text(node.returns)}" if node.returns else ""
    prefix = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    decorators = [f"@{home.text(each)}\n" for each in node.decorator_list]
    parameters = list(_parameters(home, node.args))
    line = f"{prefix} {node.name}({', '.join(parameters)}){returns}"
    if len(line) > _WIDTH:
        rows = "".join(f"    {each},\n" for each in parameters)
        line = f"{prefix} {node.name}(\n{rows}){returns}"
    return "".join(decorators) + line


def _parameters(home: Module, arguments: ast.arguments) -> Iterator[str]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for position, (each, default) in enumerate(zip(plain, defaults, strict=True), start=1):
        yield _parameter(home, each, default)
        if position == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{_parameter(home, arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(home, each, default)
    if arguments.kwarg:
        yield f"**{_parameter(home, arguments.kwarg, None)}"


def _parameter(home: Module, argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {home.text(argument.annotation)}" if argument.annotation else ""
    if default is None:
        return f"{argument.arg}{kind}"
    equals = " = " if kind else "="
    return f"{argument.arg}{kind}{equals}{home.text(default)}"


def _markdown(docstring: str) -> str:
    """Return a docstring with its `Args:`, `Raises:` and the like as lists."""
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        if line in _SECTIONS:
            lines += [f"**{line[:-1]}**", ""]
        elif inside and line and not line.startswith("        "):
            lines.append("- " + re.sub(r"^([\w.*]+)( \([^)]*\))?: ", r"`\1`: ", line.strip()))
        else:
            lines.append(line[4:] if inside else line)
        inside = line in _SECTIONS or (inside and line.startswith("    "))
    return "\n".join(line.rstrip() for line in lines).strip()


def _code(text: str) -> str:
    return f"```pyi\n{text}\n```"


def _doc(page: Module) -> str:
    return ast.get_docstring(page.tree) or ""


def _teaser(entry: PublicName) -> str:
    summary = _summary(entry.docstring)
    return f": {summary}" if summary else ""


def _summary(docstring: str) -> str:
    """Return the first paragraph on one line."""
    return " ".join(docstring.split("\n\n")[0].split())


def _slug(name: str) -> str:
    """Return the anchor that Markdown viewers give to the heading of `name`."""
    return re.sub(r"[^\w-]", "", name.lower())


def _stem(page: Module) -> str:
    return page.name.removeprefix("weakincentives.")
