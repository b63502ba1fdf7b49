"""`read_file` of binary content: hex dumps, images, notebooks."""

import base64
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contrib.handlers.requests import ask, make_context, refusal
from weakincentives.contrib.tools.requests import ReadFileParams
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import Media


def message(fs: Filesystem, path: str, **more: object) -> str:
    return ask(fs, ReadFileParams(path, **more)).message  # pyright: ignore[reportArgumentType]


# --- dumps ---


def test_the_beginning_of_a_binary_file_is_dumped_with_a_guess_what_it_is(fs: Filesystem):
    fs.write_bytes("a.out", b"\x7fELF\x02\x01" + bytes(994))
    result = ask(fs, ReadFileParams("a.out"))
    head, first, *rest = result.message.split("\n")
    assert head == "a.out: binary file, ELF executable or library, bytes 0 to 255 of 1,000 bytes"
    assert first == (
        "00000000  7f 45 4c 46 02 01 00 00  00 00 00 00 00 00 00 00  |.ELF............|"
    )
    assert len(rest) == 16
    assert rest[-1] == (
        "[truncated: 744 bytes more; to continue: read_file with file_path='a.out',"
        " offset=256, view='hex']"
    )
    assert result.value.encoding == "binary"
    assert (result.value.shown, result.value.total, result.value.next_offset) == (256, 1_000, 256)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"%PDF-1.7\0", "PDF document"),
        (b"PK\x03\x04\0", "ZIP archive"),
        (b"\x1f\x8b\x08\0", "gzip data"),
        (b"SQLite format 3\0", "SQLite database"),
        (b"\0\xff\0\xff", "unknown type"),
    ],
)
def test_types_are_known_by_their_first_bytes(fs: Filesystem, head: bytes, kind: str):
    fs.write_bytes("a", head)
    assert f"a: binary file, {kind}" in message(fs, "a")


def test_random_bytes_without_a_nul_are_binary(fs: Filesystem):
    fs.write_bytes("a", bytes(range(1, 256)) * 3)
    assert "binary file" in message(fs, "a")


def test_text_that_is_cut_in_a_character_at_the_end_of_the_look_is_text(fs: Filesystem):
    fs.write_bytes("a", b"x" * 8_191 + "é\n".encode())
    assert "lines 1 to 1 of 1" in message(fs, "a")


def test_a_hex_page_begins_where_it_was_asked_to(fs: Filesystem):
    fs.write("a.txt", "0123456789abcdefXYZ")
    text = message(fs, "a.txt", view="hex", offset=16)
    assert text == (
        "a.txt: hex dump, bytes 16 to 18 of 19 bytes\n"
        "00000010  58 59 5a                                          |XYZ|"
    )


def test_bytes_past_the_end_are_refused(fs: Filesystem):
    fs.write("a.txt", "0123")
    said = refusal(fs, ReadFileParams("a.txt", offset=4, view="hex"), ToolValidationError)
    assert said.startswith("No byte 4: 'a.txt' has only 4 bytes; use read_file")


def test_what_is_not_text_can_be_asked_for_as_text(fs: Filesystem):
    fs.write_bytes("a", b"one\0\xff\ntwo\n")
    assert "     1\tone\0\ufffd\n     2\ttwo\n[not valid UTF-8" in message(fs, "a", view="text")


@given(
    st.binary(min_size=1, max_size=3_000),
    st.integers(200, 4_000),
    st.sampled_from(["hex", "base64"]),
)
def test_pages_of_bytes_put_together_are_the_file(data: bytes, budget: int, view: str):
    fs = InMemoryFilesystem()
    fs.write_bytes("a", data)
    context = make_context(fs, max_characters=budget)
    offset: int | None = 0
    seen = 0
    encoded = ""
    while offset is not None:
        request = ReadFileParams("a", offset=offset, view=view)  # pyright: ignore[reportArgumentType]
        result = context.handle(request)
        assert len(result.message) <= budget
        assert result.value is not None
        seen += result.value.shown
        encoded += result.value.content
        offset = result.value.next_offset
    assert seen == len(data)
    if view == "base64":
        assert base64.b64decode(encoded) == data


# --- pictures ---


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + struct.pack(">H", 300) + bytes(298)
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + exif + frame + b"\xff\xd9"


PICTURES = {
    "PNG": (png(640, 480), "image/png"),
    "GIF": (b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(10), "image/gif"),
    "JPEG": (jpeg(640, 480), "image/jpeg"),
    "WebP": (
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\x7f\x02\x00" + b"\xdf\x01\x00",
        "image/webp",
    ),
}
PICTURES["WebP "] = (
    b"RIFF\x1e\0\0\0WEBPVP8L\x0a\0\0\0\x2f" + struct.pack("<I", 639 | 479 << 14) + bytes(8),
    "image/webp",
)
PICTURES["WebP  "] = (
    b"RIFF\x1e\0\0\0WEBPVP8 \x0a\0\0\0" + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 640, 480),
    "image/webp",
)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_handed_over_with_its_measures(fs: Filesystem, name: str):
    data, media_type = PICTURES[name]
    fs.write_bytes("a.bin", data)
    result = ask(fs, ReadFileParams("a.bin"))
    size = f"{len(data)} bytes"
    assert result.message.startswith(f"a.bin: {name.strip()} image, 640 x 480 pixels, {size}\n")
    assert result.value.media == Media(media_type, data)


