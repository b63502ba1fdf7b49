"""Deferred imports: what a command needs only later must not delay its help or its first line."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def load(module: str, name: str) -> Any:
    """Return what a module of this package defines under a name; it is imported now."""
    return getattr(import_module(f"weakincentives.{module}"), name)


def defer(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports another one when it is called."""

    def call(*arguments: object, **options: object) -> Any:
        return load(module, name)(*arguments, **options)

    return call
