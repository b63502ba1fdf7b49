"""The sound backend that most mutants are made from."""

from weakincentives.filesystem import InMemoryFilesystem


class Memory(InMemoryFilesystem):
    """A workspace in memory, under a name of its own."""
