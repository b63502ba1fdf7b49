"""Operators as functions: the common part of `operator`, without attributes."""

from collections.abc import Callable
from typing import Any


def itemgetter(*items: Any) -> Callable[[Any], Any]:
    """Return a function that gets one item, or a tuple of several."""
    if len(items) == 1:
        only = items[0]
        return lambda value: value[only]
    return lambda value: tuple([value[item] for item in items])


def add(a: Any, b: Any) -> Any:
    """Return a + b."""
    return a + b


def sub(a: Any, b: Any) -> Any:
    """Return a - b."""
    return a - b


def mul(a: Any, b: Any) -> Any:
    """Return a * b."""
    return a * b


def truediv(a: Any, b: Any) -> Any:
    """Return a / b."""
    return a / b


def floordiv(a: Any, b: Any) -> Any:
    """Return a // b."""
    return a // b


def mod(a: Any, b: Any) -> Any:
    """Return a % b."""
    return a % b


def pow(a: Any, b: Any) -> Any:  # noqa: A001 # the name in the standard library
    """Return a ** b."""
    return a**b


def neg(a: Any) -> Any:
    """Return -a."""
    return -a


def eq(a: Any, b: Any) -> bool:
    """Return a == b."""
    return a == b


def ne(a: Any, b: Any) -> bool:
    """Return a != b."""
    return a != b


def lt(a: Any, b: Any) -> bool:
    """Return a < b."""
    return a < b


def le(a: Any, b: Any) -> bool:
    """Return a <= b."""
    return a <= b


def gt(a: Any, b: Any) -> bool:
    """Return a > b."""
    return a > b


def ge(a: Any, b: Any) -> bool:
    """Return a >= b."""
    return a >= b


def and_(a: Any, b: Any) -> Any:
    """Return a & b."""
    return a & b


def or_(a: Any, b: Any) -> Any:
    """Return a | b."""
    return a | b


def xor(a: Any, b: Any) -> Any:
    """Return a ^ b."""
    return a ^ b


def not_(a: Any) -> bool:
    """Return not a."""
    return not a


def contains(a: Any, b: Any) -> bool:
    """Return b in a."""
    return b in a


def getitem(a: Any, b: Any) -> Any:
    """Return a[b]."""
    return a[b]
