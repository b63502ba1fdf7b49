"""What the tests of a Python project need, and the command that installs it with the project.

Requirements are declared in dependency groups, extras, requirements files and the environments of
tox. The narrowest place that names what runs the tests is the one to install; what no place names
is installed by its own name.
"""

import ast
import configparser
import posixpath
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from weakincentives.contrib.digest.commands.project import (
    Project,
    Table,
    as_strings,
    as_table,
    as_tables,
    is_safe_name,
    parse_ini,
    table_at,
)

Kind = Literal["group", "extra", "file", "tox"]
MAX_REQUIREMENT_FILES = 20
_MAX_DEPTH = 5  # of files and groups that include others
_KINDS: tuple[Kind, ...] = ("group", "extra", "file", "tox")
_TEST_WORDS = ("test", "tests", "testing", "pytest", "unittest", "ci")
_DEV_WORDS = ("dev", "devel", "develop", "development", "local", "all")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w.,-]+\])?\s*(?:[<>=!~]=?=?\s*[\w.*,<>=!~ ]+)?"
)
_INCLUDED = re.compile(r"(?:-r|--requirement)[ =]*(\S+)")
_REQUIREMENTS_PATH = re.compile(r"(?:^|[/._-])(?:requirements?|reqs?)(?:[/._-]|$)", re.I)
_WORD = re.compile(r"[a-z]+")
_FACTORS = re.compile(r"^[\w.,{}!+-]+:\s+")  # "py312-unit: pytest" is for some environments


@dataclass(frozen=True, slots=True)
class RequirementSource:
    """A place that declares requirements: a group, an extra, a file, or the environment of tox."""

    kind: Kind
    name: str
    requirements: tuple[str, ...]
    """As they are written, with those of what it includes."""

    def has(self, package: str) -> bool:
        """Whether it brings a package, or for pytest one of its plugins."""
        names = {_normalize(each) for each in self.requirements}
        return package in names or any(each.startswith(f"{package}-") for each in names)

    @property
    def order(self) -> tuple[int, int, str]:
        """What is for tests comes first, then what is for development, then the rest."""
        words = _WORD.findall(self.name.lower())
        usual = (*_TEST_WORDS, *_DEV_WORDS)
        place = min((usual.index(each) for each in words if each in usual), default=len(usual))
        return place, _KINDS.index(self.kind), self.name

    @property
    def is_for_tests(self) -> bool:
        """Whether its name says that it is for tests."""
        return self.order[0] < len(_TEST_WORDS)


def requirement_sources(project: Project, pyproject: Table) -> list[RequirementSource]:
    """Return the places of a project that declare requirements beside its own."""
    found = [
        *(RequirementSource("group", *each) for each in _groups(pyproject)),
        *(RequirementSource("extra", *each) for each in _extras(project, pyproject)),
        *(RequirementSource("file", *each) for each in _files(project)),
        *(RequirementSource("tox", *each) for each in _tox(project, pyproject)),
    ]
    return sorted(found, key=lambda each: each.order)


def choose_source(
    sources: Iterable[RequirementSource], wanted: Sequence[str]
) -> RequirementSource | None:
    """Return the source that brings most of what is wanted, or else one that is for tests."""
    best: tuple[int, RequirementSource] | None = None
    for each in sources:
        number = sum(map(each.has, wanted))
        useful = number or (each.is_for_tests and each.kind != "tox")
        if useful and (best is None or number > best[0]):
            best = number, each
    return best[1] if best else None


def find_tested_extras(
    project: Project, pyproject: Table, sources: Iterable[RequirementSource]
) -> list[str]:
    """Return the extras with which tox tests the project."""
    declared = {each.name for each in sources if each.kind == "extra"}
    words = (
        each.strip()
        for line in _tox_lines(project, pyproject, "extras")
        for each in line.split(",")
    )
    return [each for each in dict.fromkeys(words) if each in declared]


def pip_install(
    project: Project,
    *,
    chosen: RequirementSource | None,
    extras: Sequence[str],
    missing: Sequence[str],
    editable: bool,
) -> str:
    """Return the command by pip that installs a project with what its tests need."""
    options: list[str] = []
    names = [*((chosen.name,) if chosen and chosen.kind == "extra" else ()), *extras]
    extra = f"[{','.join(dict.fromkeys(names))}]" if names else ""
    if editable:
        options.append(f"-e {shlex.quote(f'.{extra}')}")
    elif project.has("requirements.txt") and (chosen is None or chosen.name != "requirements.txt"):
        options.append("-r requirements.txt")
    if chosen is not None and chosen.kind != "extra":
        options.append(_option(project, chosen))
    options += missing
    upgrade = "python -m pip install -U pip && " if chosen and chosen.kind == "group" else ""
    return f"{upgrade}python -m pip install {' '.join(filter(None, options)) or '-e .'}"


def _option(project: Project, chosen: RequirementSource) -> str:
    if chosen.kind == "group":
        return f"--group {chosen.name}"
    if chosen.kind == "file":
        return f"-r {shlex.quote(chosen.name)}"
    plain = list(dict.fromkeys(each.partition(";")[0].strip() for each in chosen.requirements))
    files = [each[1] for each in map(_INCLUDED.match, plain) if each and project.has(each[1])]
    return " ".join(
        [
            *(f"-r {shlex.quote(each)}" for each in files),
            *(shlex.quote(each) for each in plain if _REQUIREMENT.fullmatch(each)),
        ]
    )


