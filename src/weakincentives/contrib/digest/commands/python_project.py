"""Commands and entry points of Python projects, from pyproject.toml, setup.cfg, tox and nox."""

import re
from collections.abc import Iterable, Iterator, Sequence

from weakincentives.contrib.digest.commands.project import (
    Command,
    EntryPoint,
    Project,
    Table,
    as_strings,
    as_table,
    is_safe_name,
    table_at,
)
from weakincentives.contrib.digest.commands.python_requirements import (
    RequirementSource,
    choose_source,
    find_tested_extras,
    pip_install,
    requirement_sources,
)
from weakincentives.contrib.digest.commands.task_runners import match_tasks

PYTHON_MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "requirements.txt")
_LOCK_FILES = (
    ("uv.lock", "uv"),
    ("poetry.lock", "poetry"),
    ("pdm.lock", "pdm"),
    ("Pipfile", "pipenv"),
)
_TEST_SCRIPTS = ("runtests.py", "run_tests.py", "tests/runtests.py", "test/runtests.py")
_SESSION = re.compile(r"^@(?:nox\.)?session\b[^\n]*\n(?:[ \t)@][^\n]*\n){0,20}def[ \t]+(\w+)", re.M)
_IMPORT = re.compile(r"^(?:import|from) pytest\b", re.M)
_MAX_TESTS = 20  # that are looked into
_SESSION_NAME = re.compile(r"name\s*=\s*[\"']([\w.-]+)[\"']")
_PACKAGES = {
    "pytest": "pytest",
    "tox": "tox",
    "nox": "nox",
    "hatch": "hatch",
    "coverage": "coverage",
    "poe": "poethepoet",
    "task": "taskipy",
}
"""What a command needs that is no part of Python, by its program."""
_OWN_ENVIRONMENT = frozenset({"tox", "nox", "hatch"})  # they install what the tests need


def find_python_commands(project: Project, tasks: Sequence[Command] = ()) -> Iterator[Command]:
    """Yield the commands of a Python project, the preferred one for each purpose first.

    The command to install prepares the first command to test, which may be one of `tasks`.
    """
    if not project.first(*PYTHON_MANIFESTS):
        return
    pyproject = project.toml("pyproject.toml")
    sources = requirement_sources(project, pyproject)
    prefix = _prefix(project, pyproject)
    test = [
        *_declared_tasks(project, pyproject, prefix, sources),
        *_test_commands(project, prefix, sources),
    ]
    runs_tests = next((each for each in [*tasks, *test] if each.purpose == "test"), None)
    wanted = () if runs_tests is None else tuple(_wanted(project, runs_tests, prefix, test))
    yield _install_command(project, pyproject, sources, wanted)
    yield from test
    yield from _lint_commands(project, pyproject, prefix)
    yield from _type_commands(project, pyproject, prefix)
    yield from _build_commands(project, pyproject)
    yield from _run_commands(project, prefix)


def find_python_entry_points(project: Project) -> Iterator[EntryPoint]:
    """Yield console scripts and modules that can be run."""
    pyproject = project.toml("pyproject.toml")
    scripts = {
        **table_at(pyproject, "tool", "poetry", "scripts"),
        **table_at(pyproject, "project", "scripts"),
    }
    for name, target in scripts.items():
        if isinstance(target, str):
            yield EntryPoint(name, target, project.path("pyproject.toml"))
    text = project.ini("setup.cfg").get("options.entry_points", "console_scripts", fallback="")
    for line in text.splitlines():
        name, equals, target = line.partition("=")
        if equals:
            yield EntryPoint(name.strip(), target.strip(), project.path("setup.cfg"))
    if project.has("manage.py"):
        yield EntryPoint("manage.py", "Django", project.path("manage.py"))


def _runner(project: Project, pyproject: Table) -> tuple[str, str]:
    """Return the program that manages the environment, and the file that says so; or pip."""
    tools = table_at(pyproject, "tool")
    for name, program in _LOCK_FILES:
        if project.has(name):
            return program, name
    program = next((each for each in ("poetry", "pdm") if each in tools), "")
    if program:
        return program, "pyproject.toml"
    return "", project.first("pyproject.toml", "setup.py", "setup.cfg") or "requirements.txt"


