"""The sound backend that most mutants subclass."""

from weakincentives.filesystem import InMemoryFilesystem


class Memory(InMemoryFilesystem):
    """An in-memory workspace with its own class name."""
