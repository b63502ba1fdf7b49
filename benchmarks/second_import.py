"""A second import of the package, as if an optional module were not installed."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

PACKAGE = "weakincentives"


def import_without(module: str) -> ModuleType:
    """Import `weakincentives.filesystem` a second time, with `module` out of reach."""
    with _forgotten(PACKAGE), _forgotten(module):
        sys.modules[module] = None  # pyright: ignore[reportArgumentType] - makes its import fail
        return importlib.import_module(f"{PACKAGE}.filesystem")  # noqa: TID251 - a second copy


def uses(module: str) -> bool:
    """Whether the package has imported `module` or something of it."""
    held = (value for name in _below(PACKAGE) for value in vars(sys.modules[name]).values())
    modules = {value.__name__.partition(".")[0] for value in held if isinstance(value, ModuleType)}
    return module in modules


@contextmanager
def _forgotten(name: str) -> Iterator[None]:
    """Take a module and all below it out of the table of modules, and put them back."""
    known = {each: sys.modules.pop(each) for each in _below(name)}
    try:
        yield
    finally:
        for each in _below(name):
            del sys.modules[each]
        sys.modules.update(known)


def _below(name: str) -> list[str]:
    return [each for each in sys.modules if each == name or each.startswith(f"{name}.")]
