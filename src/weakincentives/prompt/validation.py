"""Arguments of tools, sections and prompts: what they must be, told in one sentence."""

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import TypeVar, cast, get_origin

from weakincentives.errors import PromptError

T = TypeVar("T")
_SCALARS = (str, bytes, bytearray, Mapping)


def check_argument(
    owner: str, name: str, value: object, kind: type | tuple[type, ...], *, or_none: bool = False
) -> None:
    """Return if an argument is an instance of `kind`, or None where that is allowed.

    Raises:
        PromptError: It is not, or no text that can be sent; the message says of which `owner`.
    """
    if isinstance(value, str) and isinstance(value, kind):
        _check_text(owner, name, value)
        return
    if isinstance(value, kind) or (or_none and value is None):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join([each.__name__ for each in kinds] + ["None"] * or_none)
    raise PromptError(f"{owner}: {name} must be {expected}, not {_kind_of(value)}")


def check_callable(owner: str, name: str, value: object) -> None:
    """Return if an argument can be called, or is None.

    Raises:
        PromptError: It cannot.
    """
    if value is not None and not callable(value):
        raise PromptError(f"{owner}: {name} must be a callable or None, not {_kind_of(value)}")


def check_dataclass(owner: str, name: str, value: object) -> None:
    """Return if an argument is a dataclass (the class, not an instance), or None.

    Raises:
        PromptError: It is not.
    """
    is_class = isinstance(value, type) and is_dataclass(value)
    if value is not None and not is_class:
        told = _kind_of(cast("object", value))
        raise PromptError(f"{owner}: {name} must be a dataclass or None, not {told}")


def check_dataclass_instance(owner: str, name: str, value: object) -> None:
    """Return if an argument is an instance of a dataclass, or None.

    Raises:
        PromptError: It is not.
    """
    if value is not None and not is_dataclass(type(value)):
        told = _kind_of(value)
        raise PromptError(f"{owner}: {name} must be an instance of a dataclass or None, not {told}")


def check_items(owner: str, name: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Return the items of an argument, all of which are instances of `kind`.

    Raises:
        PromptError: It is no sequence, or something else is in it.
    """
    plain = get_origin(kind) or kind
    wanted = f"{owner}: {name} must be a sequence of {plain.__name__}"
    if isinstance(values, _SCALARS) or not isinstance(values, Iterable):
        raise PromptError(f"{wanted}, not {_kind_of(cast('object', values))}")
    items = tuple(cast("Iterable[object]", values))
    for number, item in enumerate(items):
        if not isinstance(item, plain):
            raise PromptError(f"{wanted}, but item {number} is {_kind_of(item)}")
    return cast("tuple[T, ...]", items)


def check_names(owner: str, name: str, values: object) -> dict[str, str]:
    """Return an argument that maps names to names.

    Raises:
        PromptError: It does not.
    """
    if not isinstance(values, Mapping):
        raise PromptError(
            f"{owner}: {name} must be a mapping of str to str, not {_kind_of(values)}"
        )
    found = dict(cast("Mapping[object, object]", values))
    for each in (*found, *found.values()):
        if not isinstance(each, str):
            raise PromptError(
                f"{owner}: {name} must be a mapping of str to str, but holds {_kind_of(each)}"
            )
    return cast("dict[str, str]", found)


def _check_text(owner: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{owner}: {name} holds a lone surrogate, which is no text, at {error.start}"
        ) from None


def _kind_of(value: object) -> str:
    """Return how a value is named: a class by its own name, all else by its type's."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else type(value).__name__
