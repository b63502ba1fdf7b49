"""Scopes, functions and classes of code in asteval: lexical, as in Python.

asteval itself has one flat table of names, which every call copies. Used in the worker process.
"""

import ast
import enum
import types
from collections.abc import Mapping, Sequence
from typing import Any

from weakincentives.contrib.evaluation.worker.asteval import access

MAX_DEPTH = 400
"""Calls of functions inside each other."""


class Scope(dict[str, Any]):
    """The names of a module, function, class or comprehension, and those around it.

    Args:
        parent: The scope around it; None for the module.
        is_visible: Whether functions inside see its names; those of a class are not seen.
    """

    __slots__ = ("declared", "is_visible", "parent")

    def __init__(self, parent: "Scope | None" = None, *, is_visible: bool = True) -> None:
        """Start without names."""
        super().__init__()
        self.parent: Scope | None = parent
        self.is_visible: bool = is_visible
        self.declared: dict[str, Scope] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name in this scope or those around it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope and (scope is self or scope.is_visible):
                return scope[name]
            scope = scope.parent
        return default

    def bind(self, name: str, value: Any) -> None:
        """Bind a name, where `global` and `nonlocal` say."""
        target = self.declared.get(name)
        (self if target is None else target)[name] = value

    @property
    def module(self) -> "Scope":
        """The outermost scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def find_enclosing(self, name: str) -> "Scope | None":
        """Return the scope of a function around this one that binds a name."""
        scope = self.parent
        while scope is not None and scope.parent is not None:
            if scope.is_visible and name in scope:
                return scope
            scope = scope.parent
        return None


class ReturnSignal(BaseException):
    """Ends a function; code cannot catch it."""

    def __init__(self, value: Any) -> None:
        """Return this value."""
        super().__init__()
        self.value: Any = value


class BreakSignal(BaseException):
    """Ends a loop."""


class ContinueSignal(BaseException):
    """Ends a round of a loop."""


class Function(access.UserFunction):
    """A function, method or lambda that code defines."""

    def __init__(self, interpreter: Any, node: ast.FunctionDef | ast.Lambda, name: str) -> None:
        """Define it in the interpreter's present scope, with its defaults evaluated."""
        self._interpreter = interpreter
        self._node = node
        self._scope: Scope = interpreter.symtable
        self._defaults: list[Any] = [interpreter.run(each) for each in node.args.defaults]
        self._keyword_defaults: dict[str, Any] = {
            argument.arg: interpreter.run(default)
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if default is not None
        }
        self._is_generator: bool = isinstance(node, ast.FunctionDef) and has_yield(node.body)
        self._owner: type | None = None
        self.__name__: str = name
        self.__doc__ = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None

    def __repr__(self) -> str:
        """Return the name, and no address."""
        return f"<function {self.__name__}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an instance."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call it."""
        scope = Scope(self._scope)
        self._bind(scope, list(arguments), options)
        if self._is_generator:
            return self._interpreter.run_generator(scope, _body(self._node))
        return self._interpreter.run_function(self, scope, _body(self._node))

    def set_owner(self, owner: type) -> None:
        """Say of which class it is a method, for `super`."""
        self._owner = owner

    def find_super(self, scope: Scope) -> Any:
        """Return what `super()` is in a call with this scope."""
        if self._owner is None or not scope:
            raise RuntimeError("super(): no arguments")
        parent: Any = super
        return parent(self._owner, next(iter(scope.values())))

    def _bind(self, scope: Scope, arguments: list[Any], options: dict[str, Any]) -> None:
        names = self._node.args
        positional = [each.arg for each in (*names.posonlyargs, *names.args)]
        if len(arguments) > len(positional):
            if names.vararg is None:
                raise TypeError(
                    f"{self.__name__}() takes {len(positional)} positional arguments but"
                    f" {len(arguments)} were given"
                )
            scope[names.vararg.arg] = tuple(arguments[len(positional) :])
        elif names.vararg is not None:
            scope[names.vararg.arg] = ()
        first_default = len(positional) - len(self._defaults)
        defaults = dict(zip(positional[first_default:], self._defaults, strict=True))
        given = dict(zip(positional, arguments, strict=False))
        self._bind_names(scope, positional, given, defaults, options)
        keywords = [each.arg for each in names.kwonlyargs]
        self._bind_names(scope, keywords, {}, self._keyword_defaults, options)
        if names.kwarg is not None:
            scope[names.kwarg.arg] = options
        elif options:
            raise TypeError(
                f"{self.__name__}() got an unexpected keyword argument {next(iter(options))!r}"
            )

    def _bind_names(
        self,
        scope: Scope,
        names: list[str],
        given: Mapping[str, Any],
        defaults: Mapping[str, Any],
        options: dict[str, Any],
    ) -> None:
        for name in names:
            if name in given and name in options:
                raise TypeError(f"{self.__name__}() got multiple values for argument {name!r}")
            if name in given:
                scope[name] = given[name]
            elif name in options:
                scope[name] = options.pop(name)
            elif name in defaults:
                scope[name] = defaults[name]
            else:
                raise TypeError(f"{self.__name__}() missing 1 required argument: {name!r}")


def _body(node: ast.FunctionDef | ast.Lambda) -> list[ast.stmt]:
    if isinstance(node, ast.FunctionDef):
        return node.body
    return [ast.copy_location(ast.Return(node.body), node.body)]


def has_yield(body: Sequence[ast.stmt]) -> bool:
    """Return whether statements contain a `yield` of their own function."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
    return False


