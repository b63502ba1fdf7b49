"""asteval in a worker: the stock interpreter, with all of its switches on.

It interprets a part of Python, node by node, and protects nothing: that is what the process is
for, as it is for CPython.
"""

import ast
import sys
from collections.abc import Callable, Mapping
from typing import Any

import asteval  # pyright: ignore[reportMissingTypeStubs] # it has none

from weakincentives.contrib.evaluation import driver
from weakincentives.contrib.evaluation.worker import python
from weakincentives.contrib.evaluation.worker.server import Host

MODULES = python.MODULES
start: Callable[[Mapping[str, Any]], None] = python.start

_SWITCHES = {"import": True, "importfrom": True}  # all others are on


def evaluate(_: None, request: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """Run the code in a new interpreter."""
    return python.evaluate(None, request, host, _execute)


def _execute(code: str, names: dict[str, Any]) -> object:
    """Run code in asteval; its variables become those of the module."""
    ast.parse(code, driver.FILE)  # asteval has other words for errors of syntax
    create: Any = getattr(asteval, "Interpreter")  # noqa: B009 # it has no types
    interpreter = create(
        use_numpy=False,
        user_symbols={"open": open, **names},
        config=_SWITCHES,
        writer=sys.stdout,
        err_writer=sys.stderr,
    )
    given = {**interpreter.symtable}
    try:
        value = interpreter.eval(code, show_errors=False, raise_errors=True)
    except Exception:
        if not interpreter.error:
            raise
        held = interpreter.error[0]
        raise driver.CodeError(held.exc.__name__, str(held.msg), held.lineno) from None
    changed = interpreter.symtable.items()
    names.update({name: each for name, each in changed if given.get(name) is not each})
    return value
