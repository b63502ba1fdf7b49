"""The outline of a source file: by tree-sitter, or for Python without it by Python's parser."""

import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from weakincentives.contrib.digest.definitions import Outline
from weakincentives.contrib.digest.python_outline import outline_python

MAX_FAILURES = 3
"""Files that may end the parsing process; then no more are parsed."""

_MAX_PARSED = 256 * 1024  # bytes
_HERE = Path(__file__).parent
_WORKER = (sys.executable, "-I", str(_HERE / "parser_process.py"), str(_HERE.parents[2]))
_HAS_GRAMMARS = all(map(find_spec, ("tree_sitter", "tree_sitter_python", "tree_sitter_rust")))


class ParseError(Exception):
    """A file took too much time or memory to parse."""


def can_outline(family: str) -> bool:
    """Whether there is a parser for this family of languages."""
    return _HAS_GRAMMARS or family == "python"


class OutlineParser:
    """Parses files, with tree-sitter in a process of its own; see `parser_process`."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.failures: int = 0
        self._process: subprocess.Popen[bytes] | None = None

    def parse(self, content: bytes, family: str) -> Outline:
        """Return the definitions in a file; none if it is too large.

        Raises:
            ParseError: It takes too much to parse, or too many files before it did.
        """
        if len(content) > _MAX_PARSED:
            return ()
        if not _HAS_GRAMMARS:
            text = content.decode("utf-8-sig", "replace")
            return outline_python(text) if family == "python" else ()
        if self.failures < MAX_FAILURES:
            try:
                return self._parse_outside(content, family)
            except (OSError, ValueError, msgspec.MsgspecError):
                self.close()
        self.failures += 1
        raise ParseError

    def close(self) -> None:
        """End the process; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError, ValueError):  # a pipe to a dead process cannot be flushed
                process.communicate()

    def __enter__(self) -> Self:
        """Return the parser."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _parse_outside(self, content: bytes, family: str) -> Outline:
        if self._process is None:
            self._process = subprocess.Popen(
                _WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt at the terminal is not for it
                env={},
                cwd="/",
            )
        requests, responses = self._process.stdin, self._process.stdout
        assert requests is not None
        assert responses is not None
        requests.write(f"{family} {len(content)}\n".encode() + content)
        requests.flush()
        length = int(responses.readline())  # empty, so a ValueError, if the process has ended
        return msgspec.msgpack.decode(responses.read(length), type=Outline)
