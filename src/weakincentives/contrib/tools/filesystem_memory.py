"""The place where earlier code looks for the in-memory filesystem."""

from weakincentives.filesystem import InMemoryFilesystem

__all__ = ["InMemoryFilesystem"]
