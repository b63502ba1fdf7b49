"""The options of `wink mcp`: what to serve, and how, as values and as words of a command line."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import click

from weakincentives.cli.config import MCP_TOKEN_VARIABLE, ConfigError
from weakincentives.cli.terminal import describe_error
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.loopback import LOOPBACK, create_token
from weakincentives.posix import read_regular

_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]+):)?(?P<port>\d{1,5})")
_MAX_PORT = 65_535
_MAX_TOKEN_BYTES = 4_096
_MIN_TOKEN = 16
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, as the user gave it; None means not given."""

    directory: Path
    in_place: bool = False
    read_only: bool = False
    any_directory: bool = False
    dialect: DialectName = "mcp"
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    """Options that are also settings, such as `sandbox`, by their names."""
    config: str | None = None
    no_dump: bool = False
    results: str = "auto"

    @property
    def text_only(self) -> bool | None:
        """Whether results are text only; None leaves it to the name of the client."""
        return None if self.results == "auto" else self.results == "text"

    def words(self) -> list[str]:
        """Return the options as words of a command line, with absolute paths."""
        words = [str(self.directory), "--in-place" if self.in_place else "--copy"]
        if self.dialect != "mcp":
            words += ["--dialect", self.dialect]
        if self.results != "auto":
            words += ["--results", self.results]
        flags = {
            "--read-only": self.read_only,
            "--any-directory": self.any_directory,
            "--no-dump": self.no_dump,
        }
        words += [name for name, is_set in flags.items() if is_set]
        for name, value in self.settings.items():
            given = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
            option = f"--{name.replace('_', '-')}"
            for each in given:
                if each is not None:
                    words += [option, _absolute(str(each)) if name == "dump" else str(each)]
        if self.config is not None:
            words += ["--config", _absolute(self.config)]
        return words


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Where to listen, and the token."""

    host: str
    port: int
    token: str = field(repr=False)
    is_new_token: bool = False
    """Whether the token was made now, so that the user does not know it."""
    token_file: Path | None = None
    allow_remote: bool = False


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and port that `[HOST:]PORT` names; empty means a free port.

    Raises:
        UsageError: It is not an address.
    """
    if not text:
        return LOOPBACK, 0
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _MAX_PORT:
        raise click.UsageError(
            f"--http takes [HOST:]PORT, such as 8000 or 127.0.0.1:8000: {text!r};"
            " name the directory before it"
        )
    return (match["host"] or LOOPBACK).strip("[]"), int(match["port"])


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def find_token(file: Path | None, environment: Mapping[str, str]) -> tuple[str, bool]:
    """Return the token for HTTP, and whether it was made now.

    A file that does not exist is created, so that the next start has the same token.

    Raises:
        ConfigError: The token is too short, or its file cannot be used.
    """
    if file is not None:
        return _read_token(file)
    given = environment.get(MCP_TOKEN_VARIABLE)
    if given:
        return _check_token(given.strip(), MCP_TOKEN_VARIABLE), False
    return create_token(), True


def _read_token(file: Path) -> tuple[str, bool]:
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(file, flags, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"The token file cannot be created: {describe_error(error)}") from error
    else:
        token = create_token()
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{token}\n")
        return token, True
    try:
        found = read_regular(file, _MAX_TOKEN_BYTES, follow_links=True)
    except OSError as error:
        raise ConfigError(f"The token file cannot be read: {describe_error(error)}") from error
    if file.stat().st_mode & 0o077:
        raise ConfigError(
            f"The token file can be read by others: {str(file)!r}; run chmod 600 on it"
        )
    return _check_token(found.decode("utf-8", "replace").strip(), str(file)), False


def _check_token(token: str, source: str) -> str:
    if len(token) < _MIN_TOKEN or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"The token in {source} must have at least {_MIN_TOKEN} characters, visible ASCII ones"
        )
    return token


def check_directory(directory: Path, environment: Mapping[str, str]) -> None:
    """Raise if a client would get all files of the user.

    Raises:
        ConfigError: The directory is the home directory, or around it.
    """
    home = Path(os.path.realpath(environment.get("HOME") or "/"))
    if home.is_relative_to(directory):
        what = "your whole home directory" if home == directory else "all that is around your home"
        raise ConfigError(
            f"A client would get {what}: {str(directory)!r};"
            " name a project's directory, or add --any-directory if you want that"
        )
