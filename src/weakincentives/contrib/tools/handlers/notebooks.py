"""Notebooks as cells: what each says and, shortened, what it printed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import fit, hint, size_text
from weakincentives.contrib.tools.handlers.source import FileSource, Part, past_the_end
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.contrib.tools.results import ReadFileResult
from weakincentives.prompt import ToolResult

MAX_NOTEBOOK = 16 * 1024 * 1024
"""Bytes of a notebook that is shown as cells; a larger one is shown as text."""
_MAX_OUTPUT_LINES = 20
_MAX_OUTPUT = 2_000
_MARGIN = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_Text = str | list[str]


@dataclass(frozen=True, slots=True)
class _Output:
    output_type: str = ""
    text: _Text = ""
    data: Mapping[str, object] = field(default_factory=dict[str, object])
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class _Cell:
    cell_type: str
    source: _Text = ""
    outputs: list[_Output] = field(default_factory=list[_Output])
    execution_count: int | None = None


@dataclass(frozen=True, slots=True)
class Notebook:
    """The cells of a notebook; what else it has is not read."""

    cells: list[_Cell]


def notebook_of(data: bytes) -> Notebook | None:
    """Return the notebook that the bytes of a file are; None if they are none."""
    try:
        return msgspec.json.decode(data, type=Notebook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def show_notebook(
    file: FileSource, notebook: Notebook, part: Part, context: HandlerContext
) -> ToolResult[ReadFileResult]:
    """Return a page of cells."""
    total = len(notebook.cells)
    if total and part.first >= total:
        raise past_the_end(file, context, part, total, "cell", ReadFileParams(file.path))
    budget = context.settings.budget
    room = max(budget - min(_MARGIN + 2 * len(file.name), budget // 2), 1)
    wanted = notebook.cells[part.first : part.first + part.capped(total)]
    call = context.dialect.format_call(ReadFileParams(file.path, view="text"))
    texts = _filling(_texts(wanted, part.first), room, hint("; see", call))
    after = part.first + len(texts)
    content = "\n\n".join(texts)
    value = ReadFileResult(
        path=file.path,
        content=content,
        offset=part.first,
        shown=len(texts),
        total=total,
        next_offset=after if after < total else None,
        size_bytes=file.size,
    )
    which = f"cells {part.first + 1} to {after} of {total}" if texts else "no cells"
    foot = _foot(file, context, value)
    parts = [f"{file.name}: notebook, {which}", content]
    return ToolResult(fit(parts, foot, budget), value, True, True)


def _foot(file: FileSource, context: HandlerContext, page: ReadFileResult) -> str:
    lines: list[str] = []
    stored = context.dialect.format_call(ReadFileParams(file.path, view="text"))
    if stored is not None:
        lines.append(f"[cells are JSON in the file; before you change one: {stored}]")
    if page.next_offset is not None:
        call = context.dialect.format_call(ReadFileParams(file.path, offset=page.next_offset))
        lines.append("[truncated" + hint("; continue with", call) + "]")
    return "\n".join(lines)


def _filling(texts: Iterator[str], room: int, advice: str) -> list[str]:
    """Return cells until they fill a page; the first one is cut if it is larger than that."""
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


def _texts(cells: Sequence[_Cell], first: int) -> Iterator[str]:
    for number, cell in enumerate(cells, first + 1):
        ran = "" if cell.execution_count is None else f", run {cell.execution_count}"
        lines = [f"--- cell {number} ({cell.cell_type}{ran}) ---", _joined(cell.source)]
        for output in cell.outputs:
            lines += ["--- output ---", *_output_lines(output)]
        yield "\n".join(line for line in lines if line)


def _output_lines(output: _Output) -> Iterator[str]:
    if output.ename:
        trace = _COLOUR.sub("", "\n".join(output.traceback))
        yield _shortened(trace or f"{output.ename}: {output.evalue}")
    yield _shortened(_joined(output.text))
    plain = output.data.get("text/plain")
    yield _shortened(_joined(plain))
    for kind, value in output.data.items():
        if kind != "text/plain":
            yield f"[{kind}, {size_text(len(_joined(value)))}, not shown]"


def _joined(text: object) -> str:
    """Return text that notebooks store whole or as a list of lines."""
    if isinstance(text, str):
        return text.rstrip("\n")
    try:
        return "".join(msgspec.convert(text, list[str])).rstrip("\n")
    except msgspec.ValidationError:
        return "" if text is None else str(text)


def _shortened(text: str) -> str:
    """Return the beginning and the end of an output."""
    text = _COLOUR.sub("", text)
    lines = text.split("\n")
    if len(lines) > _MAX_OUTPUT_LINES:
        half = _MAX_OUTPUT_LINES // 2
        left_out = f"[... {len(lines) - 2 * half:,} more lines]"
        text = "\n".join([*lines[:half], left_out, *lines[-half:]])
    if len(text) > _MAX_OUTPUT:
        text = f"{text[:_MAX_OUTPUT]} [... {len(text) - _MAX_OUTPUT:,} more characters]"
    return text