def _prefix(project: Project, pyproject: Table) -> str:
    program, _ = _runner(project, pyproject)
    return f"{program} run " if program else ""


def _wanted(
    project: Project, command: Command, prefix: str, others: Iterable[Command]
) -> Iterator[str]:
    """Yield the packages that a command to test needs, of those that run tests."""
    own = command.command.removeprefix(prefix).removeprefix("python -m ").partition(" ")[0]
    if own in _PACKAGES:
        yield _PACKAGES[own]
    if own in _OWN_ENVIRONMENT:
        return
    if own not in {*_PACKAGES, "python"}:  # a task or a script, which calls something else
        name = command.source[len(project.path("")) :]
        recipe = project.text(name)
        called = (*sorted(_OWN_ENVIRONMENT), "coverage")
        yield from (_PACKAGES[each] for each in called if _mentions(recipe, each))
    if own != "pytest" and any("pytest" in each.command for each in others):
        yield "pytest"


def _install_command(
    project: Project, pyproject: Table, sources: Sequence[RequirementSource], wanted: Sequence[str]
) -> Command:
    """Return the command that installs the project with what its tests need."""
    program, name = _runner(project, pyproject)
    installed = _installed(project, pyproject, program, sources)
    left = [each for each in wanted if not any(source.has(each) for source in installed)]
    chosen = None if installed and not left else choose_source(sources, wanted)
    missing = [each for each in left if chosen is None or not chosen.has(each)]
    extras = find_tested_extras(project, pyproject, sources)
    if program:
        text = _managed_install(program, chosen, _extra_options(project, program, extras), missing)
    else:
        tables = ("project", "build-system")
        editable = project.has("setup.py") or any(each in pyproject for each in tables)
        text = pip_install(
            project, chosen=chosen, extras=extras, missing=missing, editable=editable
        )
        if chosen is not None and chosen.kind == "file" and not editable:
            name = chosen.name
    return project.command("install", text, name)


def _installed(
    project: Project, pyproject: Table, program: str, sources: Sequence[RequirementSource]
) -> list[RequirementSource]:
    """Return the sources that the program installs without being asked."""
    groups = [each for each in sources if each.kind == "group"]
    tools = table_at(pyproject, "tool")
    if program == "uv":
        default = table_at(tools, "uv").get("default-groups", ["dev"])
        return [each for each in groups if default == "all" or each.name in as_strings(default)]
    if program == "poetry":
        named = table_at(tools, "poetry", "group")
        return [each for each in groups if not table_at(named, each.name).get("optional")]
    if program == "pipenv":
        packages = table_at(project.toml("Pipfile"), "dev-packages")
        return [RequirementSource("group", "dev", tuple(packages))]
    return groups if program else []


def _extra_options(project: Project, program: str, extras: Sequence[str]) -> str:
    """Return the options for the extras that tests use: all of them if a recipe or CI says so."""
    files = ("Justfile", "justfile", "Makefile", "tox.ini", "noxfile.py")
    if program in {"uv", "poetry"} and any("--all-extras" in project.text(each) for each in files):
        return " --all-extras"
    option = {"uv": "--extra", "poetry": "--extras", "pdm": "-G"}.get(program)
    return "".join(f" {option} {each}" for each in extras) if option else ""


def _managed_install(
    program: str, chosen: RequirementSource | None, extras: str, missing: Sequence[str]
) -> str:
    """Return the command by uv, poetry, pdm or pipenv."""
    command = {
        "uv": "uv sync",
        "poetry": "poetry install",
        "pdm": "pdm install",
        "pipenv": "pipenv install --dev",
    }[program]
    command += extras
    add = {
        "uv": "uv pip install",  # the environments of pdm have no pip
        "pdm": "pdm run python -m ensurepip && pdm run python -m pip install",
    }.get(program, f"{program} run pip install")
    if chosen is not None and chosen.kind in {"group", "extra"}:
        option = {
            ("uv", "group"): "--group",
            ("uv", "extra"): "--extra",
            ("poetry", "group"): "--with",
            ("poetry", "extra"): "--extras",
        }.get((program, chosen.kind), "-G")
        option = f" {option} {chosen.name}"
        is_there = option in extras or (chosen.kind == "extra" and "--all-extras" in extras)
        command += "" if is_there else option
    elif chosen is not None and chosen.kind == "file":
        command += f" && {add} -r {chosen.name}"
    elif chosen is not None:
        missing = [*missing, *(each for each in _PACKAGES.values() if chosen.has(each))]
    return f"{command} && {add} {' '.join(missing)}" if missing else command


