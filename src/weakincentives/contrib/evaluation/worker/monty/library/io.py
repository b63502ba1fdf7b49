"""Text in memory: `io.StringIO`."""

from typing import Any


class StringIO:
    """A text file in memory."""

    def __init__(self, initial_value: str = "", newline: str | None = "\n") -> None:  # noqa: ARG002 # as in the standard library
        """Start with a text, at its beginning; line ends stay as they are."""
        self.text: str = initial_value
        self.position: int = 0

    def write(self, text: str) -> int:
        """Write text at the position."""
        end = self.position + len(text)
        self.text = self.text[: self.position] + text + self.text[end:]
        self.position = end
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for each in lines:
            self.write(each)

    def getvalue(self) -> str:
        """Return all of the text."""
        return self.text

    def read(self, size: int | None = -1) -> str:
        """Return the text from the position on, and move behind it."""
        end = len(self.text) if size is None or size < 0 else self.position + size
        found = self.text[self.position : end]
        self.position += len(found)
        return found

    def readline(self) -> str:
        """Return the text up to the end of the line."""
        end = self.text.find("\n", self.position)
        return self.read(-1 if end < 0 else end + 1 - self.position)

    def readlines(self) -> list[str]:
        """Return the lines that are left."""
        return self.read().splitlines(True)  # noqa: FBT003 # Monty takes no keyword here

    def seek(self, position: int) -> int:
        """Move to a position."""
        self.position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self.position

    def close(self) -> None:
        """Do nothing."""

    def __iter__(self) -> Any:
        """Return an iterator over the lines that are left."""
        return iter(self.readlines())

    def __enter__(self) -> Any:
        """Return this file."""
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """Do nothing."""
