"""A workspace with a picture in it."""

from base64 import b64decode

from weakincentives.filesystem import InMemoryFilesystem

PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def filesystem_with_a_picture() -> InMemoryFilesystem:
    fs = InMemoryFilesystem()
    fs.write_bytes("dot.png", b64decode(PICTURE))
    return fs
