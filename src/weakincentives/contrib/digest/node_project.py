"""Commands and entry points of JavaScript and TypeScript projects, from package.json."""

from collections.abc import Iterator

from weakincentives.contrib.digest.project import (
    Command,
    EntryPoint,
    Project,
    Table,
    as_table,
    is_safe_name,
    table_at,
)
from weakincentives.contrib.digest.task_runners import match_tasks

_MANAGERS = (
    ("pnpm-lock.yaml", "pnpm"),
    ("yarn.lock", "yarn"),
    ("bun.lock", "bun"),
    ("bun.lockb", "bun"),
    ("package-lock.json", "npm"),
    ("npm-shrinkwrap.json", "npm"),
)
_SHORT = frozenset({"npm test", "npm start", "yarn", "pnpm"})  # forms without `run`
_NO_TEST = "no test specified"  # what `npm init` writes
_DEFAULT_TASKS = ("deno.json", "deno.jsonc")


def find_node_commands(project: Project) -> Iterator[Command]:
    """Yield the scripts of package.json that have a usual name, and the tasks of Deno."""
    for name in _DEFAULT_TASKS:
        for purpose, task in match_tasks(table_at(project.json(name), "tasks")):
            yield project.command(purpose, f"deno task {task}", name)
    package = project.json("package.json")
    if not package:
        return
    manager = _manager(project, package)
    yield project.command("install", f"{manager} install", "package.json")
    scripts = table_at(package, "scripts")
    for purpose, task in match_tasks(_usable(scripts)):
        yield project.command(purpose, run_script(manager, task), "package.json")
    if project.has("tsconfig.json") and not any(
        purpose == "types" for purpose, _ in match_tasks(_usable(scripts))
    ):
        yield project.command("types", f"{_executor(manager)} tsc --noEmit", "tsconfig.json")


def find_node_entry_points(project: Project) -> Iterator[EntryPoint]:
    """Yield the programs and the main module of package.json."""
    package = project.json("package.json")
    source = project.path("package.json")
    name = package.get("name")
    own = name if isinstance(name, str) else "package"
    programs = package.get("bin")
    if isinstance(programs, str):
        yield EntryPoint(own, programs, source)
    for program, target in as_table(programs).items():
        if isinstance(target, str):
            yield EntryPoint(program, target, source)
    for key in ("main", "module"):
        target = package.get(key)
        if isinstance(target, str):
            yield EntryPoint(own, target, source)
            return


def run_script(manager: str, script: str) -> str:
    """Return the command that runs a script of package.json."""
    if manager in _SHORT or f"{manager} {script}" in _SHORT:
        return f"{manager} {script}"
    return f"{manager} run {script}"


def _manager(project: Project, package: Table) -> str:
    """Return the package manager: the declared one, or the one whose lock file is there."""
    declared = package.get("packageManager")
    if isinstance(declared, str):
        name = declared.partition("@")[0]
        if name in {"npm", "pnpm", "yarn", "bun"}:
            return name
    return next((manager for lock, manager in _MANAGERS if project.has(lock)), "npm")


def _executor(manager: str) -> str:
    return {"npm": "npx", "pnpm": "pnpm exec", "yarn": "yarn", "bun": "bunx"}[manager]


def _usable(scripts: Table) -> list[str]:
    return [
        name
        for name, script in scripts.items()
        if isinstance(script, str) and _NO_TEST not in script and is_safe_name(name)
    ]
