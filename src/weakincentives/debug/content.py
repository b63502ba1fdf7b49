"""Files, their changes and the conversation as JSON values, always bounded.

The content of a file is text, a picture, a notebook, or bytes. Changes are hunks of highlighted
lines, with their numbers on both sides. The result of a call stands in the conversation where it
was given, with the arguments of the call; Markdown is sent as nodes.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias, cast

from weakincentives.characters import strip_escapes
from weakincentives.debug.highlight import Token, highlight, highlight_output, language_of, path_of
from weakincentives.debug.recording import Recording
from weakincentives.debug.rows import changed_files, create_row
from weakincentives.filesystem import Change, Diff, FileStat, ReadableFilesystem
from weakincentives.filesystem.base import is_binary
from weakincentives.filesystem.diff import changed_blocks, changed_words, hunks, split_lines
from weakincentives.markdown import Node, markdown_nodes
from weakincentives.redaction import mask_values
from weakincentives.runtime.timeline import StepRecord, call_subject, step_command
from weakincentives.serde import SerdeError, decode

Mask: TypeAlias = Callable[[str], str]
"""What is done to a text before it is shown."""
MAX_TEXT = 512 * 1024
"""Bytes of a text file that are shown at once."""
MAX_LINES = 2_000
"""Lines of a text file that are shown at once."""
MAX_LINE = 5_000
"""Characters of a line that are shown."""
_MAX_NOTEBOOK = 8 * 1024 * 1024
_MAX_CELLS = 500
_MAX_OUTPUT = 20_000
_HEX_BYTES = 512
_ROW = 16
MAX_CHANGES = 300
"""Files whose lines are shown; of others, only the path."""
MAX_DIFF_LINES = 5_000
"""Lines in all changes of one answer; what exceeds them is named only."""
_MAX_COMPARED = 2 * 1024 * 1024
_CONTEXT = 3
_HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")
PAGE = 200
"""Messages that are shown at once."""
_ESCAPE = "\x1b"
_MAX_STRING = 100_000
_MAX_CODE = 20_000  # characters of a block that is highlighted
IMAGE_TYPES = {
    ".avif": "image/avif",
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".ico": "image/x-icon",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}
"""Pictures that a browser shows, by suffix."""


def image_type(path: str) -> str | None:
    """Return the media type of a picture by its name, or None."""
    return IMAGE_TYPES.get(PurePosixPath(path).suffix.lower())


def describe_file(
    files: ReadableFilesystem, path: str, *, first: int = 0, mask: Mask = str, colours: bool = True
) -> dict[str, Any]:
    """Return an entry of a workspace, with its content from line `first` on.

    Raises:
        OSError: There is no such entry, or it was not readable.
        ValueError: It is not a path in a workspace.
    """
    found = files.stat(path)
    facts = _describe_entry(found)
    if found.link_target is not None:
        return facts | {"kind": "link", "target": mask(found.link_target)}
    if not found.is_file:
        return facts
    start = files.line_start(path, first).offset if first else 0
    data = files.read_bytes(path, offset=start, limit=MAX_TEXT).content
    picture = image_type(path)
    if picture is not None and picture != IMAGE_TYPES[".svg"]:
        return facts | {"kind": "image", "type": picture}
    if is_binary(data[:8193]):
        return facts | {"kind": "binary", "hex": list(_hex_rows(data[:_HEX_BYTES]))}
    is_whole = start + len(data) >= found.size_bytes
    text = _page_text(data, mask, is_whole=is_whole)
    facts |= _describe_text(path, text, first, colours=colours, is_whole=is_whole)
    if picture is not None:
        facts |= {"kind": "image", "type": picture}
    elif path.endswith(".ipynb") and not first and found.size_bytes <= _MAX_NOTEBOOK:
        cells = _read_notebook(files, path, mask)
        if cells is not None:
            facts |= {"kind": "notebook", "cells": cells}
    return facts


def _describe_entry(found: FileStat) -> dict[str, Any]:
    return {
        "path": found.path,
        "kind": found.kind,
        "size": found.size_bytes,
        "permissions": f"{found.permissions:04o}",
    }


def decode_text(data: bytes) -> str:
    """Return bytes as text; those that are not UTF-8 are replaced."""
    return data.decode("utf-8", "replace")


def shorten_line(text: str) -> str:
    """Return a line that is not too long to show."""
    left = len(text) - MAX_LINE
    return text if left <= 0 else f"{text[:MAX_LINE]} … {left:,} more characters"


def _page_text(data: bytes, mask: Mask, *, is_whole: bool) -> list[str]:
    """Return the lines in the bytes that were read; the last one is whole, if there are several."""
    if not is_whole:
        data = data[: data.rfind(b"\n") + 1] or data
    lines = mask(decode_text(data)).split("\n")
    return lines if lines[-1] else lines[:-1]


def _describe_text(
    path: str, lines: list[str], first: int, *, colours: bool, is_whole: bool
) -> dict[str, Any]:
    text = "".join(f"{shorten_line(each)}\n" for each in lines[:MAX_LINES])
    tokens = highlight(path, text, colours=colours)
    is_complete = is_whole and len(lines) <= MAX_LINES
    return {
        "kind": "text",
        "language": language_of(path),
        "first": first,
        "lines": tokens,
        "next": None if is_complete else first + len(tokens),
    }


def _hex_rows(data: bytes) -> Iterator[tuple[str, str, str]]:
    for offset in range(0, len(data), _ROW):
        row = data[offset : offset + _ROW]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        yield f"{offset:08x}", row.hex(" "), text


def _read_notebook(files: ReadableFilesystem, path: str, mask: Mask) -> list[Any] | None:
    """Return the cells of a Jupyter notebook, or None if it is not one."""
    try:
        data = decode(files.read_bytes(path).content, dict[str, Any])
    except SerdeError:
        return None
    cells = data.get("cells")
    if not isinstance(cells, list):
        return None
    return [
        _describe_cell(cast("dict[str, Any]", each), mask)
        for each in cast("list[Any]", cells)[:_MAX_CELLS]
        if isinstance(each, dict)
    ]


def _describe_cell(cell: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    is_code = cell.get("cell_type") == "code"
    source = mask(_join_lines(cell.get("source")))[:MAX_TEXT]
    outputs = cell.get("outputs")
    listed = cast("list[Any]", outputs) if isinstance(outputs, list) else []
    return {
        "type": "code" if is_code else "text",
        "lines": highlight("cell.py" if is_code else "cell.md", source),
        "outputs": [
            _describe_output(cast("dict[str, Any]", each), mask)
            for each in listed[:50]
            if isinstance(each, dict)
        ],
    }


def _describe_output(output: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    data = output.get("data")
    found = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    for kind in ("image/png", "image/jpeg"):
        if isinstance(found.get(kind), str | list):
            return {"image": f"data:{kind};base64,{''.join(_join_lines(found[kind]).split())}"}
    text = output.get("text") or found.get("text/plain") or output.get("traceback") or ""
    return {"text": mask(_join_lines(text))[:_MAX_OUTPUT]}


def _join_lines(value: object) -> str:
    """Return a text of a notebook, which may be a list of lines."""
    if isinstance(value, list):
        return "".join(str(each) for each in cast("list[Any]", value))
    return value if isinstance(value, str) else ""


def image_data(files: ReadableFilesystem, path: str, limit: int) -> str | None:
    """Return a picture as a `data:` URL; None if it is larger than `limit` bytes."""
    kind = image_type(path)
    found = files.stat(path)
    if kind is None or found.size_bytes > limit:
        return None
    return f"data:{kind};base64,{b64encode(files.read_bytes(path).content).decode()}"


def describe_diff(
    found: Diff,
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    *,
    mask: Mask = str,
    colours: bool = True,
) -> dict[str, Any]:
    """Return the changes with their lines, and the totals."""
    room = MAX_DIFF_LINES
    entries: list[dict[str, Any]] = []
    for change in found.entries:
        if change.is_directory:
            continue
        facts = _facts(change, mask)
        if room > 0 and len(entries) < MAX_CHANGES:
            facts |= _describe_lines(change, before, after, mask, colours=colours)
            length = sum(len(each["lines"]) for each in facts["hunks"])
            room -= length
            if room < 0:
                facts |= {"hunks": [], "omitted": f"{length:,} lines are not shown"}
        else:
            facts |= {"hunks": [], "omitted": "too many changes to show all"}
        entries.append(facts)
    return {
        "changes": entries,
        "insertions": sum(each.get("insertions", 0) for each in entries),
        "deletions": sum(each.get("deletions", 0) for each in entries),
    }


def _facts(change: Change, mask: Mask) -> dict[str, Any]:
    before, after = change.before, change.after
    facts: dict[str, Any] = {
        "path": mask(change.path),
        "kind": change.kind,
        "source": None if change.source is None else mask(change.source),
        "sizes": [None if each is None else each.size_bytes for each in (before, after)],
    }
    if before and after and before.permissions != after.permissions:
        facts["permissions"] = [f"{each.permissions:04o}" for each in (before, after)]
    return facts


def _describe_lines(
    change: Change,
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    mask: Mask,
    *,
    colours: bool,
) -> dict[str, Any]:
    sizes = [each.size_bytes for each in change.sides]
    if max(sizes, default=0) > _MAX_COMPARED:
        return {"hunks": [], "omitted": f"{max(sizes):,} bytes: too large to compare here"}
    old, new = _read(before, change.before), _read(after, change.after)
    if old is None or new is None:
        what = "a picture" if image_type(change.path) else "binary"
        return {"hunks": [], "omitted": what}
    lines, new_lines = (split_lines(mask(decode_text(each)).encode()) for each in (old, new))
    tokens, new_tokens = (
        _tokens(change.path, each, colours=colours) for each in (lines, new_lines)
    )
    blocks = changed_blocks(lines, new_lines)
    return {
        "insertions": sum(each.new_stop - each.new_start for each in blocks),
        "deletions": sum(each.stop - each.start for each in blocks),
        "hunks": [
            _hunk(each, tokens, new_tokens) for each in hunks(lines, new_lines, blocks, _CONTEXT)
        ],
    }


def _tokens(path: str, lines: list[bytes], *, colours: bool) -> list[list[Token]]:
    text = "".join(f"{shorten_line(_strip(each))}\n" for each in lines)
    return highlight(path, text, colours=colours)


def _strip(line: bytes) -> str:
    return line.decode().removesuffix("\n")


def _read(files: ReadableFilesystem, found: FileStat | None) -> bytes | None:
    """Return the text of one side, None if it is binary."""
    if found is None:
        return b""
    if found.link_target is not None:
        return f"-> {found.link_target}\n".encode("utf-8", "replace")
    if not found.is_file:
        return b""
    data = files.read_bytes(found.path).content
    return None if is_binary(data) else data


def _hunk(data: bytes, old: list[list[Token]], new: list[list[Token]]) -> dict[str, Any]:
    header = _HEADER.match(data)
    assert header is not None
    first, new_first = int(header[1]), int(header[3])
    # an empty side is numbered by the line before it
    at = first - (header[2] != b"0")
    new_at = new_first - (header[4] != b"0")
    lines = list(_lines(data[header.end() :], (at, new_at), old, new))
    _mark_changes(lines)
    return {"header": header[0].decode().strip(), "lines": lines}


def _mark_changes(lines: list[dict[str, Any]]) -> None:
    """Mark what changed inside of the lines: where it begins and ends, in pairs."""
    sides: dict[str, list[dict[str, Any]]] = {"-": [], "+": []}
    for line in (*lines, {"sign": ""}):
        if line["sign"] == "\\":
            continue
        if line["sign"] not in sides or (line["sign"] == "-" and sides["+"]):
            texts = (
                ["".join(text for _, text in each["tokens"]) for each in side]
                for side in sides.values()
            )
            for side, found in zip(sides.values(), changed_words(*texts), strict=True):
                for each, spans in zip(side, found, strict=True):
                    each |= {"marks": spans} if spans else {}
                side.clear()
        if line["sign"] in sides:
            sides[line["sign"]].append(line)


def _lines(
    data: bytes, start: tuple[int, int], old: list[list[Token]], new: list[list[Token]]
) -> Iterator[dict[str, Any]]:
    at, new_at = start
    for line in split_lines(data):
        sign = chr(line[0])
        if sign == "\\":
            yield {"sign": sign, "old": None, "new": None, "tokens": [["", _strip(line)]]}
        elif sign == "-":
            at += 1
            yield {"sign": sign, "old": at, "new": None, "tokens": old[at - 1]}
        elif sign == "+":
            new_at += 1
            yield {"sign": sign, "old": None, "new": new_at, "tokens": new[new_at - 1]}
        else:
            at, new_at = at + 1, new_at + 1
            yield {"sign": sign, "old": at, "new": new_at, "tokens": new[new_at - 1]}


def list_messages(recording: Recording, chain: Sequence[int]) -> list[tuple[int, Any]]:
    """Return the conversation after the last step of a chain, each message with its step.

    What happened beside it stands between the messages; without any, all calls of MCP clients do.
    """
    messages = recording.messages(chain[-1])
    owners: list[int] = []
    for number in chain:
        change = recording.step(number).messages
        if change is not None and change.whole:
            owners = [number] * len(cast("Sequence[Any]", change.whole[0]))
        elif change is not None:
            replaced = change.inner is not None
            end = max(change.start + replaced, len(owners) - change.stop)
            owners[change.start : end] = [number] * (replaced + len(change.items))
    found = list(zip(owners, messages, strict=False))
    found += [
        (step.number, describe_beside(step))
        for step in map(recording.step, chain)
        if is_beside(step) and not (step.kind == "tool" and messages)
    ]
    return sorted(found, key=lambda each: each[0])


def is_beside(step: StepRecord) -> bool:
    """Return whether a step is told beside the conversation, or instead of one."""
    is_call = step.kind == "tool" and step.messages is None
    return step.kind in ("test", "files", "context") or step.undoes is not None or is_call


def describe_beside(step: StepRecord) -> dict[str, Any]:
    """Return a step that is not in the conversation as a message in it."""
    details = step.details
    return {
        "role": "tool" if step.kind == "tool" else "note",
        "name": details.get("tool") or step.kind,
        "title": step.title,
        "text": details.get("result_message") or details.get("error") or details.get("text") or "",
        "success": step.success,
    }


def describe_messages(
    recording: Recording,
    found: Sequence[tuple[int, Any]],
    *,
    mask: Mask,
    masks: bool,
    formats: bool = True,
) -> list[dict[str, Any]]:
    """Return messages for the page, each with its step and what came of its call."""
    calls: dict[str, Mapping[str, Any]] = {}
    described: list[dict[str, Any]] = []
    for number, message in found:
        given = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        calls |= {str(each.get("call_id")): each for each in _calls(given)}
        shown = shorten({name: each for name, each in given.items() if name != "extras"})
        if given.get("role") in ("tool", "note"):
            step = recording.step(number)
            call = calls.get(str(given.get("call_id")))
            arguments = step.details.get("params") if call is None else call.get("arguments")
            shown |= _describe_call(step, arguments)
            shown["text"] = strip_escapes(str(shown.get("text", "")))
        shown = mask_values(shown) if masks else shown
        if given.get("role") in ("tool", "note"):
            shown["output"] = find_output(recording.step(number), mask)
        if formats and given.get("role") not in ("tool", "note"):
            shown["nodes"] = format_text(mask(str(given.get("text") or "")))
        described.append(shown | {"n": number})
    return described


def _calls(message: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    found = cast("Sequence[Any]", message.get("tool_calls") or ())
    return [cast("Mapping[str, Any]", each) for each in found if isinstance(each, Mapping)]


def _describe_call(step: StepRecord, arguments: object) -> dict[str, Any]:
    """Return what a call was about, and what it did; the step of a shared result is another's."""
    given = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
    row = create_row(step)
    return {
        "arguments": shorten(given or arguments),
        "subject": call_subject(given),
        "command": row.command,
        "command_failed": row.command_failed,
        "ms": row.ms,
        "files": dict(changed_files(step)),
    }


def find_output(step: StepRecord, mask: Mask) -> list[Token]:
    """Return what a step printed in colours; nothing if a secret in it has to be masked."""
    command = step_command(step)
    texts = [str(step.details.get(name) or "") for name in ("result_message", "error", "text")]
    found = [
        "" if command is None else command.styled,
        *(each for each in texts if _ESCAPE in each),
    ]
    styled = next(filter(None, found), "")[:_MAX_STRING]
    plain = strip_escapes(styled)
    return highlight_output(styled) if mask(plain) == plain else []


def format_text(text: str) -> list[Node] | None:
    """Return Markdown as nodes, its code highlighted; None if it is too long."""

    def show_code(language: str, code: str) -> list[Any]:
        return highlight(path_of(language), code, colours=len(code) <= _MAX_CODE)

    return markdown_nodes(text, show_code)


def shorten(value: Any) -> Any:
    """Return a JSON value whose strings are not too long to show."""
    if isinstance(value, str):
        left = len(value) - _MAX_STRING
        return value if left <= 0 else f"{value[:_MAX_STRING]}\n… {left:,} more characters"
    if isinstance(value, Mapping):
        return {str(key): shorten(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [shorten(each) for each in cast("Sequence[Any]", value)]
    return value
