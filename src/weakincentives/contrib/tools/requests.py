"""Requests to a workspace: one dataclass per operation, and the paths that it touches.

Eight of them are also the parameters of the `wink` dialect's tools: its JSON schemas
take their descriptions from the docstrings here.
"""

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from weakincentives.contrib.evaluation import EvalParams
from weakincentives.contrib.tools.patching import PatchError, patched_paths
from weakincentives.filesystem import WriteMode
from weakincentives.prompt import ToolAccess

FileView = Literal["auto", "text", "hex", "base64"]
GrepMode = Literal["content", "files_with_matches", "count"]
FileEncoding = Literal["utf-8", "base64"]
SortBy = Literal["name", "size"]

PROGRAM: Mapping[str, Callable[[str], object]] = {"from_text": lambda text: ["sh", "-c", text]}
"""Metadata of a list of words: models also send one string, which is for a shell."""
COMMAND_LINE: Mapping[str, Callable[[list[str]], object]] = {"from_list": shlex.join}
"""Metadata of a line for a shell: models also send the words of a program."""


@dataclass(frozen=True, slots=True)
class LsParams:
    """List a directory.

    Args:
        path: The directory; "." is the workspace root.
        exclude: Glob patterns of names to leave out, such as "*.pyc".
        offset: Number of entries to skip, for the rest of a long listing; counts from 0.
        sort_by: "name" lists directories first, "size" the largest file first.
    """

    path: str = "."
    exclude: tuple[str, ...] = ()
    offset: int = 0
    sort_by: SortBy = "name"


@dataclass(frozen=True, slots=True)
class ReadFileParams:
    """Read a page of a file.

    Args:
        file_path: The file.
        offset: Number of lines to skip; counts from 0. In the hex and base64 views it counts bytes.
        limit: Maximum number of lines (or bytes) to return.
        start_line: The first line to return, counted from 1; another way to say offset.
        view: "text", "hex" and "base64" force that form.
    """

    file_path: str
    offset: int = 0
    limit: int | None = None
    start_line: int | None = field(default=None, metadata={"hidden": True})
    view: FileView = "auto"


@dataclass(frozen=True, slots=True)
class WriteFileParams:
    """Write a whole file.

    Args:
        file_path: The file; missing parent directories are created.
        content: The text.
        mode: "create" fails if the file exists, "overwrite" replaces it, "append" adds to its
            end.
        encoding: "base64" if content is base64-encoded bytes.
    """

    file_path: str
    content: str
    mode: WriteMode = "create"
    encoding: FileEncoding = "utf-8"


