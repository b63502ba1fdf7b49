"""The content of a file as JSON values: text, a picture, a notebook, or bytes; always bounded."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, TypeAlias, cast

from weakincentives.debug.highlight import highlight, language_of
from weakincentives.filesystem import ReadableFilesystem
from weakincentives.filesystem.base import is_binary
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
    files: ReadableFilesystem,
    path: str,
    *,
    first: int = 0,
    mask: Mask = str,
    colours: bool = True,
) -> dict[str, Any]:
    """Return an entry of a workspace, with its content from line `first` on.

    Raises:
        OSError: There is no such entry, or it was not readable.
        ValueError: It is not a path in a workspace.
    """
    found = files.stat(path)
    facts: dict[str, Any] = {
        "path": found.path,
        "kind": found.kind,
        "size": found.size_bytes,
        "permissions": f"{found.permissions:04o}",
    }
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
    source = mask(_joined(cell.get("source")))[:MAX_TEXT]
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
            return {"image": f"data:{kind};base64,{''.join(_joined(found[kind]).split())}"}
    text = output.get("text") or found.get("text/plain") or output.get("traceback") or ""
    return {"text": mask(_joined(text))[:_MAX_OUTPUT]}


def _joined(value: object) -> str:
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
