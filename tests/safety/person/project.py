"""The project that agent and person share: which texts there are, and what is a mix of them.

Every file has a first line that only the person changes, a last line that only the agent changes,
and lines between that nobody does. So any text tells who wrote it, and half of one is noticed.
All texts of a file have the same length: sizes tell nothing.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from weakincentives.posix import RESERVED_PREFIX

FILES = ("a.txt", "b.txt", "d/e.txt", "d/f.txt", "g/h/i.txt", "g/j.txt")
"""What agent and person work on; `keep.txt` the person leaves alone."""
FOLDERS = ("d", "g", "g/h")
WIDTH = 24
HALF = 40
"""How much of a file the person writes before the rest."""
MODES = {0o644, 0o600}
"""The permissions of the files: of the project, and those that the agent sets."""
_LINES = 6
_TOP = re.compile(r"<(base|agent|\d+\.\d+)>\.*")
_END = re.compile(r"\((base|agent)\)-*")


def text(path: str, top: str = "base", end: str = "base") -> str:
    """Return a text of the file at `path`, by the words of its first and last line."""
    lines = [top_line(top), *(_middle(path, number) for number in range(_LINES)), end_line(end)]
    return "".join(f"{line}\n" for line in lines)


def top_line(word: str) -> str:
    """Return the line of the person."""
    return f"<{word}>".ljust(WIDTH, ".")


def end_line(word: str) -> str:
    """Return the line of the agent."""
    return f"({word})".ljust(WIDTH, "-")


def with_top(found: str, path: str, word: str) -> str:
    """Return a text as the person saves it who has just read `found`."""
    rest = found.split("\n", 1)
    if len(rest) == 2 and len(rest[0]) == WIDTH and is_whole(found):
        return f"{top_line(word)}\n{rest[1]}"
    return text(path, word)


def is_whole(content: str) -> bool:
    """Return whether a text is one that somebody wrote, with or without lines added to it."""
    lines = content.split("\n")
    if len(lines) < _LINES + 3 or lines.pop():
        return False
    first, middle, last, added = lines[0], lines[1 : _LINES + 1], lines[_LINES + 1], lines[8:]
    top, end = _TOP.fullmatch(first), _END.fullmatch(last)
    if top is None or end is None or not all(len(line) == WIDTH for line in (first, last)):
        return False
    if top[1] == "agent" and end[1] != "agent":
        return False  # the agent wrote both lines, or only the last one
    numbers = [line.partition(" ")[0] for line in middle]
    names = {line.partition(" ")[2] for line in middle}
    return (
        numbers == [str(number) for number in range(_LINES)]
        and len(names) == 1
        and all(_TOP.fullmatch(line) for line in added)
    )


def is_half(content: str) -> bool:
    """Return whether a text is one that the person had written half of."""
    return not content or (len(content) == HALF and bool(_TOP.match(content)))


def lay_out(root: Path) -> None:
    """Create the project."""
    for path in (*FILES, "keep.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text(path))
        (root / path).chmod(0o644)
    (root / "empty").mkdir()


def visible(root: Path) -> dict[str, bytes]:
    """Return the content of the files that a person sees, without git's data."""
    return {path: data for path, data in _files(root) if not is_hidden(path)}


def hidden(root: Path) -> dict[str, bytes]:
    """Return the content of the files below names that are ours."""
    return {path: data for path, data in _files(root) if is_hidden(path)}


def hidden_names(root: Path) -> list[str]:
    """Return the names in the project that are ours."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), root)  # noqa: PTH118 # many, and short
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
        if name.startswith(RESERVED_PREFIX)
    )


def is_hidden(path: str) -> bool:
    """Return whether a path has a name that is ours."""
    return any(part.startswith(RESERVED_PREFIX) for part in path.split("/"))


def _files(root: Path) -> Iterable[tuple[str, bytes]]:
    for folder, folders, files in os.walk(root):
        if ".git" in folders:
            folders.remove(".git")
        for name in files:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(root)), path.read_bytes()


def _middle(path: str, number: int) -> str:
    return f"{number} {path}".ljust(WIDTH)