def _normalize(requirement: str) -> str:
    found = _NAME.match(requirement.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _groups(pyproject: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the dependency groups with what they include, also those of poetry and older tools."""
    poetry = table_at(pyproject, "tool", "poetry")
    named = {"dev": {"dependencies": poetry.get("dev-dependencies")}, **table_at(poetry, "group")}
    groups: Table = {
        **{name: list(table_at(as_table(each), "dependencies")) for name, each in named.items()},
        **table_at(pyproject, "tool", "pdm", "dev-dependencies"),
        **table_at(pyproject, "dependency-groups"),
    }
    for name in groups:
        if is_safe_name(name) and groups[name]:
            yield name, tuple(_group(groups, name, _MAX_DEPTH))
    legacy = as_strings(table_at(pyproject, "tool", "uv").get("dev-dependencies"))
    if legacy and not groups["dev"]:
        yield "dev", tuple(legacy)


def _group(groups: Table, name: str, depth: int) -> Iterator[str]:
    key = next((each for each in groups if _normalize(each) == _normalize(name)), name)
    yield from as_strings(groups.get(key))
    for each in as_tables(groups.get(key)):
        included = each.get("include-group")
        if isinstance(included, str) and depth:
            yield from _group(groups, included, depth - 1)


def _extras(project: Project, pyproject: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the extras, with those that they name of the project itself."""
    extras: dict[str, list[str]] = {
        **_setup_extras(project.text("setup.py")),
        **_ini_lists(project.ini("setup.cfg"), "options.extras_require"),
    }
    for table in (
        table_at(pyproject, "tool", "poetry", "extras"),
        table_at(pyproject, "project", "optional-dependencies"),
    ):
        extras |= {name: as_strings(each) for name, each in table.items()}
    own = table_at(pyproject, "project").get("name")
    for name in filter(is_safe_name, extras):
        yield name, tuple(_extra(extras, name, _normalize(str(own)), _MAX_DEPTH))


def _extra(extras: dict[str, list[str]], name: str, own: str, depth: int) -> Iterator[str]:
    for each in extras.get(name, ()):
        yield each
        if depth and "[" in each and _normalize(each) == own:
            for inner in each.partition("[")[2].partition("]")[0].split(","):
                yield from _extra(extras, inner.strip(), own, depth - 1)


def _setup_extras(text: str) -> dict[str, list[str]]:
    """Return the extras in a setup.py, if they are written as values."""
    if "extras_require" not in text:
        return {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    values = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "extras_require":
            given = values.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            return dict(_literal_extras(given, values)) if isinstance(given, ast.Dict) else {}
    return {}


def _literal_extras(
    given: ast.Dict, values: dict[str, ast.expr]
) -> Iterator[tuple[str, list[str]]]:
    for key, each in zip(given.keys, given.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            named = [values[node.id] for node in ast.walk(each) if _is_name(node, values)]
            nodes = (node for value in (each, *named) for node in ast.walk(value))
            constants = (node.value for node in nodes if isinstance(node, ast.Constant))
            yield key.value, [value for value in constants if isinstance(value, str)]


def _is_name(node: ast.AST, values: Container[str]) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id in values


def _ini_lists(ini: configparser.ConfigParser, section: str) -> dict[str, list[str]]:
    if not ini.has_section(section):
        return {}
    return {name: text.strip().splitlines() for name, text in ini.items(section)}


def _files(project: Project) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the requirements files near the root of a project, with what they include."""
    own = len(project.path(""))
    names = (each.path[own:] for each in project.files if each.name.endswith((".txt", ".in")))
    near = [
        each
        for each in names
        if each.count("/") <= 2  # tests/requirements/base.txt
        and _REQUIREMENTS_PATH.search(each.rpartition(".")[0])
        and is_safe_name(each)
    ]
    for name in sorted(near, key=lambda each: (each.count("/"), each))[:MAX_REQUIREMENT_FILES]:
        if not (name.endswith(".in") and f"{name[:-3]}.txt" in near):
            yield name, tuple(_file_lines(project, name, _MAX_DEPTH))


def _file_lines(project: Project, name: str, depth: int) -> Iterator[str]:
    for line in project.text(name).splitlines():
        text = line.partition("#")[0].strip()
        included = _INCLUDED.match(text)
        if included is None:
            yield text
        elif depth:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), included[1]))
            yield from _file_lines(project, path, depth - 1)


def _tox(project: Project, pyproject: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield what tox installs for every environment."""
    if found := tuple(_tox_lines(project, pyproject, "deps")):
        yield "tests", found


def _tox_lines(project: Project, pyproject: Table, key: str) -> Iterator[str]:
    """Yield the lines of a setting of every environment, without the factors that they are for."""
    tools = table_at(pyproject, "tool", "tox")
    legacy = tools.get("legacy_tox_ini")
    ini = parse_ini(legacy) if isinstance(legacy, str) else project.ini("tox.ini")
    yield from (
        _FACTORS.sub("", each.partition("#")[0].strip())
        for each in ini.get("testenv", key, fallback="").splitlines()
    )
    for table in (table_at(each, "env_run_base") for each in (tools, project.toml("tox.toml"))):
        yield from as_strings(table.get(key))
