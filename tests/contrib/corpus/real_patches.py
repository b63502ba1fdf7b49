"""Patches of real files: random changes to the standard library, with every kind of anchor.

What must come of each is known without the engine: the lines are replaced where they are.
"""

import ast
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_HEADING = re.compile(r"[A-Za-z_$]")
_GIT_HEADING = re.compile(r"^@@ [^@]* @@ ?(.*)$", re.MULTILINE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class RealPatch:
    """A change to a real file, as a patch.

    Args:
        kind: Which anchors it has.
        where: The file and the line of the hunk, for messages.
        text: The file as it is.
        patch: The patch, about a file `f`.
        expected: The file as it is to be.
        is_clear: The old lines are in one place only, in the file or below an anchor that is
            in one place only.
    """

    kind: str
    where: str
    text: str
    patch: str
    expected: str
    is_clear: bool


@dataclass(frozen=True)
class Change:
    """Lines of a file that are replaced, and the lines around them that a hunk shows."""

    lines: list[str]
    start: int
    stop: int
    new: list[str]
    first: int
    last: int

    @property
    def old(self) -> list[str]:
        return self.lines[self.first : self.last]

    @property
    def expected(self) -> str:
        return _joined([*self.lines[: self.start], *self.new, *self.lines[self.stop :]])

    def patch(self, anchors: list[str]) -> str:
        body = [
            *(f" {line}" for line in self.lines[self.first : self.start]),
            *(f"-{line}" for line in self.lines[self.start : self.stop]),
            *(f"+{line}" for line in self.new),
            *(f" {line}" for line in self.lines[self.stop : self.last]),
        ]
        heads = [f"@@ {anchor}" for anchor in anchors] or ["@@"]
        head = ["*** Begin Patch", "*** Update File: f"]
        return _joined([*head, *heads, *body, "*** End Patch"])

    def places(self, start: int = 0, stop: int | None = None) -> int:
        """Return in how many places between two lines the old lines begin."""
        old = self.old
        numbers = range(start, len(self.lines) if stop is None else stop)
        return sum(self.lines[number : number + len(old)] == old for number in numbers)

    def lines_like(self, line: int) -> int:
        return sum(each.strip() == self.lines[line].strip() for each in self.lines)


def real_patches(*, seed: int, files: int, changes: int) -> Iterator[RealPatch]:
    """Yield patches without anchors, with enclosing ones, and with headings as git has them."""
    random = Random(seed)
    paths = sorted(LIBRARY.rglob("*.py"))
    random.shuffle(paths)
    for path, text, tree in _programs(paths, files):
        for _ in range(changes):
            change = _change(text.split("\n")[:-1], random)
            for kind, anchors, is_clear in _anchored(change, tree):
                yield RealPatch(
                    kind,
                    f"{path.relative_to(LIBRARY)}:{change.first + 1}",
                    text,
                    change.patch(anchors),
                    change.expected,
                    # nobody can tell one empty line from another
                    is_clear and any(map(str.strip, change.old)),
                )


def headings_of_git(old: Path, new: Path) -> list[str]:
    """Return what `git diff` prints after the second `@@` of each hunk."""
    command = ["git", "diff", "--no-index", "--no-color", "-U3", str(old), str(new)]
    made = subprocess.run(command, capture_output=True, check=False, cwd=old.parent)
    return _GIT_HEADING.findall(made.stdout.decode("utf-8", "replace"))


def heading_above(lines: list[str], line: int) -> int | None:
    """Return the line that git takes for the heading of a hunk that begins at a line."""
    return next((at for at in range(line - 1, -1, -1) if _HEADING.match(lines[at])), None)


def _programs(paths: list[Path], count: int) -> Iterator[tuple[Path, str, ast.Module]]:
    return islice(_usual_programs(paths), count)


def _usual_programs(paths: list[Path]) -> Iterator[tuple[Path, str, ast.Module]]:
    for path in paths:
        try:
            text = path.read_bytes().decode()
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        # `ast` counts lines otherwise
        usual = text.endswith("\n") and not re.search("[\r\f\v\x1c-\x1e\x85\u2028\u2029]", text)
        if usual and 300 < len(text) < 100_000:
            yield path, text, tree


def _change(lines: list[str], random: Random) -> Change:
    start = random.randrange(len(lines))
    stop = min(start + random.choice((0, 1, 1, 2, 3)), len(lines))
    around = random.choice((0, 1, 3)) if stop > start else 2
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    new = [f"{indent}changed_{random.randrange(10**6)} = 1"]
    return Change(lines, start, stop, new, max(start - around, 0), min(stop + around, len(lines)))


def _anchored(change: Change, tree: ast.Module) -> Iterator[tuple[str, list[str], bool]]:
    is_only = change.places() == 1
    yield "none", [], is_only
    blocks = _blocks(tree, change.first)
    if blocks:
        line, stop = blocks[-1]
        is_clear = change.lines_like(line) == 1 and change.places(line, stop) == 1
        yield "enclosing", [change.lines[line].strip()], is_only or is_clear
        yield "nested", [change.lines[at].strip() for at, _ in blocks], is_only or is_clear
    heading = heading_above(change.lines, change.first)
    if heading is not None:
        is_clear = change.lines_like(heading) == 1 and change.places(heading + 1) == 1
        yield "heading", [change.lines[heading][:80].rstrip()], is_only or is_clear


def _blocks(node: ast.AST, line: int) -> list[tuple[int, int]]:
    """Return the definitions around a line, outermost first: where they begin and stop."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _DEFINITIONS):
            stop = child.end_lineno or child.lineno
            if child.lineno - 1 < line < stop:
                return [(child.lineno - 1, stop), *_blocks(child, line)]
        else:
            inner = _blocks(child, line)
            if inner:
                return inner
    return []


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
