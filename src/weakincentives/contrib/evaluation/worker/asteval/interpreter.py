"""asteval, with the parts of Python that models use all the time.

asteval evaluates the expressions. What it lacks or does differently from Python is here:
statements with real exceptions, lexical scopes, classes, decorators, unpacking, generator
expressions, imports from a whitelist, and safe access to attributes. Used in the worker process.
"""

import ast
import operator
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import asteval  # pyright: ignore[reportMissingTypeStubs] # it has none

from weakincentives.contrib.evaluation.worker.asteval import access
from weakincentives.contrib.evaluation.worker.asteval.definitions import (
    MAX_DEPTH,
    BreakSignal,
    ContinueSignal,
    Function,
    ReturnSignal,
    Scope,
    create_class,
    unpack,
)
from weakincentives.contrib.evaluation.worker.asteval.generators import GeneratorRun, Steps
from weakincentives.contrib.evaluation.worker.asteval.symbols import Namespace


def _untyped(value: Any) -> Any:
    return value


_MISSING = object()
_IN_PLACE: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: _untyped(operator).iadd,
    ast.Sub: _untyped(operator).isub,
    ast.BitOr: _untyped(operator).ior,
    ast.BitAnd: _untyped(operator).iand,
    ast.BitXor: _untyped(operator).ixor,
}
_ADDED = (
    *("annassign", "classdef", "generatorexp", "global", "import", "importfrom"),
    *("namedexpr", "nonlocal"),
)
_CONVERSIONS: Mapping[int, Callable[[Any], str]] = {115: str, 114: repr, 97: ascii}


class Interpreter(Protocol):
    """Runs one module; `line` is where it is, `failed_line` where it raised an error."""

    symtable: Scope
    line: int | None
    failed_line: int | None

    def run_module(self, tree: ast.Module) -> Any:
        """Run a module; return the value of its last expression."""
        ...


def create_interpreter(symbols: Mapping[str, Any], modules: Mapping[str, Namespace]) -> Interpreter:
    """Return an interpreter that knows these symbols, and the modules that can be imported."""
    return _WorkspaceInterpreter(symbols, modules)


