"""The instructions of a run: those of the project, and the user's own for every project."""

import os
from collections.abc import Mapping
from pathlib import Path

from weakincentives.cli.config import user_file
from weakincentives.cli.run.view import View
from weakincentives.cli.terminal import escape_controls
from weakincentives.cli.units import format_count, shorten_home
from weakincentives.contrib.digest import (
    DEFAULT_INSTRUCTION_TOKENS,
    InstructionFile,
    Inventory,
    ProjectInstructions,
    cut_instructions,
    find_instructions,
)
from weakincentives.contrib.tools import ProjectInstructionsSection
from weakincentives.filesystem import Filesystem
from weakincentives.posix import display_path, read_regular

USER_FILE_NAME = "AGENTS.md"
"""The name of the user's own instructions, beside the user's `wink.toml`."""
_MAX_BYTES = 256 * 1024
_PART_OF_LIMIT = 10  # one part in so many of the run's tokens


def prepare_instructions(
    filesystem: Filesystem,
    view: View,
    *,
    environment: Mapping[str, str],
    inventory: Inventory | None = None,
    max_tokens: int | None = None,
) -> ProjectInstructionsSection:
    """Return the section with the instructions of a workspace and its user, and show their names.

    Args:
        filesystem: The workspace.
        view: Shows which files are used.
        environment: Tells where the user's own instructions are.
        inventory: The files of the workspace, if they were listed.
        max_tokens: The limit of the run, of which instructions take a small part: every request
            sends them again.
    """
    tokens = DEFAULT_INSTRUCTION_TOKENS
    if max_tokens is not None:
        tokens = min(tokens, max_tokens // _PART_OF_LIMIT)
    user = _read_user_file(environment, tokens)
    found = find_instructions(
        filesystem, tokens=tokens - (0 if user is None else user.tokens), inventory=inventory
    )
    if user is not None or found:
        _show(found, user, view)
    return ProjectInstructionsSection(found, user=user)


def user_instructions(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own instructions, whether or not it exists."""
    beside = user_file(environment)
    return None if beside is None else beside.with_name(USER_FILE_NAME)


def _read_user_file(environment: Mapping[str, str], tokens: int) -> InstructionFile | None:
    path = user_instructions(environment)
    # under sudo the home may be unreadable: `os.path.exists` returns False, `Path.exists` raises
    if path is None or not os.path.exists(path):  # noqa: PTH110 # Path.exists raises there
        return None
    try:
        # the user's own file, so a link is followed
        text = read_regular(path, _MAX_BYTES, follow_links=True).decode("utf-8-sig", "replace")
    except OSError:
        return None
    found = cut_instructions(shorten_home(path), text, tokens=tokens)
    return found if found.text else None


def _show(found: ProjectInstructions, user: InstructionFile | None, view: View) -> None:
    files = (*(() if user is None else (user,)), *found.files)
    facts = {
        "files": [
            {"path": each.path, "tokens": each.tokens, "omitted_lines": each.omitted_lines}
            for each in files
        ],
        "named": [each.path for each in found.named],
        "tokens": sum(each.tokens for each in files),
    }
    quoted = [f"{display_path(each.path)} {_describe(each)}" for each in files]
    named = [f"{display_path(each.path)} by name" for each in found.named]
    view.emit("instructions", facts, escape_controls(f"instructions: {_join([*quoted, *named])}"))


def _describe(file: InstructionFile) -> str:
    cut = f", {file.omitted_lines:,} lines left out" if file.omitted_lines else ""
    return f"({format_count(file.tokens, 'token')}{cut})"


def _join(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