def _declared_tasks(
    project: Project, pyproject: Table, prefix: str, sources: Sequence[RequirementSource]
) -> Iterator[Command]:
    """Yield the tasks that hatch, pdm, poe and taskipy know."""
    tools = table_at(pyproject, "tool")
    for name, each in table_at(tools, "hatch", "envs").items():
        if is_safe_name(name):
            yield from _hatch_tasks(project, name, as_table(each), sources)
    runners = (
        ("pdm", "scripts", "pdm run"),
        ("poe", "tasks", f"{prefix}poe"),
        ("taskipy", "tasks", f"{prefix}task"),
    )
    for tool, key, program in runners:
        for purpose, task in match_tasks(table_at(tools, tool, key)):
            yield project.command(purpose, f"{program} {task}", "pyproject.toml")


def _hatch_tasks(
    project: Project, name: str, environment: Table, sources: Sequence[RequirementSource]
) -> Iterator[Command]:
    """Yield the scripts of an environment, or its pytest if only this environment has it."""
    run = "hatch run " if name == "default" else f"hatch run {name}:"
    scripts = table_at(environment, "scripts")
    for purpose, task in match_tasks(scripts):
        yield project.command(purpose, run + task, "pyproject.toml")
    keys = ("dependencies", "extra-dependencies")
    needs = tuple(each for key in keys for each in as_strings(environment.get(key)))
    if name == "hatch-test":
        yield project.command("test", "hatch test", "pyproject.toml")
    elif (
        not scripts
        and RequirementSource("group", name, needs).has("pytest")
        and not any(each.has("pytest") for each in sources)
    ):
        yield project.command("test", f"{run}pytest", "pyproject.toml")


def _test_commands(
    project: Project, prefix: str, sources: Sequence[RequirementSource]
) -> Iterator[Command]:
    found = _pytest_source(project, sources)
    if script := project.first(*_TEST_SCRIPTS):
        yield project.command("test", f"{prefix}python {script}", script)
    elif found:
        yield project.command("test", f"{prefix or 'python -m '}pytest", found)
    if name := _find_config(project, "tox", "tox.ini", "tox.toml"):
        yield project.command("test", "tox", name)
    for purpose, task in match_tasks(_nox_sessions(project)):
        yield project.command(purpose, f"nox -s {task}", "noxfile.py")
    if not script and not found and any(_is_test(each.name) for each in project.files):
        source = project.first(*PYTHON_MANIFESTS) or ""
        yield project.command("test", f"{prefix}python -m unittest", source)


def _is_test(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("test_") or name == "tests.py")


def _pytest_source(project: Project, sources: Sequence[RequirementSource]) -> str | None:
    """Return the file that says that the project uses pytest."""
    files = ("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py")
    sections = ("setup.cfg [tool:pytest]", "tox.ini [pytest]")
    if found := _find_config(project, "pytest", *files, *sections):
        return found
    for name in (*PYTHON_MANIFESTS[:-1], "tox.ini", "tox.toml", "noxfile.py"):
        if _mentions(project.text(name), "pytest"):
            return name
    named = (each.name for each in sources if each.kind == "file" and each.has("pytest"))
    return next(named, None) or _pytest_import(project)


def _find_config(project: Project, tool: str, *places: str) -> str | None:
    """Return where a tool is configured: pyproject.toml, or one of these files or sections."""
    if tool in table_at(project.toml("pyproject.toml"), "tool"):
        return "pyproject.toml"
    for place in places:
        name, _, section = place.rstrip("]").partition(" [")
        if project.ini(name).has_section(section) if section else project.has(name):
            return name
    return None


