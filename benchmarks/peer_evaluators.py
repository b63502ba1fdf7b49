# pyright: basic, reportMissingImports=false
"""Other ways to run a little Python for a model: interpreters, and a process of one's own."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Absent
from benchmarks.peers import NOT_INSTALLED
from benchmarks.stage import Stage

PROCESS = "python -I -c"
HERE = "exec in this process"


def run_process(code: str) -> str:
    """Run code whose last line is an expression in a new interpreter, unconfined."""
    *lines, last = code.strip().split("\n")
    program = "\n".join([*lines, f"print(repr({last}))"])
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    return done.stdout.strip()


def run_here(code: str) -> str:
    """Run code in this process, which nothing protects."""
    *lines, last = code.strip().split("\n")
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    return repr(eval(last, names))


class Interpreters:
    """The interpreters that are installed, each as a function from code to the `repr`."""

    def __init__(self, stage: Stage) -> None:
        """Find them; close them with the stage."""
        self._stage = stage
        self.absent: list[Absent] = []

    def warm(self) -> dict[str, Callable[[str], str]]:
        """Return those that are ready to run, by name."""
        makers = {
            "bare monty pool": self._make_monty,
            "asteval in this process": _make_asteval,
            "smolagents LocalPythonExecutor": _make_smolagents,
        }
        found: dict[str, Callable[[str], str]] = {}
        for name, make in makers.items():
            try:
                found[name] = make()
            except ImportError:
                self.absent.append(Absent(name, NOT_INSTALLED))
        return found

    def _make_monty(self) -> Callable[[str], str]:
        pool = self._stage.exits.enter_context(_load("pydantic_monty").Monty())

        def run(code: str) -> str:
            with pool.checkout() as session:
                return repr(session.feed_run(code))

        return run


def run_new_monty(code: str) -> str:
    """Run code in a pool that is opened for it."""
    pydantic_monty = _load("pydantic_monty")
    with pydantic_monty.Monty() as pool, pool.checkout() as session:
        return repr(session.feed_run(code))


def _make_asteval() -> Callable[[str], str]:
    asteval = _load("asteval")
    return lambda code: repr(asteval.Interpreter(use_numpy=False)(code))


def _make_smolagents() -> Callable[[str], str]:
    module = _load("smolagents.local_python_executor")

    def run(code: str) -> str:
        executor = module.LocalPythonExecutor([])
        executor.send_tools({})
        return repr(executor(code).output)

    return run


def _load(name: str) -> Any:
    return importlib.import_module(name)  # noqa: TID251 - a peer may be absent
