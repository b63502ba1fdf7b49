"""What a prompt tells a model about its workspace; only tools that are there are mentioned."""

from collections.abc import Sequence

from weakincentives.contrib.tools.speech import Speech
from weakincentives.filesystem import MAX_WRITE_LENGTH, MountReport

_PREVIEWED = 20

_TOOLS = f"""\
- Look around with `$LsParams` before you read or write, one directory at a time.
- Find files by name with `$GlobParams`.
- Find files by what they say with `$GrepParams`.
- Read a file with `$ReadFileParams` before you change it, and work from what it shows now: what \
you remember may be out of date.
- Change a part of a file with `$EditFileParams`: quote the text to replace as it is, without line \
numbers.
- Change several files at once with `$ApplyPatchParams`: all of the patch is done, or nothing.
- Write new files with `$WriteFileParams`, {MAX_WRITE_LENGTH:,} characters at most in one call; \
prefer one whole file to many small additions.
- Remove what is no longer needed with `$RmParams`, so that only what matters is left.
- Run programs with `$ShellExecuteParams`; what they change in the workspace counts as your work.
- Run commands with `$BashParams`; what they change in the workspace counts as your work.
"""

_ALWAYS = """\
- A call that fails has changed nothing: read its message, and call again with what it asks for.
- Keep binary files small and few, and do not copy large repositories or assets here."""


def tool_guidance(speech: Speech, reports: Sequence[MountReport], *, is_new: bool) -> str:
    """Return the text for a workspace with tools.

    Args:
        speech: The tools that are there.
        reports: What was mounted.
        is_new: Whether nothing was there before.
    """
    paragraphs = [
        "You have a workspace for files. Paths are relative to its top; `/` separates names.",
        _beginning(reports, is_new),
        speech.fill(_TOOLS) + "\n" + _ALWAYS,
        mounted(reports),
    ]
    return "\n\n".join(each for each in paragraphs if each)


def native_guidance(reports: Sequence[MountReport], *, is_new: bool) -> str:
    """Return the text for a workspace that is reached with tools which are not ours."""
    paragraphs = [
        "Your working directory is a workspace of your own: read, change and create files there"
        " with the tools that you have.",
        _beginning(reports, is_new),
        mounted(reports),
    ]
    return "\n\n".join(each for each in paragraphs if each)


def mounted(reports: Sequence[MountReport]) -> str:
    """Return what was copied in from the host, with the first names of each mount."""
    if not reports:
        return ""
    previews = (report.preview(_PREVIEWED) for report in reports)
    return "Copied into the workspace:\n\n" + "\n\n".join(previews)


def _beginning(reports: Sequence[MountReport], is_new: bool) -> str:
    if reports and is_new:
        return (
            "It begins with copies of the files that are listed below. No other files of the host"
            " can be brought in later, and the originals do not change."
        )
    if is_new:
        return (
            "It begins empty: create what you need. No files of the host can be brought in later."
        )
    return "It holds the files that you are to work on."
