"""Safe attribute access for asteval: by dots, `getattr`, `str.format` and everything alike.

Code can use the public attributes of values, and what its own classes define. Names that lead
from a value to the interpreter (`__class__`, `gi_frame`, ...) are refused wherever a name can be
given. Used in the worker process.
"""

import re
import string
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

_FRAME_PREFIXES = ("gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_", "im_")
_REFUSED = frozenset({"mro", "with_traceback"})
_TUPLE_METHODS = frozenset({"_asdict", "_replace", "_fields", "_make"})
_DEFINABLE = frozenset(
    f"__{name}__"
    for name in (
        *("init", "repr", "str", "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "len"),
        *("iter", "next", "getitem", "setitem", "delitem", "contains", "call", "enter", "exit"),
        *(
            "add",
            "radd",
            "iadd",
            "sub",
            "rsub",
            "isub",
            "mul",
            "rmul",
            "imul",
            "truediv",
            "floordiv",
        ),
        *("rtruediv", "mod", "pow", "neg", "pos", "abs", "int", "float", "round", "format", "and"),
        *("or", "xor", "invert", "matmul", "post_init", "reversed", "index", "missing", "divmod"),
    )
)
"""Special methods that a class of the code can define, and call by name."""


_INTERNAL = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.GeneratorType),
    *(types.CodeType, types.FrameType, types.TracebackType, types.SimpleNamespace),
)


_ERROR_LINKS = frozenset({"__cause__", "__context__", "__notes__"})


class UserType:
    """Marks the classes that code defines."""


class UserFunction:
    """Marks the functions that code defines; it can give them attributes."""

    __name__: str


def is_definable(name: str) -> bool:
    """Return whether a class body can bind this name."""
    return name in _DEFINABLE or not (name.startswith("__") and name.endswith("__"))


def get_attribute(value: Any, name: Any, *default: Any) -> Any:
    """Return an attribute of a value, as `getattr` does.

    Raises:
        AttributeError: There is none, or code cannot use it.
    """
    name = _exact_name(name)
    if name == "__name__" and isinstance(value, type | UserFunction):
        return value.__name__
    if name in _ERROR_LINKS and isinstance(value, BaseException):
        return getattr(value, name, None)
    if name == "__class__" and is_user_object(value):
        return _exact_type(value)
    if not _is_readable(value, name):
        raise AttributeError(f"code cannot use the attribute {name!r} here")
    found = getattr(value, name, *default)
    return _safe_format_method(found, name) if name in _METHODS else found


def set_attribute(value: Any, name: Any, new: Any) -> None:
    """Set an attribute of an instance or class of the code itself.

    Raises:
        AttributeError: It is another value, or a name that code cannot bind.
    """
    setattr(value, _check_own(value, name), new)


def delete_attribute(value: Any, name: Any) -> None:
    """Delete an attribute of an instance or class of the code itself."""
    delattr(value, _check_own(value, name))


def has_attribute(value: Any, name: Any) -> bool:
    """Return whether a value has an attribute that code can use."""
    try:
        get_attribute(value, name)
    except AttributeError:
        return False
    return True


def attribute_getter(*names: str) -> Callable[[Any], Any]:
    """Return what `operator.attrgetter` returns, with safe access."""

    def get(value: Any) -> Any:
        found = [_follow(value, each) for each in names]
        return found[0] if len(found) == 1 else tuple(found)

    return get


def method_caller(name: str, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """Return what `operator.methodcaller` returns, with safe access."""
    return lambda value: get_attribute(value, name)(*arguments, **options)


def type_of(value: Any) -> Any:
    """Return the type of a value; the function `type` of the code.

    Raises:
        TypeError: It is a type that code could use to make more than values.
    """
    if isinstance(value, _INTERNAL):
        raise TypeError("type() of classes and functions is not available")
    return _exact_type(value)


def _exact_type(value: object) -> type[Any]:
    return type(value)


def is_user_object(value: Any) -> bool:
    """Return whether a value is a class or an instance of a class that the code defines."""
    return isinstance(value, UserType) or (isinstance(value, type) and issubclass(value, UserType))


def _follow(value: Any, path: str) -> Any:
    for each in path.split("."):
        value = get_attribute(value, each)
    return value


def _is_readable(value: Any, name: str) -> bool:
    if name in _REFUSED or (name.startswith(_FRAME_PREFIXES) and not is_user_object(value)):
        return False
    if name.startswith("__") and name.endswith("__"):
        return name in _DEFINABLE and (is_user_object(value) or isinstance(value, super))
    if name.startswith("_"):
        return is_user_object(value) or (isinstance(value, tuple | type) and name in _TUPLE_METHODS)
    return True


def _check_own(value: Any, given: Any) -> str:
    """Return the name of an attribute that code can change."""
    name = _exact_name(given)
    is_own = is_user_object(value) or (isinstance(value, UserFunction) and not name.startswith("_"))
    if not is_own or not is_definable(name):
        raise AttributeError(f"code cannot change the attribute {name!r} here")
    return name


def _exact_name(name: Any) -> str:
    """Return a name as `str` itself: a subclass of it can answer every check as it likes."""
    if not isinstance(name, str):
        raise TypeError("attribute name must be a string")
    return str.__str__(name)


_FIRST = re.compile(r"[^.\[]*")
_NEXT = re.compile(r"\.([^.\[]+)|\[([^\]]+)\]")


class _SafeFormatter(string.Formatter):
    """`str.format` with safe attribute access."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        first = _FIRST.match(field_name)
        name = first[0] if first else ""
        key = int(name) if name.isdigit() else name
        value = self.get_value(key, args, kwargs)
        for attribute, index in _NEXT.findall(field_name[len(name) :]):
            if attribute:
                value = get_attribute(value, attribute)
            else:
                value = value[int(index) if index.isdigit() else index]
        return value, key


_formatter = _SafeFormatter()


def _format(text: str, *arguments: Any, **options: Any) -> str:
    return _formatter.vformat(text, arguments, options)


def _format_map(text: str, mapping: Mapping[str, Any]) -> str:
    return _formatter.vformat(text, (), mapping)


_METHODS: Mapping[str, Callable[..., str]] = {"format": _format, "format_map": _format_map}


def _safe_format_method(found: Any, name: str) -> Any:
    """Return a safe method instead of `str.format` or `str.format_map`, however it was found."""
    if found is vars(str)[name]:
        return _METHODS[name]
    if isinstance(found, types.BuiltinMethodType) and isinstance(found.__self__, str):
        return partial(_METHODS[name], found.__self__)
    return found
