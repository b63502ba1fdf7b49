"""Binary files: type detection, hex and base64 pages, and pictures for models that can see."""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from weakincentives.contrib.tools.handlers.render import bounded_result, format_size, hint
from weakincentives.contrib.tools.handlers.source import (
    FileSource,
    ReadResult,
    past_end_error,
)
from weakincentives.contrib.tools.requests import FileView, ReadFileParams
from weakincentives.contrib.tools.results import ReadFileResult
from weakincentives.prompt import Media

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"%PDF-", "PDF document"),
    (0, b"\x7fELF", "ELF executable or library"),
    (0, b"MZ", "Windows executable"),
    (0, b"\xcf\xfa\xed\xfe", "macOS executable"),
    (0, b"\xca\xfe\xba\xbe", "Java class or macOS executable"),
    (0, b"\0asm", "WebAssembly module"),
    (0, b"PK\x03\x04", "ZIP archive (also docx, xlsx, jar, wheel)"),
    (0, b"PK\x05\x06", "ZIP archive, empty"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"\xfd7zXZ\0", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z archive"),
    (257, b"ustar", "tar archive"),
    (0, b"SQLite format 3\0", "SQLite database"),
    (0, b"PAR1", "Parquet data"),
    (0, b"\x93NUMPY", "NumPy array"),
    (0, b"\x80\x04\x95", "pickled Python object"),
    (0, b"ID3", "MP3 audio"),
    (0, b"OggS", "Ogg audio or video"),
    (0, b"fLaC", "FLAC audio"),
    (8, b"WAVE", "WAV audio"),
    (4, b"ftyp", "MP4 or HEIF media"),
    (0, b"\x1a\x45\xdf\xa3", "Matroska or WebM video"),
    (0, b"wOFF", "WOFF font"),
    (0, b"wOF2", "WOFF2 font"),
    (0, b"OTTO", "OpenType font"),
    (0, b"\0\x01\0\0", "TrueType font"),
    (0, b"BM", "BMP image"),
    (0, b"II*\0", "TIFF image"),
    (0, b"MM\0*", "TIFF image"),
    (0, b"\0\0\x01\0", "Windows icon"),
)
_PICTURE_BYTES = frozenset({b"\x89", b"G", b"\xff", b"R"})  # first bytes of pictures
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, slots=True)
class Picture:
    """Format and dimensions of an image; the dimensions are None if they were not found."""

    format: str
    media_type: str
    width: int | None = None
    height: int | None = None

    def __str__(self) -> str:
        """Return the format and the dimensions."""
        size = "" if self.width is None else f", {self.width} x {self.height} pixels"
        return f"{self.format} image{size}"


def detect_type(head: bytes) -> str:
    """Return the file type by its signature (magic number)."""
    names = (name for at, magic, name in _SIGNATURES if head.startswith(magic, at))
    return next(names, "unknown type")


def parse_picture(head: bytes) -> Picture | None:
    """Return the image that begins with `head`; None if models cannot see such a file."""
    if head[:1] not in _PICTURE_BYTES:
        return None
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return Picture("PNG", "image/png", *_unpack_pair(">II", head, 16))
        if head.startswith((b"GIF87a", b"GIF89a")):
            return Picture("GIF", "image/gif", *_unpack_pair("<HH", head, 6))
        if head.startswith(b"\xff\xd8\xff"):
            return Picture("JPEG", "image/jpeg", *_jpeg_size(head))
        if head.startswith(b"RIFF") and head.startswith(b"WEBP", 8):
            return Picture("WebP", "image/webp", *_webp_size(head))
    except struct.error:
        return Picture("damaged", "application/octet-stream")
    return None


def render_picture(file: FileSource, picture: Picture) -> ReadResult:
    """Return an image as media for the model, with a line of text about it."""
    context = file.context
    max_size = context.settings.max_media_bytes
    fits = file.size <= max_size and picture.width is not None
    media = Media(picture.media_type, file.content().read(0, file.size)) if fits else None
    parts = [f"{file.name}: {picture}, {format_size(file.size)}"]
    if file.size > max_size:
        parts.append(f"[too large to show: the limit is {format_size(max_size)}]")
    call = context.dialect.format_call(ReadFileParams(file.path, view="base64"))
    if call is not None:
        parts.append("[" + hint("to read its bytes:", call) + "]")
    value = ReadFileResult(
        path=file.path,
        content="",
        offset=0,
        shown=file.size if fits else 0,
        total=file.size,
        next_offset=None,
        size_bytes=file.size,
        encoding="binary",
        media=media,
    )
    return replace(bounded_result(context, parts, value), media=() if media is None else (media,))


