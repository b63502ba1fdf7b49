"""asteval in a worker: code is interpreted node by node, by names from a whitelist only.

Interpreted code could leave traces in the interpreter, so a worker serves one evaluation and
exits; the fork server has imported everything, so the next one starts in milliseconds.
"""

import ast
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from weakincentives.contrib.evaluation.text import clip
from weakincentives.contrib.evaluation.worker.asteval.definitions import restrict_enumerations
from weakincentives.contrib.evaluation.worker.asteval.files import Workspace
from weakincentives.contrib.evaluation.worker.asteval.interpreter import (
    Interpreter,
    create_interpreter,
)
from weakincentives.contrib.evaluation.worker.asteval.output import Output
from weakincentives.contrib.evaluation.worker.asteval.symbols import (
    HostFunction,
    create_modules,
    create_symbols,
)
from weakincentives.contrib.evaluation.worker.confinement import limit_memory
from weakincentives.contrib.evaluation.worker.session import Host, describe_error

IS_REUSABLE = False
HAS_THREADS = False

_RECURSION_LIMIT = 12_000  # of this interpreter; that of the code is lower, see `definitions`
_STACK_BYTES = 96 * 1024 * 1024


def start(options: Mapping[str, Any]) -> None:
    """Prepare this process for deep recursion."""
    del options
    restrict_enumerations()
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
    sys.setrecursionlimit(_RECURSION_LIMIT)


def evaluate(_: None, request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Run the code in a new interpreter."""
    try:
        tree = ast.parse(request["code"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"error": describe_error(error, getattr(error, "lineno", None))}
    output = Output(host)
    files = Workspace(host)
    symbols = {**create_symbols(), **output.functions(), **files.functions()}
    modules = create_modules() | files.modules() | {"sys": output.system()}
    modules["pprint"].pprint = HostFunction("pprint", output.pprint)
    interpreter = create_interpreter(symbols, modules)
    interpreter.symtable.update(request["globals"])
    _limit(request, interpreter, host)
    try:
        value = interpreter.run_module(tree)
        files.flush()
        return _render(value, interpreter, set(symbols), request)
    except Exception as error:  # noqa: BLE001 # whatever the code raises is its own
        return {"error": describe_error(error, interpreter.failed_line)}
    except BaseException as error:  # noqa: BLE001 # such as `break` outside a loop
        return {"error": describe_error(SyntaxError(type(error).__name__), interpreter.line)}


def _limit(request: Mapping[str, Any], interpreter: Interpreter, host: Host) -> None:
    """Limit memory and time; what does not react to the alarm is killed from outside."""

    def stop(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        error = {"type": "TimeoutError", "message": "", "line": interpreter.line}
        host.finish({"error": error, "is_spoiled": True})
        os._exit(0)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = min(math.ceil(request["seconds"]) + 1, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (min(seconds, soft), seconds))
    limit_memory(request["max_memory"])


def _render(
    value: Any, interpreter: Interpreter, known: set[str], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value and the variables, bounded."""
    limit = request["max_output"]
    text = None if value is None else repr(value)
    clean = None if text is None else text[:limit].encode("utf-8", "backslashreplace").decode()
    found: dict[str, str] = {}
    for name, each in interpreter.symtable.items():
        if len(found) >= request["max_globals"]:
            break
        if name not in known and not name.startswith("_"):
            encoded = _encode(each)
            if encoded is not None and len(encoded) <= request["max_global_length"]:
                found[name] = encoded
    return {
        "value_repr": None
        if clean is None or text is None
        else clip(clean, limit, dropped=max(len(text) - limit, 0)),
        "globals": found,
    }


def _encode(value: Any) -> str | None:
    """Return a variable as JSON; None if it has no such form."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError, MemoryError):
        return None
    return text
