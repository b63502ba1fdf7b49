"""Attachments: files, pictures and standard input that go to the model beside the task.

A text is quoted in the message after the task; a picture is sent as a picture, and a line in the
message names it.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from weakincentives.adapters import Message, UserMessage
from weakincentives.cli.state import ConfigError
from weakincentives.contrib.digest.budget import format_size, quote_path
from weakincentives.prompt import Media, quote_data

STANDARD_INPUT = "-"
"""The argument that stands for standard input."""
MAX_TEXT = 400_000
"""Bytes of all attached texts together."""
MAX_PICTURE = 5 * 1024 * 1024
"""Bytes of one picture: what providers take."""
MAX_PICTURES = 20
"""Pictures of one task."""
_TAG = "attachment"
_PICTURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text or a picture, with its name for the model."""

    name: str
    data: bytes
    media_type: str | None = None
    """None for a text."""

    @property
    def label(self) -> str:
        """A line that stands for a picture where only text is shown."""
        return f"[image {quote_path(self.name)}, {format_size(len(self.data))}]"

    def __str__(self) -> str:
        """Return the text for the message."""
        if self.media_type is not None:
            return self.label
        text = self.data.decode("utf-8-sig")
        return f"{quote_path(self.name)}:\n{quote_data(text, name=_TAG)}"


def load_attachments(paths: Iterable[str], *, is_stdin_used: bool = False) -> list[Attachment]:
    """Read the files that a user attaches.

    Args:
        paths: The paths; `-` is standard input.
        is_stdin_used: Whether the task is read from standard input.

    Raises:
        ConfigError: One cannot be read, or is neither text nor a picture, or is too large.
    """
    found: list[Attachment] = []
    for path in paths:
        if path == STANDARD_INPUT and is_stdin_used:
            raise ConfigError("Standard input is read once: for the task, or for --attach -")
        is_stdin_used = is_stdin_used or path == STANDARD_INPUT
        found.append(_create_attachment(path, _read(path)))
    size = sum(len(each.data) for each in found if each.media_type is None)
    if size > MAX_TEXT:
        raise ConfigError(
            f"--attach: {format_size(size)} of text are more than the {format_size(MAX_TEXT)} that"
            " fit into a message; put it into the workspace, where the model can search it"
        )
    if sum(each.media_type is not None for each in found) > MAX_PICTURES:
        raise ConfigError(f"--attach: more than {MAX_PICTURES} pictures; leave some out")
    return found


def add_attachments(
    messages: Sequence[Message], attachments: Sequence[Attachment]
) -> Sequence[Message]:
    """Return a conversation with attachments in its last message.

    That message must be the user's.
    """
    last = messages[-1] if attachments else None
    if not isinstance(last, UserMessage):
        return messages
    text = "\n\n".join((last.text, "Attached:", *map(str, attachments)))
    media = tuple(
        Media(each.media_type, each.data) for each in attachments if each.media_type is not None
    )
    return [*messages[:-1], replace(last, text=text, media=(*last.media, *media))]


def _create_attachment(path: str, data: bytes) -> Attachment:
    name = "standard input" if path == STANDARD_INPUT else path
    kind = next((kind for magic, kind in _PICTURES if magic.match(data)), None)
    if kind is not None:
        if len(data) > MAX_PICTURE:
            raise ConfigError(
                f"--attach: the picture is larger than {format_size(MAX_PICTURE)}: {name!r};"
                " make it smaller"
            )
        return Attachment(name, data, kind)
    if data.startswith(b"%PDF-"):
        raise ConfigError(
            f"--attach: PDF is not supported: {name!r}; convert it, for example with pdftotext"
        )
    try:
        is_text = "\0" not in data.decode("utf-8-sig")
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise ConfigError(
            f"--attach: neither UTF-8 text nor a PNG, JPEG, GIF or WebP picture: {name!r}"
        )
    return Attachment(name, data)


def _read(path: str) -> bytes:
    """Return the content of a file, as far as any attachment can be long."""
    try:
        if path == STANDARD_INPUT:
            return _read_bounded(_standard_input(), path)
        # not only regular files: a shell's <(command) is a pipe
        with Path(path).open("rb") as stream:
            return _read_bounded(stream, path)
    except OSError as error:
        raise ConfigError(f"--attach: {error.strerror}: {path!r}") from error


def _read_bounded(stream: IO[bytes], path: str) -> bytes:
    limit = max(MAX_TEXT, MAX_PICTURE)
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise ConfigError(
            f"--attach: larger than {format_size(limit)}: {path!r}; put it into the workspace"
        )
    return data


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        raise ConfigError("--attach -: standard input is closed")
    if sys.stdin.isatty():
        raise ConfigError("--attach -: standard input is a terminal; pipe something into wink")
    return sys.stdin.buffer
