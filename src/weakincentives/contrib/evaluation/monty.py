"""The Monty engine: a Python interpreter in Rust that has no access to anything by itself."""

import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from weakincentives.contrib.evaluation.engine import EngineLanguage, EngineUnavailableError
from weakincentives.contrib.evaluation.worker import WorkerEngine, WorkerProgram
from weakincentives.sandbox.landlock import READ, Grant

_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")

MONTY_LANGUAGE = EngineLanguage(
    summary="Monty, an interpreter for most of Python",
    modules=(
        *("asyncio", "base64", "binascii", "bisect", "calendar", "collections", "copy", "csv"),
        *(
            "dataclasses",
            "datetime",
            "decimal",
            "difflib",
            "functools",
            "glob",
            "hashlib",
            "heapq",
            "html",
        ),
        *("io", "itertools", "json", "math", "operator", "os", "pathlib", "random", "re"),
        *("statistics", "string", "sys", "textwrap", "time", "tomllib", "typing", "unicodedata"),
    ),
    missing=(
        *("generators (yield)", "class inheritance", "property, classmethod, staticmethod", "del"),
        "len(), bool() and operators of own classes",
    ),
)


def create_monty_engine() -> WorkerEngine:
    """Return an engine that runs code in Monty.

    Raises:
        EngineUnavailableError: Its package is not installed.
    """
    binary = _find_binary()
    program = WorkerProgram(
        "weakincentives.contrib.evaluation.worker.monty.program",
        find_directories("pydantic_monty", "typing_extensions"),
        is_reusable=True,
        starts_processes=True,
        options={"binary": binary},
        grants=tuple(Grant(path, READ) for path in (binary, *_LIBRARIES)),
    )
    return WorkerEngine("monty", MONTY_LANGUAGE, program)


def find_directories(*packages: str) -> tuple[str, ...]:
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
            "The program of the engine 'monty' is missing: pip install 'weakincentives[monty]'"
        )
    return found
