"""Validation and serialization of a command: arguments, environment, input and limits."""

import marshal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weakincentives.posix.child_process import Confinement


@dataclass(frozen=True, slots=True)
class PreparedCommand:
    """A validated command, ready to be sent to its supervisor."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes
    grace: float
    confinement: Confinement = field(default_factory=Confinement)

    def encode(self) -> bytes:
        """Serialize it for the supervisor."""
        # both sides run the same Python, and importing json would take longer than everything else
        return marshal.dumps((self.argv, dict(self.env), self.grace, tuple(self.confinement)))


def validate_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return `argv` as a tuple.

    Raises:
        TypeError: It is not a sequence of strings.
        ValueError: It is empty, or an argument contains NUL or a lone surrogate.
    """
    if isinstance(argv, str | bytes):
        raise TypeError(f"Command must be a sequence of strings, not a single string: {argv!r}")
    args = tuple(argv)
    if not args or not args[0]:
        raise ValueError(f"Command has no program name: {args!r}")
    for arg in args:
        _check_text(arg, "Argument")
    return args


def validate_env(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return `env` as a new dictionary.

    Raises:
        TypeError: A name or value is not a string.
        ValueError: A name is empty or contains `=`, or a name or value contains NUL or a
            lone surrogate.
    """
    variables = dict(env or {})
    for name, value in variables.items():
        _check_text(name, "Variable name")
        if not name or "=" in name:
            raise ValueError(f"Variable name is empty or contains '=': {name!r}")
        _check_text(value, f"Variable {name!r}")
    return variables


def encode_stdin(stdin: str | bytes | None) -> bytes:
    """Return the standard input of a command as bytes.

    Raises:
        ValueError: The text cannot be encoded as UTF-8.
    """
    if not isinstance(stdin, str):
        return stdin or b""
    try:
        return stdin.encode()
    except UnicodeEncodeError:
        raise ValueError("Input contains a lone surrogate and cannot be UTF-8") from None


def check_limits(timeout: float, max_output: int) -> None:
    """Check the limits of one command.

    Raises:
        ValueError: The timeout is not positive, or the output limit is negative.
    """
    if math.isnan(timeout) or timeout <= 0:
        raise ValueError(f"timeout must be positive: {timeout!r}")
    if max_output < 0:
        raise ValueError(f"max_output must be non-negative: {max_output!r}")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a string: {text!r}")
    if "\0" in text:
        raise ValueError(f"{what} contains a NUL character: {text!r}")
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{what} contains a lone surrogate: {text!r}") from None
