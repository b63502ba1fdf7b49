"""Monty in a worker: code runs in its interpreter, in a second process that this one starts.

Every evaluation is a session of its own, which begins with no variables, so a worker serves
many. The second process inherits the confinement of this one.
"""

import ast
import difflib
import html
import statistics
import string
import textwrap
import time
from collections.abc import Mapping
from typing import Any

from pydantic_monty import (
    ExternalModule,
    Monty,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    ResourceLimits,
)

from weakincentives.contrib.evaluation.text import clip
from weakincentives.contrib.evaluation.worker.monty.files import WORKING_DIRECTORY, WorkspaceOS
from weakincentives.contrib.evaluation.worker.monty.rewrite import rewrite
from weakincentives.contrib.evaluation.worker.session import Host, describe_error
from weakincentives.contrib.evaluation.worker.source import (
    VALUE_NAME,
    assign_last_expression,
    bound_names,
)

IS_REUSABLE = True
HAS_THREADS = True

_MAX_RECURSION = 500
_GRACE = 0.2  # seconds after which the interpreter is killed if it does not stop by itself


def _diff(a: list[str], b: list[str], *names: Any, **options: Any) -> list[str]:
    return list(difflib.unified_diff(a, b, *names, **options))


_MODULES = {
    "statistics": ExternalModule(
        {name: getattr(statistics, name) for name in statistics.__all__ if name.islower()}
    ),
    "string": ExternalModule(
        {name: value for name, value in vars(string).items() if isinstance(value, str)}
        | {"capwords": string.capwords}
    ),
    "textwrap": ExternalModule(
        {name: getattr(textwrap, name) for name in textwrap.__all__ if name.islower()}
    ),
    "difflib": ExternalModule(
        {"unified_diff": _diff, "get_close_matches": difflib.get_close_matches}
    ),
    "html": ExternalModule({"escape": html.escape, "unescape": html.unescape}),
}


def start(options: Mapping[str, Any]) -> Monty:
    """Start the process of the interpreter."""
    pool = Monty(
        binary_path=options["binary"],
        min_processes=1,
        max_processes=1,
        feed_duration_limit_grace=_GRACE,
    )
    pool.__enter__()
    with pool.checkout() as session:
        session.feed_run("1")
    return pool


def evaluate(pool: Monty, request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Run the code in a new session."""
    try:
        tree = ast.parse(request["code"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"error": describe_error(error, getattr(error, "lineno", None))}
    prelude, code = rewrite(request["code"], tree)
    started = time.monotonic()
    try:
        with pool.checkout(
            limits=_limits(request), external_modules=_MODULES, assert_message_annotations=False
        ) as session:
            if prelude:
                session.feed_run(prelude)
            return _run(session, code, tree, request, host)
    except MontyCrashedError:
        line = None
        is_late = time.monotonic() - started >= request["seconds"]
        kind = "TimeoutError" if is_late else "MemoryError"
        return {"error": {"type": kind, "message": "", "line": line}, "is_spoiled": True}
    except MontyError as error:
        failure = error.exception()
        is_late = time.monotonic() - started >= request["seconds"]
        spoiled = is_late or isinstance(failure, MemoryError)
        return {"error": describe_error(failure, _line(error)), "is_spoiled": spoiled}


def _run(
    session: MontySession, code: str, tree: ast.Module, request: Mapping[str, Any], host: Host
) -> dict[str, Any]:
    files = WorkspaceOS(host, request["root"])
    session.feed_run(
        assign_last_expression(code, tree if code == request["code"] else ast.parse(code)),
        inputs=request["globals"],
        external_lookup={"read_text": files.read_text, "write_text": files.write_text},
        print_callback=host.print,
        cwd=str(WORKING_DIRECTORY),
        os=files,
    )
    names = [*request["globals"], *bound_names(tree)]
    collected: list[Any] = session.feed_run(_collector(names, tree, request))
    text, length, variables = collected
    if text is not None:
        text = clip(text, request["max_output"], dropped=length - len(text))
    return {"value_repr": text, "globals": dict(variables)}


def _collector(names: list[str], tree: ast.Module, request: Mapping[str, Any]) -> str:
    """Return code that renders the value and the variables, bounded, inside the interpreter."""
    limit = request["max_output"]
    lines = ["import json", "__found__ = []", "__text__ = None", "__length__ = 0"]
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        lines += [
            f"if {VALUE_NAME} is not None:",
            f"    __text__ = repr({VALUE_NAME})",
            "    __length__ = len(__text__)",
            f"    __text__ = __text__[:{limit}]",
        ]
    for name in list(dict.fromkeys(names))[: request["max_globals"]]:
        lines += [
            "try:",
            f"    __json__ = json.dumps({name})",
            f"    if len(__json__) <= {request['max_global_length']}:",
            f"        __found__.append(({name!r}, __json__))",
            "except Exception:",
            "    pass",
        ]
    return "\n".join([*lines, "[__text__, __length__, __found__]"])


def _limits(request: Mapping[str, Any]) -> ResourceLimits:
    return {
        "max_feed_duration_secs": request["seconds"],
        "max_memory": request["max_memory"],
        "max_recursion_depth": _MAX_RECURSION,
        "max_suspensions": request["max_calls"] + 100,
        "max_total_sleep_secs": request["seconds"],
    }


def _line(error: MontyError) -> int | None:
    """Return the innermost line of the code itself, not of our library."""
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return None
    frames = error.traceback()
    own = [each.line for each in frames if each.filename == frames[0].filename]
    return own[-1] if own else None