def _pytest_import(project: Project) -> str | None:
    """Return a test that imports pytest, of a project that says so nowhere else."""
    own = len(project.path(""))
    tests = [each.path[own:] for each in project.files if _is_test(each.name)]
    return next((each for each in tests[:_MAX_TESTS] if _IMPORT.search(project.text(each))), None)


def _mentions(text: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def _nox_sessions(project: Project) -> Iterator[str]:
    text = project.text("noxfile.py")
    for match in _SESSION.finditer(text):
        name = _SESSION_NAME.search(match.group())
        yield name.group(1) if name else match.group(1)


def _lint_commands(project: Project, pyproject: Table, prefix: str) -> Iterator[Command]:
    tools = table_at(pyproject, "tool")
    ruff = _find_config(project, "ruff", "ruff.toml", ".ruff.toml")
    hooks = project.text(".pre-commit-config.yaml")
    if ruff:
        yield project.command("lint", f"{prefix}ruff check .", ruff)
    sections = (".flake8 [flake8]", "setup.cfg [flake8]", "tox.ini [flake8]")
    if flake8 := _find_config(project, "flake8", *sections):
        yield project.command("lint", f"{prefix}flake8", flake8)
    if hooks:
        yield project.command("lint", "pre-commit run --all-files", ".pre-commit-config.yaml")
    if "black" in tools or "psf/black" in hooks:
        source = "pyproject.toml" if "black" in tools else ".pre-commit-config.yaml"
        yield project.command("format", f"{prefix}black .", source)
    elif ruff and ("format" in table_at(tools, "ruff") or "ruff-format" in hooks):
        yield project.command("format", f"{prefix}ruff format .", ruff)
    if "isort" in tools:
        yield project.command("format", f"{prefix}isort .", "pyproject.toml")


def _type_commands(project: Project, pyproject: Table, prefix: str) -> Iterator[Command]:
    if mypy := _find_config(project, "mypy", "mypy.ini", ".mypy.ini", "setup.cfg [mypy]"):
        command = f"{prefix}mypy {_mypy_target(project, table_at(pyproject, 'tool'))}"
        yield project.command("types", command.rstrip(), mypy)
    if pyright := _find_config(project, "pyright", "pyrightconfig.json"):
        yield project.command("types", f"{prefix}pyright", pyright)


def _mypy_target(project: Project, tools: Table) -> str:
    configured = table_at(tools, "mypy").get("files")
    names = configured.split(",") if isinstance(configured, str) else as_strings(configured)
    if names:
        return ""  # mypy reads its configuration
    return "src" if project.inventory.below(project.path("src")) else "."


def _build_commands(project: Project, pyproject: Table) -> Iterator[Command]:
    backend = table_at(pyproject, "build-system").get("build-backend")
    if backend == "maturin":
        yield project.command("build", "maturin develop", "pyproject.toml")
    elif backend:
        yield project.command("build", "python -m build", "pyproject.toml")
    elif project.has("setup.py"):
        yield project.command("build", "python -m build", "setup.py")


def _run_commands(project: Project, prefix: str) -> Iterator[Command]:
    if project.has("manage.py"):
        yield project.command("run", f"{prefix}python manage.py runserver", "manage.py")
    scripts = [each for each in find_python_entry_points(project) if is_safe_name(each.name)]
    for script in scripts[:2]:
        source = script.source.rpartition("/")[2]
        yield project.command("run", f"{prefix}{script.name}", source)
    for each in project.files:
        module = _main_module(project, each.path)
        if module:
            source = each.path[len(project.directory) + 1 if project.directory else 0 :]
            yield project.command("run", f"{prefix}python -m {module}", source)
            return


def _main_module(project: Project, path: str) -> str | None:
    """Return the package whose `__main__.py` is at `path`, at the top of the project or of src."""
    if not path.endswith("/__main__.py"):
        return None
    below = path[len(project.path("")) :].removeprefix("src/").removesuffix("/__main__.py")
    return below if below.isidentifier() and below not in {"tests", "test"} else None
