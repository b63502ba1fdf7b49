"""What a model can ask of a workspace: one request for each thing, whatever the dialect calls it.

The first seven are also the parameters of the tools of the `wink` dialect; the texts
here are what its schemas say.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from weakincentives.filesystem import WriteMode

FileView = Literal["auto", "text", "hex", "base64"]
GrepMode = Literal["content", "files_with_matches", "count"]
FileEncoding = Literal["utf-8", "base64"]


@dataclass(frozen=True, slots=True)
class LsParams:
    """List a directory.

    Args:
        path: The directory; "." is the top of the workspace.
        exclude: Patterns of names to leave out, for example "*.pyc".
        offset: How many entries to skip; counts from 0. For the rest of a long listing.
    """

    path: str = "."
    exclude: tuple[str, ...] = ()
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ReadFileParams:
    """Read a page of a file.

    Args:
        file_path: The file.
        offset: How many lines to skip; counts from 0, so 0 begins at the first line. For hex and
            base64 it counts bytes.
        limit: How many lines (or bytes) to return; a page of 2000 lines if left out.
        start_line: The first line to return, counted from 1, as line numbers are shown; use it
            instead of offset.
        view: "auto" shows text as lines, notebooks as cells, and what is binary as a short
            hex dump; "text", "hex" and "base64" ask for one of them.
    """

    file_path: str
    offset: int = 0
    limit: int | None = None
    start_line: int | None = None
    view: FileView = "auto"


@dataclass(frozen=True, slots=True)
class WriteFileParams:
    """Write a whole file.

    Args:
        file_path: The file; directories on the way are made.
        content: Its text, or its bytes as base64 if encoding says so.
        mode: "create" refuses to replace a file that exists, "overwrite" replaces it,
            "append" adds to its end.
        encoding: "utf-8" for text, "base64" for bytes.
    """

    file_path: str
    content: str
    mode: WriteMode = "create"
    encoding: FileEncoding = "utf-8"


@dataclass(frozen=True, slots=True)
class TextEdit:
    """One replacement.

    Args:
        old_string: The text to replace, as it is in the file; it must be there exactly once.
        new_string: The text to put in its place.
        replace_all: Replace it everywhere instead.
    """

    old_string: str
    new_string: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class EditFileParams:
    """Replace text in a file.

    Args:
        file_path: The file.
        old_string: The text to replace, as it is in the file, without line numbers; enough of it
            to be there exactly once.
        new_string: The text to put in its place.
        replace_all: Replace it everywhere instead.
        edits: Several replacements, made in this order, all or none; instead of old_string and
            new_string.
        dry_run: Show the difference and change nothing.
    """

    file_path: str
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    edits: tuple[TextEdit, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CountedEditParams:
    """Replace text in a file everywhere, if it is there as often as expected.

    Args:
        file_path: The file.
        old_string: The text to replace, as it is in the file, without line numbers.
        new_string: The text to put in its place.
        expected: How many times it must be there.
    """

    file_path: str
    old_string: str
    new_string: str
    expected: int


@dataclass(frozen=True, slots=True)
class GlobParams:
    """Find files by name.

    Args:
        pattern: For example "**/*.py"; "*" stays in one directory, "**" spans any number, and
            a pattern that ends in "/" finds directories.
        path: The directory to look in.
        head_limit: How many paths to return at most.
        include_ignored: Look also at what .gitignore and .ignore files leave out.
        exclude: Patterns of paths to leave out, for example "build/**".
    """

    pattern: str
    path: str = "."
    head_limit: int | None = None
    include_ignored: bool = False
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrepParams:
    """Search the lines of files.

    Args:
        pattern: A regular expression (RE2: no look-around, no back references).
        path: The directory or file to search.
        glob: Search only files whose name matches, for example "*.py" or "src/**/*.ts".
        type: Search only files of a language, for example "py", "js", "rust".
        output_mode: "content" returns lines, "files_with_matches" paths, "count" how many
            lines match in each file.
        ignore_case: Take upper and lower case for the same.
        fixed_string: Take the pattern as plain text.
        context: Lines to show before and after each match.
        before: Lines to show before each match.
        after: Lines to show after each match.
        head_limit: How many lines, paths or counts to return at most.
        max_per_file: How many matches to return of one file at most.
        exclude: Leave out files whose name matches.
        include_ignored: Search also what .gitignore and .ignore files leave out.
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
        path: What to remove.
    """

    path: str


@dataclass(frozen=True, slots=True)
class ApplyPatchParams:
    """Change several files by one patch, all or none.

    Args:
        patch: The patch: "*** Begin Patch" ... "*** End Patch", or a unified diff.
        dry_run: Show the difference and change nothing.
    """

    patch: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class InsertTextParams:
    """Put text between two lines of a file.

    Args:
        file_path: The file.
        line: The line after which the text goes, counted from 1; 0 puts it at the beginning.
        text: What to insert.
    """

    file_path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class MoveParams:
    """Move or rename a file or directory.

    Args:
        source: Where it is.
        destination: Where it is to be; nothing may be there.
    """

    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class MkdirParams:
    """Make a directory, and those on the way to it.

    Args:
        path: The directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class StatParams:
    """Say what is at a path.

    Args:
        path: The file or directory.
    """

    path: str


@dataclass(frozen=True, slots=True)
class TreeParams:
    """Show a directory and what is below it.

    Args:
        path: The directory.
        exclude: Patterns of names to leave out.
        depth: How many levels to show, 1 for the directory alone; as many as there is room for
            if left out.
        offset: How many entries to skip; counts from 0. Only where depth is given.
        limit: How many entries to return at most. Only where depth is given.
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
    """Say which files can be reached, and how paths are written."""


Request: TypeAlias = (
    LsParams
    | ReadFileParams
    | WriteFileParams
    | EditFileParams
    | CountedEditParams
    | GlobParams
    | GrepParams
    | RmParams
    | ApplyPatchParams
    | InsertTextParams
    | MoveParams
    | MkdirParams
    | StatParams
    | TreeParams
    | ReadManyParams
    | WorkspaceParams
)
"""Anything that can be asked of files."""


@dataclass(frozen=True, slots=True)
class ShellExecuteParams:
    """Run a program.

    Args:
        command: The program and its arguments, one item each, for example
            ["python", "-m", "pytest", "-q"]. No shell reads it; for pipes, patterns and && run
            one: ["sh", "-c", "grep -c def *.py | sort"].
        cwd: The directory to run it in; the top of the workspace if left out.
        env: Environment variables to set.
        stdin: What the program can read; nothing if left out.
        timeout_seconds: After how many seconds it is stopped, from 1 to 120.
        capture_output: Whether its output is returned.
    """

    command: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: str | None = None
    timeout_seconds: float = 30
    capture_output: bool = True


@dataclass(frozen=True, slots=True)
class BashParams:
    """Run a line, or a script, in a shell: bash, or sh where there is no bash.

    Args:
        command: The line.
        timeout: After how many milliseconds it is stopped; as late as allowed if left out.
        cwd: The directory to run it in; the top of the workspace if left out.
        max_output: How many bytes of each stream to return at most.
    """

    command: str
    timeout: int | None = None
    cwd: str | None = None
    max_output: int | None = None
