"""Workspace digests without a model: layout, commands, conventions and a repository map.

`digest_workspace` returns a `RepositoryDigest` with the text for a prompt; `repo_map` returns the
repository map alone, of the whole workspace or around one path. Both are deterministic, within a
token budget, and keyed by the hash of what they read.
"""

from weakincentives.contrib.digest.budget import count as count
from weakincentives.contrib.digest.budget import estimate_tokens
from weakincentives.contrib.digest.budget import format_size as format_size
from weakincentives.contrib.digest.budget import quote_path as quote_path
from weakincentives.contrib.digest.cache import DigestCache
from weakincentives.contrib.digest.commands import Command, EntryPoint
from weakincentives.contrib.digest.commands.project import Purpose
from weakincentives.contrib.digest.digest import (
    DEFAULT_DIGEST_TOKENS,
    RepositoryDigest,
    digest_workspace,
)
from weakincentives.contrib.digest.instructions import (
    DEFAULT_INSTRUCTION_TOKENS,
    Convention,
    InstructionFile,
    NamedInstructions,
    ProjectInstructions,
    cut_instructions,
    find_instructions,
)
from weakincentives.contrib.digest.inventory import Inventory, take_inventory
from weakincentives.contrib.digest.layout import LanguageShare
from weakincentives.contrib.digest.repository_map import (
    DEFAULT_MAP_TOKENS,
    MIN_TOKENS,
    RepositoryMap,
    repo_map,
)

__all__ = [
    "DEFAULT_DIGEST_TOKENS",
    "DEFAULT_INSTRUCTION_TOKENS",
    "DEFAULT_MAP_TOKENS",
    "MIN_TOKENS",
    "Command",
    "Convention",
    "DigestCache",
    "EntryPoint",
    "InstructionFile",
    "Inventory",
    "LanguageShare",
    "NamedInstructions",
    "ProjectInstructions",
    "Purpose",
    "RepositoryDigest",
    "RepositoryMap",
    "cut_instructions",
    "digest_workspace",
    "estimate_tokens",
    "find_instructions",
    "repo_map",
    "take_inventory",
]
