"""Files by pattern: the functions of `glob`, on the workspace."""

from pathlib import Path


def glob(pattern: str, *, recursive: bool = False) -> list[str]:
    """Return the paths that match."""
    if not recursive:
        pattern = pattern.replace("**", "*")
    return [str(path) for path in Path().glob(pattern)]


def iglob(pattern: str, *, recursive: bool = False) -> list[str]:
    """Return the paths that match."""
    return glob(pattern, recursive=recursive)
