"""Validation and serialization of a command: arguments, environment, input and limits."""

import marshal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the process of a command gives up before the command starts.

    Descriptors are those of this process; each is passed on for one command.

    Args:
        limits: Resource limits, as pairs of an `RLIMIT_` constant and a value.
        drops_privileges: Whether to give up all capabilities.
        ruleset: A Landlock ruleset to restrict the process with.
        seccomp: A BPF program that filters system calls.
        writable: Directories whose files' attributes the supervisor may change for the command;
            if there are any, the filter must notify it of the calls in `attribute_calls`.
        inherited: Descriptors that the command gets as 3, 4, ...
        is_wrapped: Whether the program is a wrapper that kills everything when it exits.
        forbidden_network: The inode of a network namespace that the command must not be in.
    """

    limits: tuple[tuple[int, int], ...] = ()
    drops_privileges: bool = False
    ruleset: int | None = None
    seccomp: bytes = b""
    writable: tuple[int, ...] = ()
    inherited: tuple[int, ...] = ()
    is_wrapped: bool = False
    forbidden_network: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors to pass on; the encoded settings refer to them by position."""
        ruleset = () if self.ruleset is None else (self.ruleset,)
        return (*ruleset, *self.writable, *self.inherited)

    def encode(self) -> dict[str, object]:
        """Return the settings as the supervisor reads them."""
        first_writable = int(self.ruleset is not None)
        first_inherited = first_writable + len(self.writable)
        return {
            "limits": self.limits,
            "drops_privileges": self.drops_privileges,
            "ruleset": None if self.ruleset is None else 0,
            "seccomp": self.seccomp,
            "writable": tuple(range(first_writable, first_inherited)),
            "inherited": tuple(range(first_inherited, first_inherited + len(self.inherited))),
            "is_wrapped": self.is_wrapped,
            "forbidden_network": self.forbidden_network,
        }


@dataclass(frozen=True, slots=True)
class Command:
    """A validated command, ready to be sent to its supervisor."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes
    grace: float
    confinement: Confinement = Confinement()

    def encode(self) -> bytes:
        """Serialize it for the supervisor."""
        # both sides run the same Python, and importing json would take longer than everything else
        return marshal.dumps((self.argv, dict(self.env), self.grace, self.confinement.encode()))


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
