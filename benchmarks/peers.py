"""Which peers take part: those that are installed; the others are named as absent."""

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Absent
from benchmarks.subject import Subject

NOT_INSTALLED = "not installed: pip install '.[bench]'"
DISTRIBUTIONS = ("deepagents", "fsspec", "fs", "pydantic-monty", "asteval", "smolagents")

HOST = (
    ("deepagents FilesystemBackend", "benchmarks.peer_deepagents", "DeepAgentsHost"),
    ("fsspec LocalFileSystem", "benchmarks.peer_fsspec", "FsspecHost"),
    ("PyFilesystem2 OSFS", "benchmarks.peer_pyfilesystem", "PyFilesystemHost"),
)
MEMORY = (
    ("deepagents StateBackend", "benchmarks.peer_deepagents", "DeepAgentsState"),
    ("deepagents StoreBackend", "benchmarks.peer_deepagents", "DeepAgentsStore"),
    ("fsspec MemoryFileSystem", "benchmarks.peer_fsspec", "FsspecMemory"),
    ("PyFilesystem2 MemoryFS", "benchmarks.peer_pyfilesystem", "PyFilesystemMemory"),
)


def host_peers() -> tuple[list[Callable[[Path], Subject]], tuple[Absent, ...]]:
    """The makers of peers on a host directory, and those that are absent."""
    return _load(HOST)


def memory_peers() -> tuple[list[Callable[[], Subject]], tuple[Absent, ...]]:
    """The makers of empty in-memory peers, and those that are absent."""
    return _load(MEMORY)


def versions() -> dict[str, str]:
    """The version of every peer, or that it is not installed."""
    return dict(_versions())


def _versions() -> Iterator[tuple[str, str]]:
    for name in DISTRIBUTIONS:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, NOT_INSTALLED


def _load(entries: tuple[tuple[str, str, str], ...]) -> tuple[list[Any], tuple[Absent, ...]]:
    made: list[Any] = []
    absent: list[Absent] = []
    for name, module, subject in entries:
        try:
            made.append(getattr(importlib.import_module(module), subject))  # noqa: TID251 - a peer may be absent
        except ImportError as error:
            absent.append(Absent(name, f"{NOT_INSTALLED} ({error})"))
    return made, tuple(absent)
