"""Commands and entry points of Python projects, from pyproject.toml, setup.cfg, tox and nox."""

import re
from collections.abc import Iterator

from weakincentives.contrib.digest.project import (
    Command,
    EntryPoint,
    Project,
    Table,
    as_strings,
    as_table,
    is_safe_name,
    table_at,
)
from weakincentives.contrib.digest.task_runners import match_tasks

PYTHON_MANIFESTS = ("pyproject.toml", "setup.py", "setup.cfg", "Pipfile", "requirements.txt")
_RUNNERS = (
    ("uv.lock", "uv run ", "uv sync"),
    ("poetry.lock", "poetry run ", "poetry install"),
    ("pdm.lock", "pdm run ", "pdm install"),
    ("Pipfile", "pipenv run ", "pipenv install --dev"),
)
_TEST_SCRIPTS = ("runtests.py", "run_tests.py", "tests/runtests.py", "test/runtests.py")
_SESSION = re.compile(r"^@(?:nox\.)?session\b[^\n]*\n(?:[ \t)@][^\n]*\n){0,20}def[ \t]+(\w+)", re.M)
_SESSION_NAME = re.compile(r"name\s*=\s*[\"']([\w.-]+)[\"']")
_REQUIREMENT_FILES = (
    "requirements-dev.txt",
    "dev-requirements.txt",
    "requirements_dev.txt",
    "requirements/dev.txt",
    "requirements.txt",
)


def find_python_commands(project: Project) -> Iterator[Command]:
    """Yield the commands of a Python project, the preferred one for each purpose first."""
    if not project.first(*PYTHON_MANIFESTS):
        return
    pyproject = project.toml("pyproject.toml")
    prefix, install, source = _runner(project, pyproject)
    yield project.command("install", install, source)
    yield from _declared_tasks(project, pyproject)
    yield from _test_commands(project, pyproject, prefix)
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


def _runner(project: Project, pyproject: Table) -> tuple[str, str, str]:
    """Return the prefix of commands, the command to install, and the file that says so."""
    for name, prefix, install in _RUNNERS:
        if project.has(name):
            return prefix, install, name
    tools = table_at(pyproject, "tool")
    for tool in ("poetry", "pdm"):
        if tool in tools:
            return f"{tool} run ", f"{tool} install", "pyproject.toml"
    if pyproject or project.has("setup.py"):
        source = "pyproject.toml" if project.has("pyproject.toml") else "setup.py"
        return "", "python -m pip install -e .", source
    requirements = project.first(*_REQUIREMENT_FILES) or "requirements.txt"
    return "", f"python -m pip install -r {requirements}", requirements


def _declared_tasks(project: Project, pyproject: Table) -> Iterator[Command]:
    """Yield the tasks that hatch, pdm, poe and taskipy know."""
    tools = table_at(pyproject, "tool")
    for name, environment in table_at(tools, "hatch", "envs").items():
        prefix = "hatch run " if name == "default" else f"hatch run {name}:"
        if is_safe_name(name):
            scripts = table_at(as_table(environment), "scripts")
            for purpose, task in match_tasks(scripts):
                yield project.command(purpose, prefix + task, "pyproject.toml")
    runners = (("pdm", "scripts", "pdm run"), ("poe", "tasks", "poe"), ("taskipy", "tasks", "task"))
    for tool, key, program in runners:
        for purpose, task in match_tasks(table_at(tools, tool, key)):
            yield project.command(purpose, f"{program} {task}", "pyproject.toml")


def _test_commands(project: Project, pyproject: Table, prefix: str) -> Iterator[Command]:
    if script := project.first(*_TEST_SCRIPTS):
        yield project.command("test", f"{prefix}python {script}", script)
    elif source := _pytest_source(project, pyproject):
        yield project.command("test", f"{prefix or 'python -m '}pytest", source)
    tests = any(_is_test(each.name) for each in project.files)
    if "tox" in table_at(pyproject, "tool"):
        yield project.command("test", "tox", "pyproject.toml")
    elif project.has("tox.ini"):
        yield project.command("test", "tox", "tox.ini")
    for purpose, task in match_tasks(_nox_sessions(project)):
        yield project.command(purpose, f"nox -s {task}", "noxfile.py")
    if tests and not script and not _pytest_source(project, pyproject):
        source = project.first(*PYTHON_MANIFESTS) or ""
        yield project.command("test", f"{prefix}python -m unittest", source)


def _is_test(name: str) -> bool:
    return name.endswith(".py") and (name.startswith("test_") or name == "tests.py")


def _pytest_source(project: Project, pyproject: Table) -> str | None:
    """Return the file that says that the project uses pytest."""
    if "pytest" in table_at(pyproject, "tool"):
        return "pyproject.toml"
    if found := project.first("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"):
        return found
    for name, section in (("setup.cfg", "tool:pytest"), ("tox.ini", "pytest")):
        if project.ini(name).has_section(section):
            return name
    if _mentions(project.text("pyproject.toml"), "pytest"):
        return "pyproject.toml"
    for name in ("setup.cfg", "tox.ini", "noxfile.py", "setup.py", *_REQUIREMENT_FILES):
        if _mentions(project.text(name), "pytest"):
            return name
    return None


def _mentions(text: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def _nox_sessions(project: Project) -> Iterator[str]:
    text = project.text("noxfile.py")
    for match in _SESSION.finditer(text):
        name = _SESSION_NAME.search(match.group())
        yield name.group(1) if name else match.group(1)


def _lint_commands(project: Project, pyproject: Table, prefix: str) -> Iterator[Command]:
    tools = table_at(pyproject, "tool")
    ruff = "pyproject.toml" if "ruff" in tools else project.first("ruff.toml", ".ruff.toml")
    hooks = project.text(".pre-commit-config.yaml")
    if ruff:
        yield project.command("lint", f"{prefix}ruff check .", ruff)
    for name, section in ((".flake8", "flake8"), ("setup.cfg", "flake8"), ("tox.ini", "flake8")):
        if project.ini(name).has_section(section):
            yield project.command("lint", f"{prefix}flake8", name)
            break
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
    tools = table_at(pyproject, "tool")
    mypy = "pyproject.toml" if "mypy" in tools else project.first("mypy.ini", ".mypy.ini")
    if mypy is None and project.ini("setup.cfg").has_section("mypy"):
        mypy = "setup.cfg"
    if mypy:
        yield project.command(
            "types", f"{prefix}mypy {_mypy_target(project, tools)}".rstrip(), mypy
        )
    if "pyright" in tools or project.has("pyrightconfig.json"):
        source = "pyproject.toml" if "pyright" in tools else "pyrightconfig.json"
        yield project.command("types", f"{prefix}pyright", source)


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
