"""The dialect `openai`: patches, as Codex writes them, and its tools for reading."""

from dataclasses import dataclass
from typing import Any

from weakincentives.contrib.tools.dialects.shared import (
    first_line,
    is_page,
    lines_before,
    says_only,
)
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    BashParams,
    EditFileParams,
    GrepParams,
    LsParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    TreeParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class PatchCall:
    """Change files by a patch.

    Args:
        input: The whole patch, from "*** Begin Patch" to "*** End Patch".
    """

    input: str


@dataclass(frozen=True, slots=True)
class ReadCall:
    """Read a file.

    Args:
        file_path: The file.
        offset: The line to begin with, counted from 1.
        limit: How many lines to return; 2000 if left out.
    """

    file_path: str
    offset: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class ListCall:
    """List a directory.

    Args:
        dir_path: The directory; "." is the top of the workspace.
        offset: The entry to begin with, counted from 1.
        limit: How many entries to return; 1000 if left out.
        depth: How many levels to show; 1 for the directory alone.
    """

    dir_path: str = "."
    offset: int = 1
    limit: int | None = None
    depth: int = 2


@dataclass(frozen=True, slots=True)
class GrepFilesCall:
    """Find files by what is in them.

    Args:
        pattern: A regular expression (RE2: no look-around, no back references).
        include: Search only files whose name matches, for example "*.rs" or "*.{ts,tsx}".
        path: The directory or file to search; the whole workspace if left out.
        limit: How many paths to return at most.
    """

    pattern: str
    include: str | None = None
    path: str | None = None
    limit: int | None = None


_PATCH = """\
Change files by one patch: all of it, or nothing if any part does not fit.

*** Begin Patch
*** Add File: docs/new.md
+every line of a new file begins with a plus
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet():
     name = "you"
-    print("Hi")
+    print("Hello")
     return name
*** Delete File: src/old.py
*** End Patch

Each file is added, updated or deleted; "*** Move to:" after an update renames the file. An \
update needs about three lines around each change, as the file has them: " " before lines that \
stay, "-" before those that go, "+" before those that come. "@@" with a line above the change, for \
example a class or a function, tells like places apart; "*** End of File" ties a change to the \
end. There are no line numbers.
Paths are relative to the workspace. A new file has at most 48000 characters. Unified diffs are \
taken too.
Use $ReadFileParams first, so that you quote what is there."""

_READ = """\
Read a file: up to 2000 lines, each with its number before it; the numbers, and offset, count \
from 1.
Page through a long file with offset and limit."""

_LIST = """\
List a directory and what is in its directories, two levels unless depth says otherwise: \
directories first, then files with their sizes.
1000 entries are shown at a time; offset, which counts from 1, leads to the others."""

_GREP = """\
Find the files that have a line which a regular expression (RE2) matches, and return their paths.
Binary files, and files that .gitignore leaves out, are not searched.
$ReadFileParams shows what is in a file."""


def _patched(request: object) -> PatchCall | None:
    match request:
        case ApplyPatchParams(patch=patch, dry_run=False):
            return PatchCall(patch)
        case WriteFileParams(file_path=path, content=text, mode="create", encoding="utf-8"):
            return PatchCall(_added(path, text))
        case MoveParams(source=source, destination=destination):
            return _patch(f"*** Update File: {source}", f"*** Move to: {destination}")
        case RmParams(path=path):
            return _patch(f"*** Delete File: {path}")
        case _:
            return None


def _added(path: str, text: str) -> str:
    """Return the patch that adds a file; only a unified diff says that no newline ends it."""
    lines = text.split("\n")
    if not lines[-1]:
        return _patch(f"*** Add File: {path}", *(f"+{line}" for line in lines[:-1])).input
    head = ("--- /dev/null", f"+++ b/{path}", f"@@ -0,0 +1,{len(lines)} @@")
    body = "\n".join(f"+{line}" for line in lines)
    return "\n".join((*head, body, "\\ No newline at end of file", ""))


def _patch(*lines: str) -> PatchCall:
    return PatchCall("\n".join(("*** Begin Patch", *lines, "*** End Patch", "")))


def _reads(params: ReadCall, context: object) -> ReadFileParams:
    return ReadFileParams(params.file_path, lines_before(params.offset), params.limit)


def _read(request: ReadFileParams) -> ReadCall | None:
    if not is_page(request):
        return None
    return ReadCall(request.file_path, first_line(request) or 1, request.limit)


def _lists(params: ListCall, context: object) -> LsParams | TreeParams:
    before = lines_before(params.offset)
    if params.depth == 1 and params.limit is None:
        return LsParams(params.dir_path, offset=before)
    return TreeParams(params.dir_path, depth=params.depth, offset=before, limit=params.limit)


def _list(request: LsParams | TreeParams) -> ListCall | None:
    if request.exclude:
        return None
    if isinstance(request, LsParams):
        return ListCall(request.path, request.offset + 1, depth=1)
    if request.depth is None or (request.depth == 1 and request.limit is None):
        return None
    return ListCall(request.path, request.offset + 1, request.limit, request.depth)


def _greps(params: GrepFilesCall, context: object) -> GrepParams:
    return GrepParams(
        params.pattern,
        params.path or ".",
        params.include,
        output_mode="files_with_matches",
        head_limit=params.limit,
    )


def _grep(request: GrepParams) -> GrepFilesCall | None:
    sayable = ("pattern", "path", "glob", "output_mode", "head_limit")
    if request.output_mode != "files_with_matches" or not says_only(request, *sayable):
        return None
    path = None if request.path == "." else request.path
    return GrepFilesCall(request.pattern, request.glob, path, request.head_limit)


OPENAI: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="apply_patch",
        description=_PATCH,
        params=PatchCall,
        requests=(ApplyPatchParams, EditFileParams, WriteFileParams, RmParams, MoveParams),
        decode=lambda params, context: ApplyPatchParams(params.input),
        encode=_patched,
        aliases={"patch": "input", "diff": "input"},
    ),
    ToolSpec(
        name="read_file",
        description=_READ,
        params=ReadCall,
        requests=(ReadFileParams,),
        decode=_reads,
        encode=_read,
        aliases={"path": "file_path"},
        read_only=True,
        superseded_by=(BashParams,),
    ),
    ToolSpec(
        name="list_dir",
        description=_LIST,
        params=ListCall,
        requests=(LsParams, TreeParams),
        decode=_lists,
        encode=_list,
        aliases={"path": "dir_path"},
        read_only=True,
        superseded_by=(BashParams,),
    ),
    ToolSpec(
        name="grep_files",
        description=_GREP,
        params=GrepFilesCall,
        requests=(GrepParams,),
        decode=_greps,
        encode=_grep,
        aliases={"glob": "include"},
        read_only=True,
        superseded_by=(BashParams,),
    ),
)
