"""Type checks for the constructor arguments of tools, sections and prompts."""

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import TypeVar, cast, get_origin

from weakincentives.errors import PromptError

T = TypeVar("T")
_SCALARS = (str, bytes, bytearray, Mapping)


def check_argument(
    owner: str, name: str, value: object, kind: type | tuple[type, ...], *, or_none: bool = False
) -> None:
    """Check that an argument is an instance of `kind`, or None if `or_none`.

    Raises:
        PromptError: It is not, or it is text with a lone surrogate; the message names `owner`.
    """
    if isinstance(value, str) and isinstance(value, kind):
        _check_text(owner, name, value)
        return
    if isinstance(value, kind) or (or_none and value is None):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join([each.__name__ for each in kinds] + ["None"] * or_none)
    raise PromptError(f"{owner}: {name} must be {expected}, not {_describe_type(value)}")


def check_callable(owner: str, name: str, value: object) -> None:
    """Check that an argument is callable or None.

    Raises:
        PromptError: It is neither.
    """
    if value is not None and not callable(value):
        raise PromptError(
            f"{owner}: {name} must be a callable or None, not {_describe_type(value)}"
        )


def check_dataclass(owner: str, name: str, value: object) -> None:
    """Check that an argument is a dataclass (the class, not an instance) or None.

    Raises:
        PromptError: It is not.
    """
    is_class = isinstance(value, type) and is_dataclass(value)
    if value is not None and not is_class:
        kind = _describe_type(cast("object", value))
        raise PromptError(f"{owner}: {name} must be a dataclass or None, not {kind}")


def check_dataclass_instance(owner: str, name: str, value: object) -> None:
    """Check that an argument is an instance of a dataclass or None.

    Raises:
        PromptError: It is not.
    """
    if value is not None and not is_dataclass(type(value)):
        kind = _describe_type(value)
        raise PromptError(f"{owner}: {name} must be a dataclass instance or None, not {kind}")


def check_items(owner: str, name: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Check that an argument is a sequence of `kind`, and return it as a tuple.

    Raises:
        PromptError: It is not a sequence, or an item has another type.
    """
    plain = get_origin(kind) or kind
    wanted = f"{owner}: {name} must be a sequence of {plain.__name__}"
    if isinstance(values, _SCALARS) or not isinstance(values, Iterable):
        raise PromptError(f"{wanted}, not {_describe_type(cast('object', values))}")
    items = tuple(cast("Iterable[object]", values))
    for number, item in enumerate(items):
        if not isinstance(item, plain):
            raise PromptError(f"{wanted}, but item {number} is {_describe_type(item)}")
    return cast("tuple[T, ...]", items)


def check_names(owner: str, name: str, values: object) -> dict[str, str]:
    """Check that an argument maps strings to strings, and return it as a dictionary.

    Raises:
        PromptError: It does not.
    """
    if not isinstance(values, Mapping):
        raise PromptError(
            f"{owner}: {name} must be a mapping of str to str, not {_describe_type(values)}"
        )
    found = dict(cast("Mapping[object, object]", values))
    for each in (*found, *found.values()):
        if not isinstance(each, str):
            kind = _describe_type(each)
            raise PromptError(
                f"{owner}: {name} must be a mapping of str to str, but contains {kind}"
            )
    return cast("dict[str, str]", found)


def _check_text(owner: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"{owner}: {name} contains a lone surrogate at {error.start}") from None


def _describe_type(value: object) -> str:
    """Return the name of a class, or of the type of any other value."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else type(value).__name__
