"""A command as it is passed on: checked, and with everything that it is given."""

import marshal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """What to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes
    grace: float

    def message(self) -> bytes:
        """Return it as a supervisor reads it."""
        # both sides are the same Python, and importing json would take longer than all the rest
        data = marshal.dumps((self.argv, dict(self.env), self.grace))
        return b"%010d" % len(data) + data


def checked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return `argv` if it can be passed on.

    Raises:
        TypeError: It is not a sequence of strings.
        ValueError: It is empty, or holds what no argument can.
    """
    if isinstance(argv, str | bytes):
        raise TypeError(f"Command must be a sequence of strings, not one: {argv!r}")
    found = tuple(argv)
    if not found or not found[0]:
        raise ValueError(f"Command names no program: {found!r}")
    for each in found:
        _check_passable(each, "Argument")
    return found


def checked_env(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return variables that can be set.

    Raises:
        TypeError: A name or value is not a string.
        ValueError: It holds what no variable can.
    """
    found = dict(env or {})
    for name, value in found.items():
        _check_passable(name, "Name of a variable")
        if not name or "=" in name:
            raise ValueError(f"Name of a variable is empty or holds '=': {name!r}")
        _check_passable(value, f"Variable {name!r}")
    return found


def checked_stdin(stdin: str | bytes | None) -> bytes:
    """Return what a command is to read, as bytes.

    Raises:
        ValueError: It is text that is no UTF-8.
    """
    if not isinstance(stdin, str):
        return stdin or b""
    try:
        return stdin.encode()
    except UnicodeEncodeError:
        raise ValueError("Input holds half a character, and cannot be UTF-8") from None


def check_limits(timeout: float, max_output: int) -> None:
    """Return if these are limits.

    Raises:
        ValueError: They are not.
    """
    if math.isnan(timeout) or timeout <= 0:
        raise ValueError(f"timeout must be positive: {timeout!r}")
    if max_output < 0:
        raise ValueError(f"max_output must be non-negative: {max_output!r}")


def _check_passable(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a string: {text!r}")
    if "\0" in text:
        raise ValueError(f"{what} holds a NUL character: {text!r}")
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half a character: {text!r}") from None
