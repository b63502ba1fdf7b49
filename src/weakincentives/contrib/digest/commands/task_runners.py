"""Commands from task runners: make, just, Task, and scripts with telling names.

A project that has a task for a purpose wants it to be used, so these come first.
"""

import re
from collections.abc import Iterable, Iterator

from weakincentives.contrib.digest.commands.project import Command, Project, Purpose, is_safe_name

TASK_NAMES: dict[Purpose, tuple[str, ...]] = {
    "install": ("install-dev", "dev-install", "setup", "bootstrap", "develop", "deps", "install"),
    "test": ("test", "tests", "check", "unittest", "unit", "pytest", "test-unit", "test:unit"),
    "lint": ("lint", "linter", "flake8", "clippy", "check-lint", "lint:check", "eslint", "style"),
    "format": (
        "format",
        "fmt",
        "fix",
        "black",
        "prettier",
        "format:write",
        "lint:fix",
        "codestyle",
    ),
    "types": ("typecheck", "type-check", "types", "mypy", "pyright", "tsc", "check-types"),
    "build": ("build", "compile", "all", "dist", "build-dev"),
    "run": ("run", "start", "serve", "dev", "server", "runserver"),
}
"""The usual names of tasks, the most usual first."""
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
"""The files that make looks for, in this order."""
_NO_BUILD = ("help", "usage", "list", "clean")
_JUSTFILES = ("justfile", "Justfile", ".justfile")
_TASKFILES = ("Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml")
_SCRIPT_DIRECTORIES = ("script", "scripts", "bin")
_TARGETS = re.compile(r"^([A-Za-z0-9][\w./ \t-]{0,500}+):(?!=)", re.M)
_DEFAULT_GOAL = re.compile(r"^\.DEFAULT_GOAL[ \t]*[:?]?=[ \t]*(\S+)", re.M)
_DELEGATE = re.compile(r"^\.DEFAULT:\s*\n\tcd ([\w-]+) && \$\(MAKE\) \$@", re.M)
_TEST_SCRIPTS = ("runtest", "runtests", "runtests.sh", "run_tests.sh", "run-tests.sh", "test.sh")
_RECIPE = re.compile(r"^@?([A-Za-z_][\w-]*)(?:[ \t]+[^:=\n]*)?:(?!=)", re.M)
_RECIPE_OF = r"^@?{}\b[^\n]{{0,200}}:[^\n]*\n((?:[ \t][^\n]*\n?){{0,40}})"
_FOR_TESTS = re.compile(r"test|dev|requirement|--group|\[[\w,]+\]|sync|poetry|pdm|tox|nox|hatch")
_TASK = re.compile(r"^(?:  |\t)([A-Za-z_][\w:.-]*):[ \t]*$", re.M)


def find_tasks(project: Project) -> Iterator[Command]:
    """Yield the commands that the project's task runners offer."""
    source = project.first(*MAKEFILES)
    if source and not project.first("configure", "configure.ac"):  # those replace the Makefile
        targets = set(_make_targets(project, source))
        if not project.first("pyproject.toml", "setup.py", "package.json"):
            targets.discard("install")  # of a compiled program: it writes to the system
        yield from _tasks(project, targets, "make", source)
    if source := project.first(*_JUSTFILES):
        yield from _tasks(project, _RECIPE.findall(project.text(source)), "just", source)
    if source := project.first(*_TASKFILES):
        text = project.text(source).partition("\ntasks:")[2]
        yield from _tasks(project, _TASK.findall(text), "task", source)
    yield from _find_scripts(project)


def match_tasks(names: Iterable[str]) -> Iterator[tuple[Purpose, str]]:
    """Yield the purpose and the name of each task among `names` that has a usual name."""
    known = {name for name in names if is_safe_name(name)}
    for purpose, usual in TASK_NAMES.items():
        for name in usual:
            if name in known:
                yield purpose, name


def builds_by_default(makefile: str) -> bool:
    """Whether `make` alone builds something; in many projects it prints help, or runs tests."""
    goal = _DEFAULT_GOAL.search(makefile) or _TARGETS.search(makefile)
    names = goal[1].split() if goal else []
    purposes = {purpose for purpose, _ in match_tasks(names[:1])}
    return purposes <= {"build"} and not {*names[:1]}.intersection(_NO_BUILD)


def leaves_out_tests(project: Project, command: Command) -> bool:
    """Whether a task installs a Python project by pip, without what its tests need."""
    if command.purpose != "install":
        return False
    text = project.text(command.source[len(project.path("")) :])
    recipe = re.search(_RECIPE_OF.format(re.escape(command.command.rpartition(" ")[2])), text, re.M)
    text = recipe[1] if recipe else text
    return "pip install" in text and _FOR_TESTS.search(text) is None


def _tasks(project: Project, names: Iterable[str], program: str, source: str) -> Iterator[Command]:
    for purpose, name in match_tasks(names):
        yield project.command(purpose, f"{program} {name}", source)


def _make_targets(project: Project, source: str) -> Iterator[str]:
    """Yield the targets of a Makefile, and those of the Makefile that it passes all others to."""
    text = project.text(source)
    if delegate := _DELEGATE.search(text):
        text += project.text(f"{delegate[1]}/Makefile")
    for line in _TARGETS.findall(text):
        yield from line.split()


def _find_scripts(project: Project) -> Iterator[Command]:
    """Yield scripts such as `scripts/test` and `runtest`."""
    if name := project.first(*_TEST_SCRIPTS):
        yield project.command("test", f"sh {name}" if name.endswith(".sh") else f"./{name}", name)
    for directory in _SCRIPT_DIRECTORIES:
        paths = {
            path.rpartition("/")[2].removesuffix(".sh"): path
            for path in project.list(directory)
            if path.endswith(".sh") or "." not in path.rpartition("/")[2]
        }
        for purpose, name in match_tasks(paths):
            path = paths[name]
            prefix = "sh " if path.endswith(".sh") else "./"
            yield project.command(purpose, f"{prefix}{path}", path)
