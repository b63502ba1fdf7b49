"""The `openai` dialect: `apply_patch` and the reading tools of Codex, with their schemas."""

from dataclasses import dataclass
from typing import Any

from weakincentives.contrib.tools.context import ToolSpec
from weakincentives.contrib.tools.dialects import shared
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    BashParams,
    EditFileParams,
    GrepParams,
    LsParams,
    MoveParams,
    RmParams,
    TreeParams,
    WriteFileParams,
)


@dataclass(frozen=True, slots=True)
class PatchCall:
    """Change files with a patch.

    Args:
        input: The whole patch, from "*** Begin Patch" to "*** End Patch".
    """

    input: str


@dataclass(frozen=True, slots=True)
class ReadFileCall:
    """Read a file.

    Args:
        file_path: The file.
        offset: The first line to return, counted from 1.
        limit: The number of lines to return.
    """

    file_path: str
    offset: int = 1
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class ListDirCall:
    """List a directory.

    Args:
        dir_path: The directory; "." is the workspace root.
        offset: The first entry to return, counted from 1.
        limit: The number of entries to return.
        depth: The number of levels to show; 1 for the directory alone.
    """

    dir_path: str = "."
    offset: int = 1
    limit: int | None = None
    depth: int = 2


@dataclass(frozen=True, slots=True)
class GrepFilesCall:
    """Find files by their contents.

    Args:
        pattern: The regular expression.
        include: Search only files that match, such as "*.rs" or "*.{ts,tsx}".
        path: The directory or file to search.
        limit: The maximum number of paths to return.
    """

    pattern: str
    include: str | None = None
    path: str | None = None
    limit: int | None = None


_PATCH = """\
Change files with one patch. It is applied completely, or not at all if any part does not match.

*** Begin Patch
*** Add File: docs/new.md
+every line of a new file starts with a plus
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet():
     name = "you"
-    print("Hi")
+    print("Hello")
     return name
*** Delete File: src/old.py
*** End Patch

Each file is added, updated or deleted; "*** Move to:" below an update also renames the file. In \
an update, give about three lines of context around each change, exactly as in the file: " " \
before unchanged lines, "-" before removed lines, "+" before added lines. If the lines occur more \
than once, add "@@" with a line above the change, such as its class or function; "*** End of \
File" marks a change at the end. Do not use line numbers. A new file has at most 48000 \
characters."""

_LIST = """\
List a directory and its subdirectories: directories first, then files with their sizes; up to \
1000 entries per call. For the rest, set offset."""

_GREP = """\
Find the files with a line that matches a regular expression (RE2 syntax: no lookaround, no \
backreferences); returns their paths. Skips binary files and files ignored by .gitignore."""


def _encode_patch(request: object) -> PatchCall | None:
    match request:
        case ApplyPatchParams(patch=patch, dry_run=False):
            return PatchCall(patch)
        case WriteFileParams(file_path=path, content=text, mode="create", encoding="utf-8"):
            return PatchCall(_format_addition(path, text))
        case MoveParams(source=source, destination=destination):
            return _format_patch(f"*** Update File: {source}", f"*** Move to: {destination}")
        case RmParams(path=path):
            return _format_patch(f"*** Delete File: {path}")
        case _:
            return None


def _format_addition(path: str, text: str) -> str:
    """Return the patch that adds a file; a unified diff if the file lacks a final newline."""
    lines = text.split("\n")
    if not lines[-1]:
        return _format_patch(f"*** Add File: {path}", *(f"+{line}" for line in lines[:-1])).input
    head = ("--- /dev/null", f"+++ b/{path}", f"@@ -0,0 +1,{len(lines)} @@")
    body = "\n".join(f"+{line}" for line in lines)
    return "\n".join((*head, body, "\\ No newline at end of file", ""))


def _format_patch(*lines: str) -> PatchCall:
    return PatchCall("\n".join(("*** Begin Patch", *lines, "*** End Patch", "")))


def _decode_list(params: ListDirCall, _: object) -> LsParams | TreeParams:
    offset = shared.line_offset(params.offset)
    if params.depth == 1 and params.limit is None:
        return LsParams(params.dir_path, offset=offset)
    return TreeParams(params.dir_path, depth=params.depth, offset=offset, limit=params.limit)


def _encode_list(request: LsParams | TreeParams) -> ListDirCall | None:
    if request.exclude:
        return None
    if isinstance(request, LsParams):
        return ListDirCall(request.path, request.offset + 1, depth=1)
    if request.depth is None or (request.depth == 1 and request.limit is None):
        return None
    return ListDirCall(request.path, request.offset + 1, request.limit, request.depth)


OPENAI: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="apply_patch",
        description=_PATCH,
        params=PatchCall,
        requests=(ApplyPatchParams, EditFileParams, WriteFileParams, RmParams, MoveParams),
        decode=lambda params, _: ApplyPatchParams(params.input),
        encode=_encode_patch,
        aliases={"patch": "input", "diff": "input"},
    ),
    shared.page_tool(
        "read_file",
        f"{shared.READ_PAGES} offset.",
        ReadFileCall,
        aliases={"path": "file_path"},
        superseded_by=(BashParams,),
    ),
    ToolSpec(
        name="list_dir",
        description=_LIST,
        params=ListDirCall,
        requests=(LsParams, TreeParams),
        decode=_decode_list,
        encode=_encode_list,
        aliases={"path": "dir_path"},
        read_only=True,
        superseded_by=(BashParams,),
    ),
    shared.mapped(
        "grep_files",
        _GREP,
        shared.FieldMapping(
            GrepFilesCall,
            GrepParams,
            {"include": "glob", "limit": "head_limit"},
            {"output_mode": "files_with_matches"},
        ),
        aliases={"glob": "include"},
        read_only=True,
        superseded_by=(BashParams,),
    ),
)
