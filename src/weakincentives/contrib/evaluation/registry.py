"""The engines by name, and the choice of one."""

import shutil
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from weakincentives.contrib.evaluation.engine import (
    Engine,
    EngineLanguage,
    EngineUnavailableError,
)
from weakincentives.contrib.evaluation.worker import WorkerEngine, WorkerProgram, unconfined
from weakincentives.extras import describe_missing, install_command
from weakincentives.sandbox import READ, Grant, is_supported

DEFAULT_ENGINE = "python"
"""The engine that computes what Python computes."""

_PROGRAMS = "weakincentives.contrib.evaluation.worker"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_GIVEN = ("read_text", "write_text", "math", "statistics")

PYTHON_LANGUAGE = EngineLanguage(
    summary="all of Python, with its standard library and the modules of the workspace",
    functions=_GIVEN,
    missing=(
        "other packages",
        "processes",
        "the network",
        "deleting existing files",
    ),
)
ASTEVAL_LANGUAGE = EngineLanguage(
    summary="asteval, an interpreter for a small part of Python",
    functions=_GIVEN,
    missing=(
        *("classes", "decorators", "generators (yield)", "generator expressions", "next()"),
        *("match statements", "async functions", "nonlocal", "assignment expressions"),
        *("starred assignment", "exec and eval"),
    ),
)
MONTY_LANGUAGE = EngineLanguage(
    summary="Monty, an interpreter for a part of Python; round() may differ in the last digit",
    modules=(
        *("asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses"),
        *("datetime", "decimal", "functools", "hashlib", "itertools", "json", "math", "os"),
        *("pathlib", "random", "re", "sys", "time", "tomllib", "typing", "unicodedata"),
    ),
    missing=(
        *("generators (yield)", "class inheritance", "property, classmethod, staticmethod", "del"),
        *("len(), bool() and operators of own classes", "methods as values (key=d.get)"),
        *("next() of a generator expression", "re.sub with a function", "sorted paths"),
        "print(file=...) to a file",
    ),
)


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """How an engine is made, and what it needs.

    Args:
        create: Makes the engine.
        package: The package that it needs; None if it needs none.
        extra: The extra that installs this package.
    """

    create: Callable[[], Engine]
    package: str | None = None
    extra: str | None = None


def _create_python() -> Engine:
    return WorkerEngine("python", PYTHON_LANGUAGE, WorkerProgram(f"{_PROGRAMS}.python"))


def _create_asteval() -> Engine:
    program = WorkerProgram(f"{_PROGRAMS}.asteval", _find_directories("asteval"))
    return WorkerEngine("asteval", ASTEVAL_LANGUAGE, program)


def _create_monty() -> Engine:
    binary = _find_binary()
    program = WorkerProgram(
        f"{_PROGRAMS}.monty",
        _find_directories("pydantic_monty", "typing_extensions"),
        is_reusable=True,
        starts_processes=True,
        options={"binary": binary},
        grants=tuple(Grant(path, READ) for path in (binary, *_LIBRARIES)),
    )
    return WorkerEngine("monty", MONTY_LANGUAGE, program)


ENGINES: Mapping[str, EngineEntry] = {
    DEFAULT_ENGINE: EngineEntry(_create_python),
    "asteval": EngineEntry(_create_asteval, "asteval", "asteval"),
    "monty": EngineEntry(_create_monty, "pydantic_monty", "monty"),
}
"""Engines by name; the first is the default, and the only one that nobody has to name."""


def create_engine(name: str) -> Engine:
    """Return one of `ENGINES`; close it after use.

    Raises:
        EngineUnavailableError: There is no such engine, its package is not installed, or this
            machine cannot confine it.
    """
    problem = find_problem(name)
    if problem is not None:
        raise EngineUnavailableError(problem)
    return ENGINES[name].create()


def choose_engine() -> Engine:
    """Return the default engine, `python`: no other computes the same; close it after use.

    Raises:
        EngineUnavailableError: This machine cannot confine it.
    """
    return create_engine(DEFAULT_ENGINE)


def find_problem(name: str) -> str | None:
    """Return why an engine is not available, and what to do; None if it is."""
    entry = ENGINES.get(name)
    if entry is None:
        return f"No such engine: {name!r}; use {', '.join(ENGINES)}"
    if not is_supported():
        return unconfined("there is no system call filter for it")
    if entry.package is not None and find_spec(entry.package) is None:
        return describe_missing(f"the engine {name!r}", entry.extra or name)
    return None


def _find_directories(*packages: str) -> tuple[str, ...]:
    """Return the directories that contain these packages."""
    origins = [spec.origin for name in packages if (spec := find_spec(name)) and spec.origin]
    paths = [Path(each) for each in origins]
    parents = [each.parents[1] if each.name == "__init__.py" else each.parent for each in paths]
    return tuple(dict.fromkeys(map(str, parents)))


def _find_binary() -> str:
    installed = Path(sysconfig.get_path("scripts"), "monty")
    found = str(installed) if installed.is_file() else shutil.which("monty")
    if found is None:
        raise EngineUnavailableError(
            f"The program of the engine 'monty' is missing: {install_command('monty')}"
        )
    return found
