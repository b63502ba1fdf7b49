"""Answers to the file calls of a worker: the functions of `FileAccess` by name, and no others."""

import base64
from collections.abc import Callable, Mapping

from weakincentives.contrib.evaluation.engine import FileAccess
from weakincentives.contrib.evaluation.files import WRITE_MODES
from weakincentives.contrib.evaluation.worker.pool import Frame
from weakincentives.filesystem import FileStat

_MAX_MESSAGE = 1_000  # characters of an error message
_NAMES = (
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError),
    *(PermissionError, OSError, ValueError),
)


def answer_call(files: FileAccess, frame: Frame, *, is_allowed: bool) -> dict[str, object]:
    """Return the reply to a call: its value, or the error that the code gets.

    Args:
        files: The files of the evaluation.
        frame: The call.
        is_allowed: Whether the number of calls is within the limits.
    """
    function = _FUNCTIONS.get(frame.function)
    try:
        if function is None:
            raise ValueError(f"No such file function: {frame.function[:50]!r}")
        if not is_allowed:
            raise OSError("The code makes too many file calls; read each file once")
        return {"value": function(files, *frame.arguments)}
    except (OSError, ValueError) as error:
        return {"error": [_error_name(error), str(error)[:_MAX_MESSAGE]]}
    except TypeError:
        return {"error": ["ValueError", f"Wrong arguments of {frame.function!r}"]}


def _error_name(error: Exception) -> str:
    return next(each.__name__ for each in _NAMES if isinstance(error, each))


def _read_text(files: FileAccess, path: str) -> str:
    return files.read_text(path)


def _exists(files: FileAccess, path: str) -> bool:
    return files.exists(path)


def _read_bytes(files: FileAccess, path: str) -> str:
    return base64.b64encode(files.read_bytes(path)).decode()


def _write_text(files: FileAccess, path: str, content: str, mode: str) -> None:
    for each in WRITE_MODES:
        if each == mode:
            return files.write_text(path, content, each)
    raise ValueError(f"mode must be 'create', 'overwrite' or 'append': {mode!r}")


def _make_directory(files: FileAccess, path: str, parents: str, exist_ok: str) -> None:
    files.make_directory(path, parents=bool(parents), exist_ok=bool(exist_ok))


def _stat(files: FileAccess, path: str) -> dict[str, object]:
    return _encode_stat(files.stat(path))


def _encode_stat(found: FileStat) -> dict[str, object]:
    modified = found.modified_at
    return {
        "is_file": found.is_file,
        "is_directory": found.is_directory,
        "is_symlink": found.is_symlink,
        "size": found.size_bytes,
        "modified": 0 if modified is None else modified.timestamp(),
    }


def _list(files: FileAccess, path: str) -> list[list[object]]:
    return [
        [each.name, each.is_file, each.is_directory, each.is_symlink] for each in files.list(path)
    ]


def _glob(files: FileAccess, pattern: str, path: str) -> list[str]:
    return list(files.glob(pattern, path))


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "read_text": _read_text,
    "read_bytes": _read_bytes,
    "write_text": _write_text,
    "make_directory": _make_directory,
    "exists": _exists,
    "stat": _stat,
    "list": _list,
    "glob": _glob,
}