@dataclass(frozen=True, slots=True)
class TextEdit:
    """One replacement.

    Args:
        old_string: The text to replace.
        new_string: The new text.
        replace_all: Replace every occurrence.
    """

    old_string: str
    new_string: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class EditFileParams:
    """Replace text in a file.

    Args:
        file_path: The file.
        old_string: The text to replace.
        new_string: The new text.
        replace_all: Replace every occurrence.
        edits: Several replacements, instead of old_string and new_string.
        dry_run: Show the diff without changing the file.
    """

    file_path: str
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    edits: tuple[TextEdit, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CountedEditParams:
    """Replace every occurrence of a text in a file, if there are as many as expected.

    Args:
        file_path: The file.
        old_string: The exact text to replace, without line numbers.
        new_string: The replacement.
        expected: Number of occurrences that the file must have.
    """

    file_path: str
    old_string: str
    new_string: str
    expected: int


@dataclass(frozen=True, slots=True)
class GlobParams:
    """Find files by name.

    Args:
        pattern: The pattern, such as "src/*.{ts,tsx}"; a trailing "/" finds directories.
        path: The directory to search.
        head_limit: Maximum number of paths to return.
        include_ignored: Include ignored files.
        exclude: Patterns of paths to leave out, such as "build/**".
    """

    pattern: str
    path: str = "."
    head_limit: int | None = None
    include_ignored: bool = False
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrepParams:
    """Search the lines of files for a regular expression.

    Args:
        pattern: The regular expression.
        path: The directory or file to search.
        glob: Search only files that match, such as "*.py" or "src/**/*.ts".
        type: Search only files of this language, such as "py" or "rust".
        output_mode: "content" returns matching lines with their line numbers,
            "files_with_matches" only paths, "count" the number of matching lines per file.
        ignore_case: Ignore case.
        fixed_string: Treat the pattern as plain text.
        context: Lines to show before and after each match.
        before: Lines to show before each match.
        after: Lines to show after each match.
        head_limit: Maximum number of lines, paths or counts to return.
        max_per_file: Maximum number of matches per file.
        exclude: Skip files that match this pattern.
        include_ignored: Search ignored files too.
    """

    pattern: str
    path: str = "."
    glob: str | None = None
    type: str | None = None
    output_mode: GrepMode = "content"
    ignore_case: bool = False
    fixed_string: bool = False
    context: int | None = None
    before: int | None = None
    after: int | None = None
    head_limit: int | None = None
    max_per_file: int | None = None
    exclude: str | None = None
    include_ignored: bool = False


@dataclass(frozen=True, slots=True)
class RmParams:
    """Remove a file, or a directory with everything in it.

    Args:
        path: The file or directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class ApplyPatchParams:
    """Apply a patch to several files, all or none.

    Args:
        patch: "*** Begin Patch" ... "*** End Patch", or a unified diff.
        dry_run: Show the diff without changing files.
    """

    patch: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class InsertTextParams:
    """Insert lines into a file.

    Args:
        file_path: The file.
        line: Insert after this line, counted from 1; 0 inserts at the beginning.
        text: The text to insert.
    """

    file_path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class MoveParams:
    """Move or rename a file or directory.

    Args:
        source: The file or directory.
        destination: Its new path; missing parent directories are created.
    """

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class MkdirParams:
    """Create a directory and its missing parents.

    Args:
        path: The directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class StatParams:
    """Get the type, size and modification time of a file or directory.

    Args:
        path: The file or directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class TreeParams:
    """Show a directory and everything below it as a tree.

    Args:
        path: The directory.
        exclude: Glob patterns of names to leave out.
        depth: Number of levels to show, 1 for the directory alone; by default as many as fit.
        offset: Number of entries to skip; counts from 0. Needs depth.
        limit: Maximum number of entries to return. Needs depth.
    """

    path: str = "."
    exclude: tuple[str, ...] = ()
    depth: int | None = None
    offset: int = 0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class ReadManyParams:
    """Read several files at once.

    Args:
        file_paths: The files.
    """

    file_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkspaceParams:
    """Get the workspace root, and how paths are written."""


@dataclass(frozen=True, slots=True)
class RepoMapParams:
    """Show the most central source files of the workspace, with an outline of their code.

    Args:
        path: The file or directory to begin with.
        max_tokens: Maximum length of the map in tokens, at least 200.
    """

    path: str = "."
    max_tokens: int = 2_000


@dataclass(frozen=True, slots=True)
class ShellExecuteParams:
    """Run a program.

    Args:
        command: The program and its arguments, one item each: ["python", "-m", "pytest", "-q"].
            No shell interprets it; for pipes, wildcards or &&, run one: ["sh", "-c", "..."].
        cwd: The working directory; by default the workspace root.
        env: Environment variables to set.
        stdin: Text for standard input; empty by default.
        timeout_seconds: Timeout in seconds.
        capture_output: False leaves the output out of the result.
    """

    command: tuple[str, ...] = field(metadata=PROGRAM)
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: str | None = None
    timeout_seconds: float | None = None
    capture_output: bool = True


@dataclass(frozen=True, slots=True)
class BashParams:
    """Run a command line or script in bash, or in sh if there is no bash.

    Args:
        command: The command line.
        timeout: Timeout in milliseconds; the maximum by default.
        cwd: The working directory; by default the workspace root.
        max_output: Maximum number of bytes to return from each stream.
    """

    command: str = field(metadata=COMMAND_LINE)
    timeout: int | None = None
    cwd: str | None = None
    max_output: int | None = None


@dataclass(frozen=True, slots=True)
class ShellStartParams:
    """Start a program in the background.

    Args:
        command: The program and its arguments, one item each:
            ["python", "-m", "http.server", "8000"].
        cwd: The working directory; by default the workspace root.
        env: Environment variables to set.
    """

    command: tuple[str, ...] = field(metadata=PROGRAM)
    cwd: str | None = None
    env: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class BashStartParams:
    """Start a command line in the background, in bash, or in sh if there is no bash.

    Args:
        command: The command line.
        cwd: The working directory; by default the workspace root.
        wait: Milliseconds to wait for it to end.
    """

    command: str = field(metadata=COMMAND_LINE)
    cwd: str | None = None
    wait: int | None = None


@dataclass(frozen=True, slots=True)
class ShellPollParams:
    """Get what a background process has printed since the last call.

    Args:
        process_id: The number of the process.
        wait_seconds: Seconds to wait for it to end, from 0 to 120.
    """

    process_id: int
    wait_seconds: float = 0


@dataclass(frozen=True, slots=True)
class ShellStopParams:
    """Stop a background process.

    Args:
        process_id: The number of the process.
    """

    process_id: int


_ACCESS: Mapping[type[object], tuple[str, ...]] = {
    ReadFileParams: ("reads", "file_path"),
    **dict.fromkeys((LsParams, GlobParams, GrepParams), ("searches", "path")),
    **dict.fromkeys((StatParams, TreeParams), ("searches", "path")),
    **dict.fromkeys((WriteFileParams, EditFileParams), ("writes", "file_path")),
    **dict.fromkeys((CountedEditParams, InsertTextParams), ("writes", "file_path")),
    **dict.fromkeys((RmParams, MkdirParams), ("others", "path")),
    MoveParams: ("others", "source", "destination"),
}
"""How requests touch the paths in some of their fields; `find_access` knows the others."""


def find_access(request: object, resolve: Callable[[str], str]) -> ToolAccess:
    """Return the paths that a request touches, for policies.

    Invalid paths are left out: the tool reports them itself.

    Args:
        request: The request.
        resolve: Returns the workspace path for a path that a model sent.
    """

    def paths(*given: str) -> tuple[str, ...]:
        found: list[str] = []
        for each in given:
            with suppress(OSError, ValueError):
                found.append(resolve(each))
        return tuple(found)

    match request:
        case ReadManyParams(file_paths=several):
            return ToolAccess(reads=paths(*several))
        case EvalParams():
            reads = paths(*(each.path for each in request.reads))
            writes = paths(*(each.path for each in request.writes))
            return ToolAccess(
                reads,
                writes=tuple(each for each in writes if each not in reads),
                others=tuple(each for each in writes if each in reads),
            )
        case RepoMapParams(path=path):
            return ToolAccess(searches=paths(".", path))  # it reads all source files
        case ApplyPatchParams(patch=patch):
            with suppress(PatchError):
                return ToolAccess(writes=paths(*patched_paths(patch)))
            return ToolAccess()
        case _:
            kind, *names = _ACCESS.get(type(request), ("others",))
            return ToolAccess(**{kind: paths(*(getattr(request, name) for name in names))})