def create_class(name: str, bases: Sequence[Any], body: Scope) -> type:
    """Return a class with what its body has bound."""
    kept = {key: value for key, value in body.items() if access.is_definable(key)}
    facts: dict[str, Any] = {"__module__": "__main__", "__doc__": name, "__qualname__": name}
    if "__annotations__" in body:
        facts["__annotations__"] = _annotations(body["__annotations__"])
    created = types.new_class(
        name, _marked(bases), {}, lambda namespace: _fill(namespace, {**facts, **kept})
    )
    for each in kept.values():
        function = _function_of(each)
        if function is not None:
            function.set_owner(created)
    return created


def _annotations(given: Any) -> dict[str, Any]:
    """Return annotations by name; dataclasses put the names into source that they execute."""
    found: dict[Any, Any] = dict(given)
    return {
        key: value
        for key, value in found.items()
        if type(key) is str and key.isidentifier() and access.is_definable(key)
    }


def restrict_enumerations() -> None:
    """Keep `Enum(name, members)` from defining what a class body cannot; for good."""
    create: Any = vars(enum.EnumType)["_create_"]

    def create_checked(cls: Any, name: Any, members: Any, **options: Any) -> Any:
        if isinstance(members, str):
            members = members.replace(",", " ").split()
        pairs: list[Any] = list(_pairs(members))
        names: list[Any] = [each if isinstance(each, str) else each[0] for each in pairs]
        if not all(type(each) is str and access.is_definable(each) for each in names):
            raise ValueError("code cannot give a member of an enumeration this name")
        return create(cls, name, pairs, **options)

    setattr(enum.EnumType, "_create_", create_checked)  # noqa: B010 # it is private


def _pairs(members: Any) -> Any:
    return members.items() if hasattr(members, "items") else members


def _marked(bases: Sequence[Any]) -> tuple[Any, ...]:
    """Return the bases with the mark of classes of the code, if they can have it."""
    are_types = all(isinstance(each, type) for each in bases)
    if not are_types or any(issubclass(each, access.UserType) for each in bases):
        return tuple(bases)
    return (access.UserType, *(each for each in bases if each is not object))


def _fill(namespace: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():  # one by one: an enumeration checks each
        namespace[key] = value  # noqa: PERF403


def _function_of(value: Any) -> Function | None:
    """Return the function in a method, a property or a class method."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    return value if isinstance(value, Function) else None


def unpack(targets: Sequence[ast.expr], values: Sequence[Any]) -> list[tuple[ast.expr, Any]]:
    """Return each target with its value; one may be starred.

    Raises:
        ValueError: There are too few values, or too many.
    """
    star = next((i for i, each in enumerate(targets) if isinstance(each, ast.Starred)), None)
    least = len(targets) - (star is not None)
    if len(values) < least:
        raise ValueError(f"not enough values to unpack (expected {least}, got {len(values)})")
    if star is None:
        if len(values) > least:
            raise ValueError(f"too many values to unpack (expected {least})")
        return list(zip(targets, values, strict=True))
    end = len(values) - (least - star)
    starred = targets[star]
    rest = starred.value if isinstance(starred, ast.Starred) else starred
    return [
        *zip(targets[:star], values[:star], strict=True),
        (rest, list(values[star:end])),
        *zip(targets[star + 1 :], values[end:], strict=True),
    ]
