"""Generator functions of code in asteval: their statements run as far as the next `yield`.

The interpreter runs a statement to its end. A statement that contains a `yield` is run here
instead, step by step, by a generator of Python. Used in the worker process.
"""

import ast
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from weakincentives.contrib.evaluation.worker.asteval.definitions import (
    BreakSignal,
    ContinueSignal,
    ReturnSignal,
    Scope,
    has_yield,
)

Steps = Generator[Any, Any, Any]


class GeneratorRun:
    """The run of one generator; the interpreter is in its scope only between two values."""

    def __init__(
        self, interpreter: Any, enter: Callable[[Scope], AbstractContextManager[None]], scope: Scope
    ) -> None:
        """Run in `scope`, which `enter` makes the interpreter's."""
        self._interpreter = interpreter
        self._enter = enter
        self._scope = scope

    def run(self, body: Sequence[ast.stmt]) -> Steps:
        """Yield the values of a function; return what it returns."""
        try:
            yield from self._run_all(body)
        except ReturnSignal as signal:
            return signal.value
        return None

    def _run_all(self, body: Sequence[ast.stmt]) -> Steps:
        for each in body:
            if has_yield([each]):
                yield from self._statement(each)
            else:
                self._evaluate(each)

    def _statement(self, node: ast.stmt) -> Steps:  # noqa: C901 # one case for each statement
        match node:
            case ast.Expr(value=value):
                yield from self._value(value)
            case ast.Assign():
                found = yield from self._value(node.value)
                for target in node.targets:
                    self._assign(target, found)
            case ast.AnnAssign(value=value) if value is not None:
                self._assign(node.target, (yield from self._value(value)))
            case ast.Return(value=value) if value is not None:
                raise ReturnSignal((yield from self._value(value)))
            case ast.If():
                branch = node.body if self._evaluate(node.test) else node.orelse
                yield from self._run_all(branch)
            case ast.For():
                yield from self._for(node)
            case ast.While():
                yield from self._while(node)
            case ast.Try():
                yield from self._try(node)
            case ast.With():
                yield from self._with(node.items, node.body)
            case _:
                self._interpreter.unimplemented(node)

    def _value(self, node: ast.expr) -> Steps:
        if isinstance(node, ast.Yield):
            return (yield self._evaluate(node.value))
        if isinstance(node, ast.YieldFrom):
            values: Steps = self._evaluate(node.value)
            return (yield from values)
        raise NotImplementedError("yield is supported as a statement, or alone after '='")

    def _for(self, node: ast.For) -> Steps:
        for value in self._evaluate(node.iter):
            self._assign(node.target, value)
            try:
                yield from self._run_all(node.body)
            except BreakSignal:
                return
            except ContinueSignal:
                continue
        yield from self._run_all(node.orelse)

    def _while(self, node: ast.While) -> Steps:
        while self._evaluate(node.test):
            try:
                yield from self._run_all(node.body)
            except BreakSignal:
                return
            except ContinueSignal:
                continue
        yield from self._run_all(node.orelse)

    def _try(self, node: ast.Try) -> Steps:
        try:
            try:
                yield from self._run_all(node.body)
            except Exception as error:  # noqa: BLE001 # the code decides what it catches
                yield from self._handle(node, error)
            else:
                yield from self._run_all(node.orelse)
        finally:
            yield from self._run_all(node.finalbody)

    def _handle(self, node: ast.Try, error: Exception) -> Steps:
        for handler in node.handlers:
            kind = Exception if handler.type is None else self._evaluate(handler.type)
            if isinstance(error, kind):
                if handler.name is not None:
                    self._scope.bind(handler.name, error)
                yield from self._run_all(handler.body)
                return
        raise error

    def _with(self, items: list[ast.withitem], body: Sequence[ast.stmt]) -> Steps:
        if not items:
            yield from self._run_all(body)
            return
        with self._evaluate(items[0].context_expr) as value:
            if items[0].optional_vars is not None:
                self._assign(items[0].optional_vars, value)
            yield from self._with(items[1:], body)

    def _evaluate(self, node: ast.AST | None) -> Any:
        with self._enter(self._scope):
            return self._interpreter.run(node)

    def _assign(self, target: ast.expr, value: Any) -> None:
        with self._enter(self._scope):
            self._interpreter.node_assign(target, value)
