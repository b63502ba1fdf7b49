"""The `anthropic-editor` dialect: the text editor tool of Anthropic's API.

Its commands are those of the editor, plus `delete` and `rename`, which Claude knows from
the memory tool.
"""

from typing import Any, Literal

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext, ToolSpec
from weakincentives.contrib.tools.dialects import shared
from weakincentives.errors import ToolValidationError

Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]
EditorCall: type[Any] = shared.params(
    command=(Command, "The operation."),
    path=(str, "The file or directory."),
    view_range=(
        tuple[int, ...] | None,
        "For view: the first and last line to show, counted from 1; [100, -1] shows everything from"
        " line 100. In a directory it counts entries.",
    ),
    file_text=(str | None, "For create: the complete text."),
    old_str=(str | None, "For str_replace: the text to replace."),
    new_str=(str | None, "For str_replace: the new text; if omitted, the old text is removed."),
    insert_line=(
        int | None,
        "For insert: the line after which to insert, counted from 1; 0 is the start.",
    ),
    insert_text=(str | None, "For insert: the text."),
    new_path=(str | None, "For rename: the new path."),
)


_EDITOR = f"""\
View and change files, by command:
- view shows a file, up to 2000 lines per call, each with its line number, or lists a directory. \
view_range selects lines: [first, last].
- create writes a new file, and its missing parent directories; fails if the file exists. At most \
48000 characters per call.
- str_replace replaces old_str, which must match exactly one place: copy it from the file without \
line numbers, with enough surrounding lines to be unique. {shared.EDIT_TOLERANCE}
- insert adds insert_text after line insert_line; 0 is the start.
- delete deletes a file, or a directory with everything in it.
- rename moves a file or directory to new_path, which must not exist.
Commands that change text return a diff."""


def _decode_view(
    params: Any, context: HandlerContext
) -> requests.ReadFileParams | requests.LsParams:
    first, last = _parse_range(params)
    if _is_directory(context, params.path):
        return requests.LsParams(params.path, offset=shared.line_offset(first))
    return shared.page_request(params.path, first, last)


def _parse_range(params: Any) -> tuple[int | None, int | None]:
    if not params.view_range:
        return None, None
    if len(params.view_range) != 2:
        raise ToolValidationError(
            f"view_range needs the first and the last line: {list(params.view_range)!r}"
        )
    first, last = params.view_range
    return first, None if last == -1 else last


def _is_directory(context: HandlerContext, path: str) -> bool:
    try:
        return context.filesystem.stat(context.resolve_path(path)).is_directory
    except (OSError, ValueError):
        return False  # the read itself reports what is wrong


def _decode_insert(params: Any) -> requests.InsertTextParams:
    if params.insert_line is None:
        raise ToolValidationError("insert needs 'insert_line', the line after which to insert")
    # earlier versions of the tool called it new_str, and models still send that
    text = params.new_str if params.insert_text is None else params.insert_text
    if text is None:
        raise ToolValidationError("insert needs 'insert_text'")
    return requests.InsertTextParams(params.path, params.insert_line, text)


def _decode(params: Any, context: HandlerContext) -> object:
    command: Command = params.command
    match command:
        case "view":
            return _decode_view(params, context)
        case "create":
            return requests.WriteFileParams(params.path, _require(params, "file_text"))
        case "str_replace":
            return requests.EditFileParams(
                params.path, _require(params, "old_str"), params.new_str or ""
            )
        case "insert":
            return _decode_insert(params)
        case "delete":
            return requests.RmParams(params.path)
        case "rename":
            return requests.MoveParams(params.path, _require(params, "new_path"))


def _require(params: Any, name: str) -> str:
    value: str | None = getattr(params, name)
    if value is None:
        raise ToolValidationError(f"{params.command} needs {name!r}")
    return value


def _encode(request: object) -> Any:
    match request:
        case requests.LsParams(path=path, exclude=(), offset=offset):
            lines = (offset + 1, -1) if offset else None
            return EditorCall("view", path, view_range=lines)
        case requests.ReadFileParams():
            return _encode_page(request)
        case requests.WriteFileParams(
            file_path=path, content=text, mode="create", encoding="utf-8"
        ):
            return EditorCall("create", path, file_text=text)
        case requests.EditFileParams():
            return _encode_edit(request)
        case requests.InsertTextParams(file_path=path, line=line, text=text):
            return EditorCall("insert", path, insert_line=line, insert_text=text)
        case requests.RmParams(path=path):
            return EditorCall("delete", path)
        case requests.MoveParams(source=source, destination=destination):
            return EditorCall("rename", source, new_path=destination)
        case _:
            return None


def _encode_page(request: requests.ReadFileParams) -> Any:
    if not shared.is_page(request):
        return None
    first, last = shared.first_line(request), shared.last_line(request)
    if first is None and last is None:
        return EditorCall("view", request.file_path)
    lines = (first or 1, -1 if last is None else last)
    return EditorCall("view", request.file_path, view_range=lines)


def _encode_edit(request: requests.EditFileParams) -> Any:
    edit = shared.single_edit(request)
    if edit is None or edit.replace_all:
        return None
    return EditorCall(
        "str_replace", request.file_path, old_str=edit.old_string, new_str=edit.new_string
    )


ANTHROPIC_EDITOR: tuple[ToolSpec[Any], ...] = (
    ToolSpec(
        name="str_replace_based_edit_tool",
        description=_EDITOR,
        params=EditorCall,
        requests=(
            requests.ReadFileParams,
            requests.LsParams,
            requests.WriteFileParams,
            requests.EditFileParams,
            requests.InsertTextParams,
            requests.RmParams,
            requests.MoveParams,
        ),
        decode=_decode,
        encode=_encode,
        aliases={
            "file_path": "path",
            "old_path": "path",
            "old_string": "old_str",
            "new_string": "new_str",
            "content": "file_text",
        },
        selector="command",
    ),
)
