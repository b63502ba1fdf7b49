"""Tools for agents, and the filesystems that they work on."""

from weakincentives.filesystem import HostMount, InMemoryFilesystem

__all__ = ["HostMount", "InMemoryFilesystem"]
