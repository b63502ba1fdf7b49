"""Selectors: reading a session with functions."""

from collections.abc import Callable
from typing import TypeVar

from weakincentives.runtime.session.session import Session

T = TypeVar("T")


def select_all(session: Session, kind: type[T]) -> tuple[T, ...]:
    """Return all items of a type."""
    return session[kind].all()


def select_latest(session: Session, kind: type[T]) -> T | None:
    """Return the last item of a type; None where there is none."""
    return session[kind].latest()


def select_where(session: Session, kind: type[T], predicate: Callable[[T], bool]) -> tuple[T, ...]:
    """Return the items of a type for which `predicate` is true."""
    return session[kind].where(predicate)
