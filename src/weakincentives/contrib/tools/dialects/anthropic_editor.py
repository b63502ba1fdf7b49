"""The dialect `anthropic-editor`: the text editor tool of Anthropic's API.

Its commands are those of the editor, and `delete` and `rename`, which Claude knows from
the memory tool.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.dialects.shared import (
    first_line,
    is_page,
    last_line,
    lines_before,
    one_edit,
    page,
)
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    InsertTextParams,
    LsParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import ToolSpec
from weakincentives.errors import ToolValidationError

Command = Literal["view", "create", "str_replace", "insert", "delete", "rename"]


@dataclass(frozen=True, slots=True)
class EditorCall:
    """Look at files and change them.

    Args:
        command: What to do.
        path: The file or directory.
        view_range: For view: the first and the last line (of a directory: entry) to show, counted
            from 1; -1 as the last means to the end.
        file_text: For create: the text of the new file.
        old_str: For str_replace: the text to replace; it must be in the file exactly once.
        new_str: For str_replace: the text to put in its place; nothing if left out.
        insert_line: For insert: the line after which the text goes, counted from 1; 0 puts it at
            the beginning.
        insert_text: For insert: the text.
        new_path: For rename: where the file or directory is to be; nothing may be there.
    """

    command: Command
    path: str
    view_range: tuple[int, ...] | None = None
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = None
    insert_text: str | None = None
    new_path: str | None = None


_EDITOR = """\
Look at files and change them, by command:
- view shows a file, 2000 lines at a time, each with its number before it, or lists a directory. \
view_range [first, last] asks for some of the lines; they count from 1, and [100, -1] goes on to \
the end.
- create makes a new file with file_text, and the directories on the way to it. It does not \
replace a file that exists. At most 48000 characters in one call.
- str_replace puts new_str in the place of old_str, which must be in the file exactly once: quote \
it as the file has it, without line numbers, with enough lines around it. Small slips in white \
space and quotation marks are forgiven where the place is clear, and told.
- insert puts insert_text after the line insert_line, counted from 1; 0 is before the first line.
- delete removes a file, or a directory with everything in it.
- rename moves a file or directory to new_path.
View a file before you change it. A change is answered with its diff."""


def _view(params: EditorCall, context: HandlerContext) -> ReadFileParams | LsParams:
    first, last = _range(params)
    if _is_directory(context, params.path):
        return LsParams(params.path, offset=lines_before(first))
    return page(params.path, first, last)


def _range(params: EditorCall) -> tuple[int | None, int | None]:
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
        return False  # the tool that reads says what is wrong with it


def _create(params: EditorCall, context: HandlerContext) -> WriteFileParams:
    return WriteFileParams(params.path, _needed(params, "file_text"))


def _replace(params: EditorCall, context: HandlerContext) -> EditFileParams:
    return EditFileParams(params.path, _needed(params, "old_str"), params.new_str or "")


def _insert(params: EditorCall, context: HandlerContext) -> InsertTextParams:
    if params.insert_line is None:
        raise ToolValidationError("insert needs 'insert_line', the line after which the text goes")
    # earlier versions of the tool called the text new_str, and models remember
    text = params.new_str if params.insert_text is None else params.insert_text
    if text is None:
        raise ToolValidationError("insert needs 'insert_text'")
    return InsertTextParams(params.path, params.insert_line, text)


def _delete(params: EditorCall, context: HandlerContext) -> RmParams:
    return RmParams(params.path)


def _rename(params: EditorCall, context: HandlerContext) -> MoveParams:
    return MoveParams(params.path, _needed(params, "new_path"))


_COMMANDS: Mapping[Command, Callable[[EditorCall, HandlerContext], object]] = {
    "view": _view,
    "create": _create,
    "str_replace": _replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}


def _understood(params: EditorCall, context: HandlerContext) -> object:
    return _COMMANDS[params.command](params, context)


def _needed(params: EditorCall, name: str) -> str:
    value: str | None = getattr(params, name)
    if value is None:
        raise ToolValidationError(f"{params.command} needs {name!r}")
    return value


def _spelled(request: object) -> EditorCall | None:
    match request:
        case LsParams(path=path, exclude=(), offset=offset):
            lines = (offset + 1, -1) if offset else None
            return EditorCall("view", path, view_range=lines)
        case ReadFileParams():
            return _spelled_page(request)
        case WriteFileParams(file_path=path, content=text, mode="create", encoding="utf-8"):
            return EditorCall("create", path, file_text=text)
        case EditFileParams():
            return _spelled_edit(request)
        case InsertTextParams(file_path=path, line=line, text=text):
            return EditorCall("insert", path, insert_line=line, insert_text=text)
        case RmParams(path=path):
            return EditorCall("delete", path)
        case MoveParams(source=source, destination=destination):
            return EditorCall("rename", source, new_path=destination)
        case _:
            return None


def _spelled_page(request: ReadFileParams) -> EditorCall | None:
    if not is_page(request):
        return None
    first, last = first_line(request), last_line(request)
    if first is None and last is None:
        return EditorCall("view", request.file_path)
    lines = (first or 1, -1 if last is None else last)
    return EditorCall("view", request.file_path, view_range=lines)


def _spelled_edit(request: EditFileParams) -> EditorCall | None:
    edit = one_edit(request)
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
            ReadFileParams,
            LsParams,
            WriteFileParams,
            EditFileParams,
            InsertTextParams,
            RmParams,
            MoveParams,
        ),
        decode=_understood,
        encode=_spelled,
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