def test_a_picture_that_is_too_large_is_described_only(fs: Filesystem):
    fs.write_bytes("a.png", png(640, 480))
    result = ask(fs, ReadFileParams("a.png"), max_media_bytes=10)
    assert result.value.media is None
    assert "[too large to show: the limit is 10 bytes]" in result.message


def test_a_picture_that_is_cut_off_is_said_to_be_damaged(fs: Filesystem):
    fs.write_bytes("a.png", png(640, 480)[:18])
    result = ask(fs, ReadFileParams("a.png"))
    assert result.message.startswith("a.png: damaged image, 18 bytes")
    assert result.value.media is None


def test_a_picture_can_be_read_as_bytes(fs: Filesystem):
    fs.write_bytes("a.png", png(1, 1))
    value = ask(fs, ReadFileParams("a.png", view="base64")).value
    assert base64.b64decode(value.content) == png(1, 1)


# --- notebooks ---


def notebook(*cells: dict[str, object]) -> str:
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


CODE = {
    "cell_type": "code",
    "execution_count": 7,
    "metadata": {},
    "source": ["import x\n", "x.plot()"],
    "outputs": [
        {"output_type": "stream", "name": "stdout", "text": ["hello\n", "world\n"]},
        {
            "output_type": "display_data",
            "data": {"text/plain": ["<Figure>"], "image/png": "aGVsbG8="},
            "metadata": {},
        },
    ],
}
TEXT = {"cell_type": "markdown", "metadata": {}, "source": "# Title"}


def test_a_notebook_is_shown_as_cells_without_its_pictures(fs: Filesystem):
    fs.write("a.ipynb", notebook(TEXT, CODE))
    result = ask(fs, ReadFileParams("a.ipynb"))
    assert result.message == (
        "a.ipynb: notebook, cells 1 to 2 of 2\n"
        "--- cell 1 (markdown) ---\n# Title\n\n"
        "--- cell 2 (code, run 7) ---\nimport x\nx.plot()\n"
        "--- output ---\nhello\nworld\n--- output ---\n<Figure>\n[image/png, 8 bytes, not shown]\n"
        "[the file stores cells as JSON; before you edit one, read it with:"
        " read_file with file_path='a.ipynb', view='text']"
    )
    assert (result.value.shown, result.value.total) == (2, 2)


def test_a_notebook_is_read_cell_by_cell(fs: Filesystem):
    fs.write("a.ipynb", notebook(*[{**TEXT, "source": f"# {number}"} for number in range(1, 30)]))
    text = message(fs, "a.ipynb", offset=10, limit=2)
    assert "--- cell 11 (markdown) ---\n# 11\n\n--- cell 12 (markdown) ---\n# 12\n" in text
    assert text.endswith("[truncated; to continue: read_file with file_path='a.ipynb', offset=12]")
    assert "has only 29 cells" in refusal(
        fs, ReadFileParams("a.ipynb", offset=29), ToolValidationError
    )


def test_outputs_of_a_notebook_are_shortened(fs: Filesystem):
    lines = [f"row {number}\n" for number in range(500)]
    errors = {
        "output_type": "error",
        "ename": "E",
        "evalue": "v",
        "traceback": ["\x1b[31mbad\x1b[0m"],
    }
    cell = {**CODE, "outputs": [{"output_type": "stream", "text": lines}, errors]}
    fs.write("a.ipynb", notebook(cell))
    text = message(fs, "a.ipynb")
    assert "row 9\n[... 480 more lines]\nrow 490\n" in text
    assert "\n--- output ---\nbad\n[" in text


def test_a_large_cell_stays_within_the_budget(fs: Filesystem):
    fs.write("a.ipynb", notebook({**TEXT, "source": "word " * 2_000}, TEXT))
    result = ask(fs, ReadFileParams("a.ipynb"), max_characters=1_000)
    assert (
        "more characters; to see all of it: read_file with file_path='a.ipynb', view='text']"
        in result.message
    )
    assert result.value.next_offset == 1


@pytest.mark.parametrize(
    "text", ["{", '{"cells": 3}', "[]", '{"cells": [{"source": []}]}', "[" * 5_000]
)
def test_a_broken_notebook_is_shown_as_text(fs: Filesystem, text: str):
    fs.write("a.ipynb", text)
    assert "a.ipynb: lines 1 to 1 of 1" in message(fs, "a.ipynb")


def test_a_notebook_can_be_read_as_text(fs: Filesystem):
    fs.write("a.ipynb", notebook(TEXT))
    assert '"nbformat": 4' in message(fs, "a.ipynb", view="text")
    fs.write("b.ipynb", notebook())
    assert message(fs, "b.ipynb").startswith("b.ipynb: notebook, no cells")
