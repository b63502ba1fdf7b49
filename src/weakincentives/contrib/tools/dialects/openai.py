"""The `openai` dialect: `apply_patch` and the reading tools of Codex, with their schemas."""

from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import ToolSpec
from weakincentives.contrib.tools.dialects import shared

PatchCall: type[Any] = shared.params(
    input=(str, 'The whole patch, from "*** Begin Patch" to "*** End Patch".')
)
ReadFileCall: type[Any] = shared.params(
    file_path=(str, "The file."),
    offset=(int, "The first line to return, counted from 1.", 1),
    limit=(int | None, "The number of lines to return."),
)
ListDirCall: type[Any] = shared.params(
    dir_path=(str, 'The directory; "." is the workspace root.', "."),
    offset=(int, "The first entry to return, counted from 1.", 1),
    limit=(int | None, "The number of entries to return."),
    depth=(int, "The number of levels to show; 1 for the directory alone.", 2),
)
GrepFilesCall: type[Any] = shared.params(
    pattern=(str, "The regular expression."),
    include=(str | None, 'Search only files that match, such as "*.rs" or "*.{ts,tsx}".'),
    path=(str | None, "The directory or file to search."),
    limit=(int | None, "The maximum number of paths to return."),
)


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


def _encode_patch(request: object) -> Any:
    match request:
        case requests.ApplyPatchParams(patch=patch, dry_run=False):
            return PatchCall(patch)
        case requests.WriteFileParams(
            file_path=path, content=text, mode="create", encoding="utf-8"
        ):
            return PatchCall(_format_addition(path, text))
        case requests.MoveParams(source=source, destination=destination):
            return _format_patch(f"*** Update File: {source}", f"*** Move to: {destination}")
        case requests.RmParams(path=path):
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


def _format_patch(*lines: str) -> Any:
    return PatchCall("\n".join(("*** Begin Patch", *lines, "*** End Patch", "")))


def _decode_list(params: Any, _: object) -> requests.LsParams | requests.TreeParams:
    offset = shared.line_offset(params.offset)
    if params.depth == 1 and params.limit is None:
        return requests.LsParams(params.dir_path, offset=offset)
    return requests.TreeParams(
        params.dir_path, depth=params.depth, offset=offset, limit=params.limit
    )


def _encode_list(request: requests.LsParams | requests.TreeParams) -> Any:
    if request.exclude:
        return None
    if isinstance(request, requests.LsParams):
        return ListDirCall(request.path, request.offset + 1, depth=1)
    if request.depth is None or (request.depth == 1 and request.limit is None):
        return None
    return ListDirCall(request.path, request.offset + 1, request.limit, request.depth)


OPENAI: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="apply_patch",
        description=_PATCH,
        params=PatchCall,
        requests=(
            requests.ApplyPatchParams,
            requests.EditFileParams,
            requests.WriteFileParams,
            requests.RmParams,
            requests.MoveParams,
        ),
        decode=lambda params, _: requests.ApplyPatchParams(params.input),
        encode=_encode_patch,
        aliases={"patch": "input", "diff": "input"},
    ),
    shared.page_tool(
        "read_file",
        f"{shared.READ_PAGES} offset.",
        ReadFileCall,
        aliases={"path": "file_path"},
        superseded_by=(requests.BashParams,),
    ),
    ToolSpec(
        name="list_dir",
        description=_LIST,
        params=ListDirCall,
        requests=(requests.LsParams, requests.TreeParams),
        decode=_decode_list,
        encode=_encode_list,
        aliases={"path": "dir_path"},
        read_only=True,
        superseded_by=(requests.BashParams,),
    ),
    shared.mapped(
        "grep_files",
        _GREP,
        shared.FieldMapping(
            GrepFilesCall,
            requests.GrepParams,
            {"include": "glob", "limit": "head_limit"},
            {"output_mode": "files_with_matches"},
        ),
        aliases={"glob": "include"},
        read_only=True,
        superseded_by=(requests.BashParams,),
    ),
)
