"""read_file: a file as a model can use it, whatever is in it."""

from dataclasses import replace

from weakincentives.contrib.tools.filesystem.dumps import show_base64, show_head, show_hex
from weakincentives.contrib.tools.filesystem.encoding import UNKNOWN, Encoding, encoding_of
from weakincentives.contrib.tools.filesystem.media import picture_of, show_picture
from weakincentives.contrib.tools.filesystem.notebooks import (
    MAX_NOTEBOOK,
    notebook_of,
    show_notebook,
)
from weakincentives.contrib.tools.filesystem.opened import OpenedFile, Part, open_file, part_of
from weakincentives.contrib.tools.filesystem.text_pages import TextFile, decoded_file, show_text
from weakincentives.contrib.tools.filesystem.wording import counted, named
from weakincentives.contrib.tools.requests import ReadFileParams, ReadManyParams
from weakincentives.contrib.tools.results import ReadFileResult, ReadManyResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.prompt import ToolResult

_MAX_DECODED = 4 * 1024 * 1024  # bytes of a file that has to be decoded as a whole
_MOST_FILES = 50


def read_file(request: ReadFileParams, bench: Workbench) -> ToolResult[ReadFileResult]:
    """Return a page of a file.

    Raises:
        OSError: It cannot be read; the text says what to do instead.
        ToolValidationError: The page cannot be.
    """
    part = part_of(request)
    file = open_file(bench, bench.path(request.file_path))
    if request.view == "hex" and file.size:
        return show_hex(file, part, bench)
    if request.view == "base64" and file.size:
        return show_base64(file, part, bench)
    if request.view == "text" or not file.size:
        return _show_as_text(file, part, bench)
    return _show(file, part, bench)


def read_many(request: ReadManyParams, bench: Workbench) -> ToolResult[ReadManyResult]:
    """Return the first pages of several files; those that cannot be read have an error.

    Raises:
        ToolValidationError: There are none, or too many.
    """
    paths = request.file_paths
    if not 0 < len(paths) <= _MOST_FILES:
        raise ToolValidationError(f"file_paths must name 1 to {_MOST_FILES} files: {len(paths)}")
    budget = bench.settings.budget
    share = (budget - sum(len(named(path)) + 20 for path in paths)) // len(paths)
    small = replace(bench, settings=replace(bench.settings, max_characters=max(share, 1)))
    files: list[ReadFileResult] = []
    errors: list[str] = []
    texts: list[str] = []
    for path in paths:
        try:
            result = read_file(ReadFileParams(path), small)
            texts.append(result.message)
            files += [] if result.value is None else [result.value]
        except (OSError, ValueError) as error:
            errors.append(f"{named(path)}: {error}")
            texts.append(errors[-1][: max(share, 1)])
    head = f"{counted(len(files), 'file')} read" + (f", {len(errors)} not" if errors else "")
    message = "\n\n".join([head, *texts])[:budget]
    return ToolResult(message, ReadManyResult(tuple(files), tuple(errors)), bool(files), True)


def _show(file: OpenedFile, part: Part, bench: Workbench) -> ToolResult[ReadFileResult]:
    """Return what suits the bytes of a file best."""
    picture = picture_of(file.head)
    if picture is not None:
        return show_picture(file, picture, bench)
    if file.path.endswith(".ipynb") and file.size <= MAX_NOTEBOOK:
        notebook = notebook_of(file.content(bench).read(0, file.size))
        if notebook is not None:
            return show_notebook(file, notebook, part, bench)
    encoding = encoding_of(file.head, whole=file.whole)
    if encoding.name is None or (encoding.wide and file.size > _MAX_DECODED):
        return show_head(file, part, bench)
    return _show_encoded(file, encoding, part, bench)


def _show_as_text(file: OpenedFile, part: Part, bench: Workbench) -> ToolResult[ReadFileResult]:
    """Return text as it was asked for, even if it is none."""
    encoding = encoding_of(file.head, whole=file.whole)
    if encoding.name is None or (encoding.wide and file.size > _MAX_DECODED):
        source = TextFile(file, file.content(bench), UNKNOWN, view="text")
        return show_text(source, part, bench)
    return _show_encoded(file, encoding, part, bench)


def _show_encoded(
    file: OpenedFile, encoding: Encoding, part: Part, bench: Workbench
) -> ToolResult[ReadFileResult]:
    if encoding.wide:
        data = file.content(bench).read(0, file.size)
        return show_text(decoded_file(file, data, encoding), part, bench)
    return show_text(TextFile(file, file.content(bench), encoding), part, bench)