def _unpack_pair(form: str, head: bytes, at: int) -> tuple[int, int]:
    width, height = struct.unpack_from(form, head, at)
    return width, height


def _jpeg_size(head: bytes) -> tuple[int | None, int | None]:
    """Return width and height from the start-of-frame segment."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _START_OF_FRAME:
            height, width = _unpack_pair(">HH", head, at + 5)
            return width, height
        if marker == 0xFF:
            at += 1
            continue
        at += 2 + struct.unpack_from(">H", head, at + 2)[0]
    return None, None


def _webp_size(head: bytes) -> tuple[int | None, int | None]:
    form = head[12:16]
    if form == b"VP8X":
        low, middle, high, low2, middle2, high2 = struct.unpack_from("6B", head, 24)
        return 1 + (low | middle << 8 | high << 16), 1 + (low2 | middle2 << 8 | high2 << 16)
    if form == b"VP8L":
        bits: int = struct.unpack_from("<I", head, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if form == b"VP8 ":
        width, height = _unpack_pair("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None, None


_ROW = 16  # bytes in a line of a hex dump
_ROW_CHARACTERS = 80
_BINARY_PAGE = 256  # bytes shown of a binary file by default
_HEX_PAGE = 4_096
_MARGIN = 500  # characters for the lines around the dump


def render_binary(file: FileSource) -> ReadResult:
    """Return the beginning of a binary file as a hex dump, and its type."""
    return _render_hex_page(file, _BINARY_PAGE, f"binary file, {detect_type(file.head)}")


def render_hex(file: FileSource) -> ReadResult:
    """Return a page of bytes as a hex dump."""
    return _render_hex_page(file, _HEX_PAGE, "hex dump")


def render_base64(file: FileSource) -> ReadResult:
    """Return a page of bytes as base64; pages can be concatenated."""
    room = max(file.context.settings.budget - _margin(file), 4)
    data = _read_range(file, room // 4 * 3)
    after = file.page.first + len(data)
    if after < file.size and 2 < len(data) != file.page.count:
        data = data[: len(data) // 3 * 3]  # full groups, so that pages can be concatenated
    return _render_page(file, data, base64.b64encode(data).decode(), "base64", "base64")


def _render_hex_page(file: FileSource, page_size: int, what: str) -> ReadResult:
    room = max((file.context.settings.budget - _margin(file)) // _ROW_CHARACTERS, 1) * _ROW
    data = _read_range(file, min(room, file.page.clamp(max(page_size, file.page.count or 0))))
    return _render_page(file, data, "\n".join(_hex_rows(data, file.page.first)), what, "hex")


def _render_page(file: FileSource, data: bytes, dump: str, what: str, view: FileView) -> ReadResult:
    """Return a page of bytes with its dump, and how to continue in the same view."""
    first = file.page.first
    after = first + len(data)
    head = f"{file.name}: {what}, bytes {first:,} to {after - 1:,} of {file.size:,} bytes"
    value = file.page_value(dump, len(data), file.size, encoding="binary")
    foot = ""
    if after < file.size:
        dialect, rest = file.context.dialect, ReadFileParams(file.path, offset=after, view=view)
        # a dialect without views shows binary files like this anyway
        call = dialect.format_call(rest) or dialect.format_call(replace(rest, view="auto"))
        foot = f"[truncated: {format_size(file.size - after)} more{hint('; to continue:', call)}]"
    return bounded_result(file.context, [head, dump], value, foot)


def _read_range(file: FileSource, limit: int) -> bytes:
    first = file.page.first
    if first >= file.size > 0:
        last = ReadFileParams(file.path, offset=max(file.size - _BINARY_PAGE, 0), view="hex")
        raise past_end_error(file, file.size, "byte", last)
    return file.content().read(first, file.page.clamp(limit))


def _margin(file: FileSource) -> int:
    return min(_MARGIN + 2 * len(file.name), file.context.settings.budget // 2)


def _hex_rows(data: bytes, start: int) -> Iterator[str]:
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        halves = f"{row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}"
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start + at:08x}  {halves}  |{letters}|"
