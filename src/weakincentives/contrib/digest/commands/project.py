"""A project: a directory with the files that say how to test, check, build and run it.

Detectors read a `Project` and yield `Command` and `EntryPoint` values. What a file contains is
data: only names of a safe shape become part of a command.
"""

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from weakincentives.contrib.digest.inventory import Inventory, SourceFile
from weakincentives.posix import join

Purpose = Literal["install", "test", "lint", "format", "types", "build", "run"]
"""What a command is for."""
PURPOSES: tuple[Purpose, ...] = ("install", "test", "lint", "format", "types", "build", "run")

MAX_MANIFEST = 256 * 1024  # bytes of a manifest that are read
_SAFE_NAME = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.:@/+-]{0,79}")

Table = dict[str, object]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a project, and the file that it was found in."""

    purpose: Purpose
    command: str
    source: str
    directory: str = ""
    """The directory to run it in; empty for the root."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """Where a program starts: its name, and the module or file behind it."""

    name: str
    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Project:
    """One directory of a workspace that has a manifest, such as `pyproject.toml`."""

    inventory: Inventory
    directory: str = ""
    _parsed: dict[str, Table] = field(default_factory=dict[str, Table])

    def path(self, name: str) -> str:
        """Return the path of `name`, which is relative to the project."""
        return join(self.directory, name)

    def has(self, name: str) -> bool:
        """Whether the project has a file `name`."""
        return self.path(name) in self.inventory.paths

    def first(self, *names: str) -> str | None:
        """Return the first of `names` that exists."""
        return next((name for name in names if self.has(name)), None)

    def text(self, name: str) -> str:
        """Return the text of a file; empty if it does not exist."""
        return self.inventory.read_text(self.path(name), limit=MAX_MANIFEST)

    def toml(self, name: str) -> Table:
        """Return a TOML file; empty if it does not exist or is not valid."""
        return self._parse(name, tomllib.loads)

    def json(self, name: str) -> Table:
        """Return a JSON file; empty if it does not exist or is not valid."""
        return self._parse(name, json.loads)

    def ini(self, name: str) -> configparser.ConfigParser:
        """Return an INI file; empty if it does not exist or is not valid."""
        return parse_ini(self.text(name))

    def list(self, directory: str) -> Iterator[str]:
        """Yield the files in `directory`, relative to the project, sorted; not those deeper."""
        path = self.path(directory).rstrip("/")
        own = len(self.directory) + 1 if self.directory else 0
        for each in self.inventory.below(path):
            if each.path.rpartition("/")[0] == path:
                yield each.path[own:]

    @property
    def files(self) -> Sequence[SourceFile]:
        """All files of the project, at any depth."""
        return self.inventory.below(self.directory)

    def command(self, purpose: Purpose, command: str, source: str) -> Command:
        """Return a command of this project, found in the file `source`."""
        return Command(purpose, command, self.path(source), self.directory)

    def _parse(self, name: str, parse: Callable[[str], object]) -> Table:
        if name not in self._parsed:
            try:
                self._parsed[name] = as_table(parse(self.text(name)))
            except (ValueError, RecursionError):
                self._parsed[name] = {}
        return self._parsed[name]


def parse_ini(text: str) -> configparser.ConfigParser:
    """Return the sections of an INI file; none if it is not valid."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        parser = configparser.ConfigParser(interpolation=None)
    return parser


def as_table(value: object) -> Table:
    """Return `value` if it is a table; else an empty one."""
    if not isinstance(value, dict):
        return {}
    return {str(key): each for key, each in cast("dict[object, object]", value).items()}


def table_at(table: Table, *keys: str) -> Table:
    """Return the table at `keys`; an empty one if there is none."""
    for key in keys:
        table = as_table(table.get(key))
    return table


def as_strings(value: object) -> list[str]:
    """Return the strings in a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [each for each in cast("list[object]", value) if isinstance(each, str)]


def as_tables(value: object) -> list[Table]:
    """Return the tables in a list; empty for anything else."""
    return (
        [as_table(each) for each in cast("list[object]", value)] if isinstance(value, list) else []
    )


def is_safe_name(name: str) -> bool:
    """Whether `name` can stand in a command line as it is."""
    return _SAFE_NAME.fullmatch(name) is not None
