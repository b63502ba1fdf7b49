"""Dialects: the tools of a workspace by the names and parameters that models know.

One table of tools each, all for the same requests.
"""

from weakincentives.contrib.tools.dialects.choosing import DIALECTS, DialectName, dialect_for
from weakincentives.contrib.tools.dialects.classic_calls import (
    DeleteFile,
    FileReadResult,
    ListDirectory,
    ReadFile,
    WriteFile,
)

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
