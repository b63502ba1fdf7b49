"""The engines by name, and the choice of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from weakincentives.contrib.evaluation.asteval import create_asteval_engine
from weakincentives.contrib.evaluation.engine import Engine, EngineUnavailableError
from weakincentives.contrib.evaluation.monty import create_monty_engine
from weakincentives.contrib.evaluation.python import PythonEngine
from weakincentives.sandbox import Sandbox


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """How an engine is made, and what it needs.

    Args:
        create: Makes the engine; the sandbox is None unless `needs_sandbox`.
        package: The package that it needs; None if it needs none.
        extra: The extra that installs this package.
        needs_sandbox: Whether the code runs in a sandbox that the caller passes.
    """

    create: Callable[[Sandbox | None], Engine]
    package: str | None = None
    extra: str | None = None
    needs_sandbox: bool = False


def _create_python(sandbox: Sandbox | None) -> Engine:
    assert sandbox is not None  # `find_problem` has checked it
    return PythonEngine(sandbox)


ENGINES: Mapping[str, EngineEntry] = {
    "monty": EngineEntry(lambda _: create_monty_engine(), "pydantic_monty", "monty"),
    "asteval": EngineEntry(lambda _: create_asteval_engine(), "asteval", "asteval"),
    "python": EngineEntry(_create_python, needs_sandbox=True),
}
"""Engines by name, in the order in which `choose_engine` tries them."""


def create_engine(name: str, *, sandbox: Sandbox | None = None) -> Engine:
    """Return an engine; close it after use.

    Args:
        name: One of `ENGINES`.
        sandbox: Where the code of the engine "python" runs; it must work on the filesystem
            of the calls.

    Raises:
        EngineUnavailableError: There is no such engine, its package is not installed, or it needs
            a sandbox.
    """
    problem = find_problem(name, sandbox=sandbox)
    if problem is not None:
        raise EngineUnavailableError(problem)
    return ENGINES[name].create(sandbox)


def choose_engine(*, sandbox: Sandbox | None = None) -> Engine:
    """Return the first engine of `ENGINES` that is available; close it after use.

    Raises:
        EngineUnavailableError: None is.
    """
    for name in ENGINES:
        if find_problem(name, sandbox=sandbox) is None:
            return create_engine(name, sandbox=sandbox)
    raise EngineUnavailableError(
        "evaluate_python needs an engine: pip install 'weakincentives[monty]'"
    )


def find_problem(name: str, *, sandbox: Sandbox | None = None) -> str | None:
    """Return why an engine is not available, and what to do; None if it is."""
    entry = ENGINES.get(name)
    if entry is None:
        return f"No such engine: {name!r}; use {', '.join(ENGINES)}"
    if entry.package is not None and find_spec(entry.package) is None:
        return f"The engine {name!r} needs an extra: pip install 'weakincentives[{entry.extra}]'"
    if entry.needs_sandbox and sandbox is None:
        return (
            f"The engine {name!r} needs a sandbox: PythonEngine(create_sandbox('auto', directory))"
        )
    return None
