"""Names of the specification: the in-memory backend, under its module path."""

from weakincentives.filesystem.memory.filesystem import InMemoryFilesystem

__all__ = ["InMemoryFilesystem"]