class _WorkspaceInterpreter(_untyped(asteval).Interpreter):
    symtable: Scope
    node_handlers: dict[str, Callable[[Any], Any]]

    def __init__(self, symbols: Mapping[str, Any], modules: Mapping[str, Namespace]) -> None:
        """Know these symbols, and the modules that can be imported."""
        scope = Scope()
        scope.update(symbols)
        _untyped(super()).__init__(symtable=scope, use_numpy=False)
        scope["print"] = symbols["print"]
        for name in _ADDED:
            self.node_handlers[name] = getattr(self, f"on_{name}", self.unimplemented)
        self._modules = modules
        self._depth = 0
        self._calls: list[tuple[Function, Scope]] = []
        self._handled: list[BaseException] = []
        self._failed: BaseException | None = None
        self.failed_line: int | None = None
        self.line: int | None = None

    # --- running ---

    def run(self, node: Any, *_: Any, **__: Any) -> Any:
        """Evaluate a node; remember where an exception comes from."""
        if node is None:
            return None
        name = type(node).__name__.lower()
        handler = self.node_handlers.get(name)
        self.line = getattr(node, "lineno", self.line)
        try:
            return (handler or self.unimplemented)(node)
        except Exception as error:
            if self._failed is not error:
                self._failed, self.failed_line = error, getattr(node, "lineno", self.line)
            raise

    def run_module(self, tree: ast.Module) -> Any:
        """Run a module; return the value of its last expression."""
        *body, last = tree.body
        self._run_all(body)
        value = self.run(last)
        return value if isinstance(last, ast.Expr) else None

    def run_function(self, function: Function, scope: Scope, body: list[ast.stmt]) -> Any:
        """Run the body of a function in its scope."""
        if self._depth >= MAX_DEPTH:
            raise RecursionError(f"functions are nested more than {MAX_DEPTH} calls deep")
        outer, self.symtable = self.symtable, scope
        self._depth += 1
        self._calls.append((function, scope))
        try:
            self._run_all(body)
        except ReturnSignal as signal:
            return signal.value
        finally:
            self.symtable = outer
            self._depth -= 1
            self._calls.pop()
        return None

    def unimplemented(self, node: ast.AST) -> NoReturn:
        """Refuse what this language lacks."""
        raise NotImplementedError(f"{type(node).__name__} is not supported here")

    def raise_exception(self, node: Any, exc: Any = None, msg: str = "", **_: Any) -> NoReturn:
        """Raise an exception of asteval as itself."""
        del node
        raise (exc or RuntimeError)(msg)

    def _run_all(self, body: Iterable[ast.stmt]) -> None:
        for each in body:
            self.run(each)

    # --- statements ---

    def on_if(self, node: ast.If) -> None:
        """Run one of the branches."""
        self._run_all(node.body if self.run(node.test) else node.orelse)

    def on_while(self, node: ast.While) -> None:
        """Run a loop."""
        while self.run(node.test):
            try:
                self._run_all(node.body)
            except BreakSignal:
                return
            except ContinueSignal:
                continue
        self._run_all(node.orelse)

    def on_for(self, node: ast.For) -> None:
        """Run a loop over values."""
        for value in self.run(node.iter):
            self.node_assign(node.target, value)
            try:
                self._run_all(node.body)
            except BreakSignal:
                return
            except ContinueSignal:
                continue
        self._run_all(node.orelse)

    def on_break(self, _: ast.Break) -> NoReturn:
        """End the loop."""
        raise BreakSignal

    def on_continue(self, _: ast.Continue) -> NoReturn:
        """End this round of the loop."""
        raise ContinueSignal

    def on_return(self, node: ast.Return) -> NoReturn:
        """End the function."""
        raise ReturnSignal(self.run(node.value))

    def on_assert(self, node: ast.Assert) -> None:
        """Raise unless the condition holds."""
        if not self.run(node.test):
            raise AssertionError(*([] if node.msg is None else [self.run(node.msg)]))

    def on_raise(self, node: ast.Raise) -> NoReturn:
        """Raise an exception, or the one that is being handled."""
        if node.exc is None:
            if not self._handled:
                raise RuntimeError("No active exception to reraise")
            raise self._handled[-1]
        error = self.run(node.exc)
        if isinstance(error, type) and issubclass(error, Exception):
            error = error()
        if not isinstance(error, Exception):
            raise TypeError("exceptions must derive from Exception")
        if node.cause is not None:
            raise error from self.run(node.cause)
        raise error

    def on_try(self, node: ast.Try) -> None:
        """Run a block with its handlers."""
        try:
            try:
                self._run_all(node.body)
            except Exception as error:  # noqa: BLE001 # the code decides what it catches
                self._handle(node, error)
            else:
                self._run_all(node.orelse)
        finally:
            self._run_all(node.finalbody)

    def _handle(self, node: ast.Try, error: Exception) -> None:
        for handler in node.handlers:
            kind = Exception if handler.type is None else self.run(handler.type)
            if isinstance(error, kind):
                self._handled.append(error)
                if handler.name is not None:
                    self.symtable.bind(handler.name, error)
                try:
                    self._run_all(handler.body)
                finally:
                    self._handled.pop()
                    if handler.name is not None:
                        self.symtable.pop(handler.name, None)
                return
        raise error

    def on_with(self, node: ast.With) -> None:
        """Run a block inside context managers."""
        self._run_with(node.items, node.body)

    def _run_with(self, items: list[ast.withitem], body: list[ast.stmt]) -> None:
        if not items:
            self._run_all(body)
            return
        manager = self.run(items[0].context_expr)
        with manager as value:
            if items[0].optional_vars is not None:
                self.node_assign(items[0].optional_vars, value)
            self._run_with(items[1:], body)

    def on_delete(self, node: ast.Delete) -> None:
        """Delete names, items and attributes."""
        for target in node.targets:
            match target:
                case ast.Name(id=name):
                    if name not in self.symtable:
                        raise NameError(f"name {name!r} is not defined")
                    del self.symtable[name]
                case ast.Subscript():
                    del self.run(target.value)[self.run(target.slice)]
                case ast.Attribute():
                    access.delete_attribute(self.run(target.value), target.attr)
                case _:
                    self.unimplemented(target)

    def on_global(self, node: ast.Global) -> None:
        """Let assignments of names bind those of the module."""
        module = self.symtable.module
        self.symtable.declared.update(dict.fromkeys(node.names, module))

    def on_nonlocal(self, node: ast.Nonlocal) -> None:
        """Let assignments of names bind those of the function around."""
        for name in node.names:
            scope = self.symtable.find_enclosing(name)
            if scope is None:
                raise SyntaxError(f"no binding for nonlocal {name!r} found")
            self.symtable.declared[name] = scope

    def on_import(self, node: ast.Import) -> None:
        """Bind modules of the whitelist."""
        for each in node.names:
            found = self._find_module(each.name)
            if each.asname is None and "." in each.name:
                first = each.name.partition(".")[0]
                self.symtable.bind(first, self._find_module(first))
            else:
                self.symtable.bind(each.asname or each.name, found)

    def on_importfrom(self, node: ast.ImportFrom) -> None:
        """Bind names of a module of the whitelist."""
        if node.module == "__future__":
            return
        found = self._find_module(node.module or "").__dict__
        for each in node.names:
            if each.name == "*":
                for name, value in found.items():
                    self.symtable.bind(name, value)
            elif f"{node.module}.{each.name}" in self._modules:
                found_module = self._modules[f"{node.module}.{each.name}"]
                self.symtable.bind(each.asname or each.name, found_module)
            elif each.name in found:
                self.symtable.bind(each.asname or each.name, found[each.name])
            else:
                raise ImportError(f"cannot import name {each.name!r} from {node.module!r}")

    def _find_module(self, name: str) -> Namespace:
        if name in self._modules:
            return self._modules[name]
        below = [each for each in self._modules if each.startswith(f"{name}.")]
        if not below:
            raise ModuleNotFoundError(f"No module named {name!r}")
        first = {each.removeprefix(f"{name}.").partition(".")[0] for each in below}
        return Namespace(**{each: self._find_module(f"{name}.{each}") for each in first})

    # --- assignment ---

    def on_annassign(self, node: ast.AnnAssign) -> None:
        """Assign with an annotation; in a class, keep the annotation."""
        if not self.symtable.is_visible and isinstance(node.target, ast.Name):
            kinds = self.symtable.setdefault("__annotations__", {})
            kinds[node.target.id] = self._annotation(node.annotation)
        if node.value is not None:
            self.node_assign(node.target, self.run(node.value))

    def _annotation(self, node: ast.expr) -> Any:
        try:
            return self.run(node)
        except Exception:  # noqa: BLE001 # an annotation may name what does not exist here
            return object

    def on_augassign(self, node: ast.AugAssign) -> None:
        """Assign in place where Python does."""
        left, right = self.run(node.target), self.run(node.value)
        in_place = None if isinstance(left, str | int | float) else _IN_PLACE.get(type(node.op))
        combine = in_place or _untyped(asteval).astutils.op2func(node.op)
        self.node_assign(node.target, combine(left, right))

    def on_namedexpr(self, node: ast.NamedExpr) -> Any:
        """Assign inside an expression."""
        value = self.run(node.value)
        self.node_assign(node.target, value)
        return value

    def node_assign(self, node: ast.expr, val: Any) -> None:
        """Assign a value to a target."""
        match node:
            case ast.Name(id=name):
                if name.startswith("__") and name.endswith("__") and self.symtable.is_visible:
                    raise NameError(f"code cannot bind the name {name!r}")
                self.symtable.bind(name, val)
            case ast.Attribute():
                access.set_attribute(self.run(node.value), node.attr, val)
            case ast.Subscript():
                self.run(node.value)[self.run(node.slice)] = val
            case ast.Tuple() | ast.List():
                for target, value in unpack(node.elts, list(val)):
                    self.node_assign(target, value)
            case _:
                self.unimplemented(node)

    # --- expressions ---

    def on_name(self, node: ast.Name) -> Any:
        """Return the value of a name."""
        value = self.symtable.get(node.id, _MISSING)
        if value is _MISSING:
            raise NameError(f"name {node.id!r} is not defined")
        return value

    def on_attribute(self, node: ast.Attribute) -> Any:
        """Return an attribute that code can use."""
        return access.get_attribute(self.run(node.value), node.attr)

    def on_call(self, node: ast.Call) -> Any:
        """Call a function; its exceptions are those of the code."""
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super()
        function = self.run(node.func)
        arguments = self._elements(node.args)
        options: dict[str, Any] = {}
        for each in node.keywords:
            if each.arg is None:
                options.update(self.run(each.value))
            else:
                options[each.arg] = self.run(each.value)
        self.line = node.lineno
        return function(*arguments, **options)

    def _super(self) -> Any:
        if not self._calls:
            raise RuntimeError("super(): no arguments")
        function, scope = self._calls[-1]
        return function.find_super(scope)

    def _elements(self, nodes: Iterable[ast.expr]) -> list[Any]:
        values: list[Any] = []
        for each in nodes:
            if isinstance(each, ast.Starred):
                values.extend(self.run(each.value))
            else:
                values.append(self.run(each))
        return values

    def on_list(self, node: ast.List) -> list[Any]:
        """Return a list."""
        return self._elements(node.elts)

    def on_tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        """Return a tuple."""
        return tuple(self._elements(node.elts))

    def on_set(self, node: ast.Set) -> set[Any]:
        """Return a set."""
        return set(self._elements(node.elts))

    def on_dict(self, node: ast.Dict) -> dict[Any, Any]:
        """Return a dictionary."""
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found.update(self.run(value))
            else:
                found[self.run(key)] = self.run(value)
        return found

    def on_formattedvalue(self, node: ast.FormattedValue) -> str:
        """Format a value of an f-string."""
        value = self.run(node.value)
        convert = _CONVERSIONS.get(node.conversion)
        spec = "" if node.format_spec is None else self.run(node.format_spec)
        return format(value if convert is None else convert(value), spec)

    def on_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> list[Any]:
        """Return the values of a comprehension, which has a scope of its own."""
        return self._comprehend(node.generators, lambda: self.run(node.elt))

    def on_setcomp(self, node: ast.SetComp) -> set[Any]:
        """Return the values as a set."""
        return set(self.on_listcomp(node))

    def on_generatorexp(self, node: ast.GeneratorExp) -> Any:
        """Return an iterator, which computes each value when it is needed."""
        return self._generate(Scope(self.symtable), node.generators, node.elt)

    def _generate(
        self, scope: Scope, generators: list[ast.comprehension], element: ast.expr
    ) -> Generator[Any, None, None]:
        first, *rest = generators
        with self._entered(scope):
            values = iter(self.run(first.iter))
        for value in values:
            with self._entered(scope):
                self.node_assign(first.target, value)
                is_wanted = all(map(self.run, first.ifs))
                found = self.run(element) if is_wanted and not rest else None
            if is_wanted and rest:
                yield from self._generate(scope, rest, element)
            elif is_wanted:
                yield found

    def on_dictcomp(self, node: ast.DictComp) -> dict[Any, Any]:
        """Return a dictionary."""
        pairs = self._comprehend(
            node.generators, lambda: (self.run(node.key), self.run(node.value))
        )
        return dict(pairs)

    def _comprehend(
        self, generators: list[ast.comprehension], element: Callable[[], Any]
    ) -> list[Any]:
        outer, found = self.symtable, list[Any]()
        self.symtable = Scope(outer)
        try:
            self._loop(generators, lambda: found.append(element()))
        finally:
            self.symtable = outer
        return found

    def _loop(self, generators: list[ast.comprehension], add: Callable[[], None]) -> None:
        first, *rest = generators
        for value in self.run(first.iter):
            self.node_assign(first.target, value)
            if all(self.run(each) for each in first.ifs):
                if rest:
                    self._loop(rest, add)
                else:
                    add()

    # --- functions and classes ---

    def on_functiondef(self, node: ast.FunctionDef) -> None:  # type: ignore[override]
        """Define a function."""
        self.symtable.bind(node.name, self._decorate(node, Function(self, node, node.name)))

    def on_lambda(self, node: ast.Lambda) -> Function:
        """Return a function."""
        return Function(self, node, "<lambda>")

    def run_generator(self, scope: Scope, body: list[ast.stmt]) -> Steps:
        """Return the generator that runs a function step by step."""
        return GeneratorRun(self, self._entered, scope).run(body)

    @contextmanager
    def _entered(self, scope: Scope) -> Generator[None, None, None]:
        outer, self.symtable = self.symtable, scope
        try:
            yield
        finally:
            self.symtable = outer

    def on_classdef(self, node: ast.ClassDef) -> None:
        """Define a class."""
        outer, body = self.symtable, Scope(self.symtable, is_visible=False)
        bases = self._elements(node.bases)
        self.symtable = body
        try:
            self._run_all(node.body)
        finally:
            self.symtable = outer
        created = create_class(node.name, bases, body)
        outer.bind(node.name, self._decorate(node, created))

    def _decorate(self, node: ast.FunctionDef | ast.ClassDef, value: Any) -> Any:
        for each in reversed(node.decorator_list):
            value = self.run(each)(value)
        return value
