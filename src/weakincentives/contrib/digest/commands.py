"""The commands of a workspace: how its projects are tested, checked, formatted, built and run.

Each detector yields commands with the file that they were found in. They are ordered so that the
first of each purpose is the one to use: tasks that the project defines for itself, then the build
system of the language that most of its code is in, then other build systems, then what continuous
integration runs, then containers. The root comes before projects further down.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from weakincentives.contrib.digest.ci import find_ci_commands
from weakincentives.contrib.digest.compiled_projects import (
    find_c_commands,
    find_container_commands,
    find_go_commands,
    find_go_entry_points,
    find_other_commands,
    find_rust_commands,
    find_rust_entry_points,
)
from weakincentives.contrib.digest.inventory import Inventory
from weakincentives.contrib.digest.languages import language_of
from weakincentives.contrib.digest.node_project import find_node_commands, find_node_entry_points
from weakincentives.contrib.digest.project import PURPOSES, Command, EntryPoint, Project
from weakincentives.contrib.digest.python_project import (
    PYTHON_MANIFESTS,
    find_python_commands,
    find_python_entry_points,
)
from weakincentives.contrib.digest.task_runners import find_tasks

MAX_COMMANDS = 3
"""Commands for one purpose."""
MAX_PROJECTS = 20
"""Projects below the root that are looked at."""
MAX_ENTRY_POINTS = 40
_MAX_COMMAND = 200  # characters; a longer one is left out
_MAX_DEPTH = 3  # levels below the root at which projects are looked for
_MANIFESTS = frozenset(
    {*PYTHON_MANIFESTS, "package.json", "Cargo.toml", "go.mod", "CMakeLists.txt", "pom.xml"}
)
_NOT_PROJECTS = frozenset(
    {
        *("vendor", "third_party", "external", "deps", "contrib", "testdata", "fixtures"),
        *("examples", "example", "tests", "test", "docs", "doc"),
    }
)
_Finder = Callable[[Project], Iterable[Command]]
# for each build system, the languages whose projects it builds
_BUILD_SYSTEMS: tuple[tuple[frozenset[str], _Finder], ...] = (
    (frozenset({"Python", "Cython"}), find_python_commands),
    (frozenset({"Rust"}), find_rust_commands),
    (frozenset({"JavaScript", "TypeScript", "Vue", "Svelte"}), find_node_commands),
    (frozenset({"Go"}), find_go_commands),
    (frozenset({"C", "C++"}), find_c_commands),
    (frozenset({"Java", "Kotlin", "Ruby", "PHP", "C#"}), find_other_commands),
)
_BUILT_LANGUAGES = frozenset(name for names, _ in _BUILD_SYSTEMS for name in names)


def find_projects(inventory: Inventory) -> Sequence[Project]:
    """Return the root and the directories below it that have a manifest."""
    found: dict[str, None] = {}
    for each in inventory.files:
        *parents, name = each.path.split("/")
        is_near = name in _MANIFESTS and 0 < len(parents) <= _MAX_DEPTH
        if is_near and _NOT_PROJECTS.isdisjoint(parents):
            found["/".join(parents)] = None
    nearest = sorted(found, key=lambda path: (path.count("/"), path))[:MAX_PROJECTS]
    return [Project(inventory), *(Project(inventory, path) for path in nearest)]


def find_commands(projects: Sequence[Project]) -> Sequence[Command]:
    """Return the commands of `projects`, by purpose, the one to use first.

    A project below the root contributes only what the projects above it do not have.
    """
    found: list[Command] = []
    for project in projects:
        have = {each.purpose for each in found}
        own = [each for each in _project_commands(project) if each.purpose not in have]
        found += own
    return [
        each
        for purpose in PURPOSES
        for each in _distinct(each for each in found if each.purpose == purpose)
    ]


def find_entry_points(projects: Sequence[Project]) -> Sequence[EntryPoint]:
    """Return where the programs of `projects` start."""
    found: dict[EntryPoint, None] = {}
    finders = (
        find_python_entry_points,
        find_node_entry_points,
        find_rust_entry_points,
        find_go_entry_points,
    )
    for project in projects:
        for find in finders:
            found.update(dict.fromkeys(find(project)))
    return list(found)[:MAX_ENTRY_POINTS]


def _project_commands(project: Project) -> Iterator[Command]:
    yield from find_tasks(project)
    main = _main_languages(project)
    for fits in (True, False):
        for languages, find in _BUILD_SYSTEMS:
            if languages.isdisjoint(main) != fits:
                yield from find(project)
    yield from find_ci_commands(project)
    yield from find_container_commands(project)


def _main_languages(project: Project) -> frozenset[str]:
    """Return the language that most of the project's code is in."""
    sizes: Counter[str] = Counter()
    for each in project.files:
        name = language_of(each.name).name
        if name in _BUILT_LANGUAGES:
            sizes[name] += each.size
    return frozenset(name for name, _ in sizes.most_common(1))


def _distinct(commands: Iterable[Command]) -> list[Command]:
    """Return the first few that differ."""
    found: dict[tuple[str, str], Command] = {}
    for each in commands:
        if len(each.command) <= _MAX_COMMAND:
            found.setdefault((each.directory, each.command), each)
    return list(found.values())[:MAX_COMMANDS]
