"""The asteval engine: an interpreter for a part of Python, with a whitelist of names."""

from weakincentives.contrib.evaluation.engine import EngineLanguage
from weakincentives.contrib.evaluation.monty import find_directories
from weakincentives.contrib.evaluation.worker import WorkerEngine, WorkerProgram

ASTEVAL_LANGUAGE = EngineLanguage(
    summary="asteval, an interpreter for the common part of Python",
    modules=(
        *("abc", "base64", "bisect", "calendar", "collections", "copy", "csv", "dataclasses"),
        *("datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq"),
        *("html", "io", "itertools", "json", "math", "operator", "pprint", "random", "re"),
        *("statistics", "string", "sys", "textwrap", "time", "typing", "unicodedata"),
        *("urllib.parse",),
    ),
    missing=(
        *("open()", "infinite generators"),
        *("match statements", "async functions", "exec and eval"),
    ),
)


def create_asteval_engine() -> WorkerEngine:
    """Return an engine that runs code in asteval."""
    program = WorkerProgram(
        "weakincentives.contrib.evaluation.worker.asteval.program",
        find_directories("asteval"),
        is_reusable=False,
    )
    return WorkerEngine("asteval", ASTEVAL_LANGUAGE, program)
