"""The asteval engine: an interpreter for a part of Python, with a whitelist of names."""

from weakincentives.contrib.evaluation.engine import EngineLanguage
from weakincentives.contrib.evaluation.monty import find_directories
from weakincentives.contrib.evaluation.worker import WorkerEngine, WorkerProgram

ASTEVAL_LANGUAGE = EngineLanguage(
    summary="asteval, an interpreter for the common part of Python",
    modules=(
        *("abc", "ast", "base64", "bisect", "calendar", "collections", "configparser"),
        *("contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum"),
        *("fnmatch", "fractions", "functools", "glob", "hashlib", "heapq", "html", "io"),
        *("itertools", "json", "math", "operator", "os", "pathlib", "pprint", "random", "re"),
        *("statistics", "string", "sys", "textwrap", "time", "typing", "unicodedata"),
        *("urllib.parse", "xml.etree.ElementTree"),
    ),
    missing=("match statements", "async functions", "exec and eval"),
)


def create_asteval_engine() -> WorkerEngine:
    """Return an engine that runs code in asteval."""
    program = WorkerProgram(
        "weakincentives.contrib.evaluation.worker.asteval.program",
        find_directories("asteval"),
        is_reusable=False,
    )
    return WorkerEngine("asteval", ASTEVAL_LANGUAGE, program)
