"""Jupyter notebooks as pages of cells, with their shortened output."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from weakincentives.characters import strip_escapes
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import bounded_result, format_size, hint
from weakincentives.contrib.tools.handlers.source import (
    FileSource,
    ReadResult,
    past_end_error,
)
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.contrib.tools.results import ReadFileResult

MAX_NOTEBOOK = 16 * 1024 * 1024
"""Largest notebook, in bytes, that is shown as cells; a larger one is shown as text."""
_MAX_OUTPUT_LINES = 20
_MAX_OUTPUT = 2_000
_MARGIN = 300
_CellText = str | list[str]


@dataclass(frozen=True, slots=True)
class _CellOutput:
    output_type: str = ""
    text: _CellText = ""
    data: Mapping[str, object] = field(default_factory=dict[str, object])
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class _Cell:
    cell_type: str
    source: _CellText = ""
    outputs: list[_CellOutput] = field(default_factory=list[_CellOutput])
    execution_count: int | None = None


@dataclass(frozen=True, slots=True)
class Notebook:
    """The cells of a notebook; everything else in the file is ignored."""

    cells: list[_Cell]


def parse_notebook(data: bytes) -> Notebook | None:
    """Return the notebook in the bytes of a file; None if they are not one."""
    try:
        return msgspec.json.decode(data, type=Notebook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def render_notebook(file: FileSource, notebook: Notebook) -> ReadResult:
    """Return a page of cells."""
    context, page = file.context, file.page
    total = len(notebook.cells)
    if total and page.first >= total:
        raise past_end_error(file, total, "cell", ReadFileParams(file.path))
    budget = context.settings.budget
    room = max(budget - min(_MARGIN + 2 * len(file.name), budget // 2), 1)
    wanted = notebook.cells[page.first : page.first + page.clamp(total)]
    call = context.dialect.format_call(ReadFileParams(file.path, view="text"))
    texts = _fill_page(_render_cells(wanted, page.first), room, hint("; to see all of it:", call))
    after = page.first + len(texts)
    content = "\n\n".join(texts)
    value = file.page_value(content, len(texts), total)
    which = f"cells {page.first + 1} to {after} of {total}" if texts else "no cells"
    foot = _render_foot(file, context, value)
    parts = [f"{file.name}: notebook, {which}", content]
    return bounded_result(context, parts, value, foot)


def _render_foot(file: FileSource, context: HandlerContext, page: ReadFileResult) -> str:
    lines: list[str] = []
    raw_view = context.dialect.format_call(ReadFileParams(file.path, view="text"))
    if raw_view is not None:
        lines.append(
            f"[the file stores cells as JSON; before you edit one, read it with: {raw_view}]"
        )
    if page.next_offset is not None:
        call = context.dialect.format_call(ReadFileParams(file.path, offset=page.next_offset))
        lines.append("[truncated" + hint("; to continue:", call) + "]")
    return "\n".join(lines)


def _fill_page(texts: Iterator[str], room: int, advice: str) -> list[str]:
    """Return as many cells as fit; the first one is cut if it is too long."""
    kept: list[str] = []
    for text in texts:
        if not kept and len(text) > room:
            note = f"\n[{len(text) - room:,} more characters{advice}]"
            return [text[: max(room - len(note), 0)] + note]
        room -= len(text) + 2
        if kept and room < 0:
            break
        kept.append(text)
    return kept


def _render_cells(cells: Sequence[_Cell], first: int) -> Iterator[str]:
    for number, cell in enumerate(cells, first + 1):
        run = "" if cell.execution_count is None else f", run {cell.execution_count}"
        lines = [f"--- cell {number} ({cell.cell_type}{run}) ---", _join_text(cell.source)]
        for output in cell.outputs:
            lines += ["--- output ---", *_render_output(output)]
        yield "\n".join(line for line in lines if line)


def _render_output(output: _CellOutput) -> Iterator[str]:
    if output.ename:
        trace = strip_escapes("\n".join(output.traceback))
        yield _shorten(trace or f"{output.ename}: {output.evalue}")
    yield _shorten(_join_text(output.text))
    plain = output.data.get("text/plain")
    yield _shorten(_join_text(plain))
    for kind, value in output.data.items():
        if kind != "text/plain":
            yield f"[{kind}, {format_size(len(_join_text(value)))}, not shown]"


def _join_text(text: object) -> str:
    """Return text that is stored as one string or as a list of lines."""
    if isinstance(text, str):
        return text.rstrip("\n")
    try:
        return "".join(msgspec.convert(text, list[str])).rstrip("\n")
    except msgspec.ValidationError:
        return "" if text is None else str(text)


def _shorten(text: str) -> str:
    """Return the beginning and the end of a long output."""
    text = strip_escapes(text)
    lines = text.split("\n")
    if len(lines) > _MAX_OUTPUT_LINES:
        half = _MAX_OUTPUT_LINES // 2
        omitted = f"[... {len(lines) - 2 * half:,} more lines]"
        text = "\n".join([*lines[:half], omitted, *lines[-half:]])
    if len(text) > _MAX_OUTPUT:
        text = f"{text[:_MAX_OUTPUT]} [... {len(text) - _MAX_OUTPUT:,} more characters]"
    return text
