"""A workspace for LLM agents: their files behind one protocol, on any backend."""

__all__ = ["__version__"]

# a literal, because asking the package metadata costs more than the rest of `wink --help`
__version__ = "0.1.0"
