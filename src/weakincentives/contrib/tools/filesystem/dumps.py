"""Bytes as a hex dump or as base64, a page at a time."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace

from weakincentives.contrib.tools.filesystem.media import kind_of_bytes
from weakincentives.contrib.tools.filesystem.opened import OpenedFile, Part, past_the_end
from weakincentives.contrib.tools.filesystem.wording import fitted, hint, size_text
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.contrib.tools.results import ReadFileResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.prompt import ToolResult

_ROW = 16  # bytes in a line of a hex dump
_ROW_CHARACTERS = 80
_HEAD = 256  # bytes shown of what is not text
_HEX_PAGE = 4_096
_MARGIN = 500  # characters for what is said around the bytes


def show_head(file: OpenedFile, part: Part, bench: Workbench) -> ToolResult[ReadFileResult]:
    """Return the beginning of a binary file, and what it seems to be."""
    kind = kind_of_bytes(file.head)
    return _show_hex(file, part, bench, page=_HEAD, what=f"binary file, {kind}")


def show_hex(file: OpenedFile, part: Part, bench: Workbench) -> ToolResult[ReadFileResult]:
    """Return a page of bytes as a hex dump."""
    return _show_hex(file, part, bench, page=_HEX_PAGE, what="hex dump")


def show_base64(file: OpenedFile, part: Part, bench: Workbench) -> ToolResult[ReadFileResult]:
    """Return a page of bytes as base64; pages can be put together."""
    room = max(bench.settings.budget - _margin(file, bench), 4)
    data = _bytes(file, part, bench, most=room // 4 * 3)
    after = part.first + len(data)
    if after < file.size and 2 < len(data) != part.count:  # whole groups: pages can be joined
        data = data[: len(data) // 3 * 3]
    return _Dump(file, part, bench, data).result(
        base64.b64encode(data).decode(), "base64", ReadFileParams(file.path, view="base64")
    )


def _show_hex(
    file: OpenedFile, part: Part, bench: Workbench, *, page: int, what: str
) -> ToolResult[ReadFileResult]:
    room = max((bench.settings.budget - _margin(file, bench)) // _ROW_CHARACTERS, 1) * _ROW
    data = _bytes(file, part, bench, most=min(room, part.capped(max(page, part.count or 0))))
    dump = "\n".join(_hex_rows(data, part.first))
    return _Dump(file, part, bench, data).result(dump, what, ReadFileParams(file.path, view="hex"))


@dataclass(frozen=True, slots=True)
class _Dump:
    """A page of bytes in the making."""

    file: OpenedFile
    part: Part
    bench: Workbench
    data: bytes

    def result(self, dump: str, what: str, request: ReadFileParams) -> ToolResult[ReadFileResult]:
        file, first = self.file, self.part.first
        after = first + len(self.data)
        size = f"{file.size:,} bytes"
        head = f"{file.name}: {what}, bytes {first:,} to {after - 1:,} of {size}"
        value = ReadFileResult(
            path=file.path,
            content=dump,
            offset=first,
            shown=len(self.data),
            total=file.size,
            next_offset=after if after < file.size else None,
            size_bytes=file.size,
            encoding="binary",
        )
        foot = self._foot(after, request)
        return ToolResult(fitted([head, dump], foot, self.bench.settings.budget), value, True, True)

    def _foot(self, after: int, request: ReadFileParams) -> str:
        if after >= self.file.size:
            return ""
        following = ReadFileParams(request.file_path, offset=after, view=request.view)
        rest = size_text(self.file.size - after)
        speech = self.bench.speech
        # a dialect without views shows what is not text so anyway
        call = speech.call(following) or speech.call(replace(following, view="auto"))
        return f"[truncated, {rest} more" + hint("; continue with", call) + "]"


def _bytes(file: OpenedFile, part: Part, bench: Workbench, *, most: int) -> bytes:
    """Return the bytes of a page.

    Raises:
        ToolValidationError: It begins after the end.
    """
    if part.first >= file.size > 0:
        last = ReadFileParams(file.path, offset=max(file.size - _HEAD, 0), view="hex")
        raise past_the_end(file, bench, part, file.size, "byte", last)
    count = part.capped(most)
    return file.content(bench).read(part.first, count)


def _margin(file: OpenedFile, bench: Workbench) -> int:
    return min(_MARGIN + 2 * len(file.name), bench.settings.budget // 2)


def _hex_rows(data: bytes, start: int) -> Iterator[str]:
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        halves = f"{row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}"
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start + at:08x}  {halves}  |{letters}|"
