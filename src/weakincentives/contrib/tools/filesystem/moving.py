"""Moving what is there, and making directories."""

from weakincentives.contrib.tools.filesystem.changing import all_or_none
from weakincentives.contrib.tools.filesystem.near_names import present
from weakincentives.contrib.tools.filesystem.refusals import explained, refuse_read_only, said
from weakincentives.contrib.tools.filesystem.wording import hint, named
from weakincentives.contrib.tools.requests import MkdirParams, MoveParams, RmParams
from weakincentives.contrib.tools.results import MkdirResult, MoveResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import ToolResult


def move(request: MoveParams, bench: Workbench) -> ToolResult[MoveResult]:
    """Give a file, link or directory another path, where nothing is."""
    source, destination = bench.path(request.source), bench.new_path(request.destination)
    if not source:
        raise ToolValidationError("The workspace itself cannot be moved; name what is in it")
    refuse_read_only(bench, source)
    found = present(bench, source)
    if bench.filesystem.exists(destination):
        raise _taken(bench, destination)
    with explained(bench, destination), all_or_none(bench.filesystem) as changes:
        changes.move(source, destination)
    slash = "/" if found.is_directory else ""
    text = f"Moved {named(source)}{slash} to {named(destination)}{slash}"
    return ToolResult(text, MoveResult(source, destination), exclude_value_from_context=True)


def mkdir(request: MkdirParams, bench: Workbench) -> ToolResult[MkdirResult]:
    """Make a directory, and those on the way to it."""
    path = bench.new_path(request.path)
    refuse_read_only(bench, path)
    fs = bench.filesystem
    created = not fs.exists(path)
    if not created and not fs.stat(path or ".").is_directory:
        raise FileExistsError(f"A file is there already, so no directory was made: {named(path)!r}")
    with explained(bench, path):
        fs.mkdir(path)
    text = f"Made the directory {named(path)}/"
    if not created:
        text = f"The directory {named(path)}/ is there already; nothing was changed"
    return ToolResult(text, MkdirResult(path or ".", created), exclude_value_from_context=True)


def _taken(bench: Workbench, path: str) -> FileExistsError:
    text = f"Something is there already, so nothing was moved: {named(path)!r}"
    inside = ""
    if bench.filesystem.stat(path or ".").is_directory:
        inside = "; to move into a directory, name the path that it is to have there"
    return FileExistsError(
        text + (inside or hint("; remove it first:", said(bench, RmParams(path))))
    )
