"""Dialects: the workspace's tools under the names and parameters that models know.

Each dialect is a table of `ToolSpec`s; all of them send the same requests.
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
