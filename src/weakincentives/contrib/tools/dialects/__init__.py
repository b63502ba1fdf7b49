"""Dialects: the tools of a workspace by the names and parameters that models know.

One table of tools each, all for the same requests.
"""

from weakincentives.contrib.tools.dialects.classic import (
    DeleteFile,
    FileReadResult,
    ListDirectory,
    ReadFile,
    WriteFile,
)
from weakincentives.contrib.tools.dialects.registry import DIALECTS, DialectName, dialect_for

__all__ = [
    "DIALECTS",
    "DeleteFile",
    "DialectName",
    "FileReadResult",
    "ListDirectory",
    "ReadFile",
    "WriteFile",
    "dialect_for",
]
