"""One shape for every contender: an operation that is timed, and a reader of its raw answer.

`glob` is timed and returns whatever the system returns; `paths` brings that into
a comparable form, untimed. What a system cannot do raises NotImplementedError.
"""

from collections.abc import Mapping


class Subject:
    """A filesystem under test, ours or a peer's; paths are relative, with `/`."""

    name = ""
    literal_only = False

    def load(self, files: Mapping[str, bytes]) -> None:
        """Fill an empty filesystem, untimed."""
        raise NotImplementedError

    def hydrate(self, root: str) -> object:
        """Bring a whole host directory in."""
        raise NotImplementedError

    def total(self, raw: object) -> tuple[int, int]:
        """How many files, and how many bytes, came in by `hydrate`."""
        raise NotImplementedError

    def list_folder(self, path: str) -> object:
        """List a folder."""
        raise NotImplementedError

    def names(self, raw: object) -> list[str]:
        """The sorted names that `list` gave."""
        raise NotImplementedError

    def read(self, path: str) -> object:
        """Read a small text file as a user would."""
        raise NotImplementedError

    def text(self, raw: object) -> str:
        """The text that `read` gave."""
        raise NotImplementedError

    def read_page(self, path: str, offset: int, limit: int) -> object:
        """Read some lines, and learn how many lines the file has."""
        raise NotImplementedError

    def page(self, raw: object) -> tuple[str, int]:
        """The text of the page and the number of lines in the file."""
        raise NotImplementedError

    def write(self, path: str, text: str) -> object:
        """Create or overwrite a file."""
        raise NotImplementedError

    def glob(self, pattern: str) -> object:
        """Find files by pattern."""
        raise NotImplementedError

    def paths(self, raw: object) -> list[str]:
        """The sorted paths that `glob` gave."""
        raise NotImplementedError

    def grep(self, pattern: str) -> object:
        """Find lines."""
        raise NotImplementedError

    def hits(self, raw: object) -> list[tuple[str, int]]:
        """The sorted (path, line number) pairs that `grep` gave; lines count from 1."""
        raise NotImplementedError

    def close(self) -> None:
        """Give everything back."""
