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
    raise _wrong_type(owner, name, expected, value)


def check_or_none(owner: str, name: str, value: object, wanted: str, *, is_valid: bool) -> None:
    """Check that an argument is None or valid; `wanted` says in words what that is.

    Raises:
        PromptError: It is neither.
    """
    if value is not None and not is_valid:
        raise _wrong_type(owner, name, f"{wanted} or None", value)


def is_dataclass_type(value: object) -> bool:
    """Return whether a value is a dataclass: the class, not an instance."""
    return isinstance(value, type) and is_dataclass(value)


def check_items(owner: str, name: str, values: object, kind: type[T]) -> tuple[T, ...]:
    """Check that an argument is a sequence of `kind`, and return it as a tuple.

    Raises:
        PromptError: It is not a sequence, or an item has another type.
    """
    plain = get_origin(kind) or kind
    wanted = f"a sequence of {plain.__name__}"
    if isinstance(values, _SCALARS) or not isinstance(values, Iterable):
        raise _wrong_type(owner, name, wanted, cast("object", values))
    items = tuple(cast("Iterable[object]", values))
    for number, item in enumerate(items):
        if not isinstance(item, plain):
            raise _wrong_type(owner, name, wanted, item, f"but item {number} is")
    return cast("tuple[T, ...]", items)


def check_names(owner: str, name: str, values: object) -> dict[str, str]:
    """Check that an argument maps strings to strings, and return it as a dictionary.

    Raises:
        PromptError: It does not.
    """
    wanted = "a mapping of str to str"
    if not isinstance(values, Mapping):
        raise _wrong_type(owner, name, wanted, values)
    found = dict(cast("Mapping[object, object]", values))
    for each in (*found, *found.values()):
        if not isinstance(each, str):
            raise _wrong_type(owner, name, wanted, each, "but contains")
    return cast("dict[str, str]", found)


def _check_text(owner: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"{owner}: {name} contains a lone surrogate at {error.start}") from None


def _wrong_type(
    owner: str, name: str, wanted: str, value: object, found: str = "not"
) -> PromptError:
    """Return the error for a value; it names its type, or the class if it is one."""
    kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    shown = "None" if value is None else kind
    return PromptError(f"{owner}: {name} must be {wanted}, {found} {shown}")
