"""Files as texts that can be changed and written back with every other byte as it was."""

from weakincentives.contrib.tools.filesystem.near_names import link_refused
from weakincentives.contrib.tools.filesystem.refusals import directory_in_the_way, said
from weakincentives.contrib.tools.filesystem.wording import counted, hint, named
from weakincentives.contrib.tools.requests import WriteFileParams
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import LimitExceededError
from weakincentives.filesystem.diffs.sections import MAX_TEXT

_BINARY_PREFIX = 8 * 1024  # bytes in which a NUL means that it is no text, as in searches
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def decoded(data: bytes) -> str:
    """Return bytes as text, those that are not UTF-8 as surrogates."""
    return data.decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """Return the bytes of a text that was made by `decoded`."""
    return text.encode("utf-8", "surrogateescape")


def file_bytes(bench: Workbench, path: str) -> bytes | None:
    """Return the bytes of a file that is to be changed; None if nothing is there.

    Raises:
        IsADirectoryError: A directory is there.
        PermissionError: A link is there.
        LimitExceededError: It is too large.
    """
    try:
        found = bench.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.is_directory:
        raise directory_in_the_way(bench, path)
    if found.link_target is not None:
        raise link_refused(bench, path, found.link_target)
    if found.size_bytes > MAX_TEXT:
        raise LimitExceededError(
            f"File has {found.size_bytes} bytes, and only files of up to {MAX_TEXT} bytes"
            f" can be changed in part: {named(path)!r}"
        )
    return bench.filesystem.read_bytes(path).content


def refuse_binary(bench: Workbench, path: str, data: bytes) -> None:
    """Return if bytes are a text.

    Raises:
        ToolValidationError: They are not; what else can be done is said.
    """
    if b"\0" not in data[:_BINARY_PREFIX]:
        return
    what = "UTF-16 text" if data.startswith(_UTF16_MARKS) else "binary"
    size = counted(len(data), "byte")
    text = f"File is {what} ({size}) and cannot be changed in part: {named(path)!r}"
    how = said(bench, WriteFileParams(path, "", "overwrite", "base64"), "mode", "encoding")
    raise ToolValidationError(text + hint("; write all of it:", how))
