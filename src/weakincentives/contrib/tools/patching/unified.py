"""Parse unified diffs, as written by `diff -u` and git, and as models imitate them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weakincentives.contrib.tools.editing.match import excerpt
from weakincentives.contrib.tools.patching.hunks import FilePatch, HunkBuilder, PatchError

_GIT_HEADER = "diff --git "
_NULL_PATH = "/dev/null"
_BINARY_MARKERS = ("GIT binary patch", "Binary files ")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LINK_MODE = "120000"


@dataclass(slots=True)
class _FileDiff:
    """One file of a diff, while it is parsed."""

    old: str | None = None
    new: str | None = None
    is_new: bool = False
    is_deleted: bool = False
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    has_mode: bool = False
    is_named: bool = False
    hunks: list[HunkBuilder] = field(default_factory=list[HunkBuilder])


def parse_unified(text: str) -> tuple[FilePatch, ...]:
    """Return the patch of each file in a diff.

    Raises:
        PatchError: The text is not a unified diff, or has a change that cannot be applied as text.
    """
    lines = text.removesuffix("\n").split("\n")
    files: list[_FileDiff] = []
    at = 0
    while at < len(lines):
        at = _parse_next(lines, at, files)
    found = tuple(patch for file in files for patch in _build_patches(file))
    if not found:
        raise PatchError(
            f"Text is not a patch: {excerpt(text)}\n"
            "Start with '*** Begin Patch', or with '--- a/PATH' and '+++ b/PATH'"
        )
    return found


def _parse_next(lines: Sequence[str], at: int, files: list[_FileDiff]) -> int:
    """Parse what starts at a line; return the line after it."""
    line = lines[at].removesuffix("\r")
    if line.startswith(_GIT_HEADER):
        files.append(_FileDiff(*_git_names(line)))
    elif _is_header(lines, at):
        return _parse_names(lines, at, files)
    elif line.startswith("@@"):
        return _parse_hunk(lines, at, files)
    elif line.startswith(_BINARY_MARKERS) and files:
        name = files[-1].new or files[-1].old
        raise PatchError(f"Patch is for a binary file, which cannot be applied as text: {name!r}")
    elif files:
        _parse_extended_header(line, files[-1])
    return at + 1


def _is_header(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and lines[at].startswith("--- ") and lines[at + 1].startswith("+++ ")


def _parse_names(lines: Sequence[str], at: int, files: list[_FileDiff]) -> int:
    # after `diff --git` the names belong to that file; otherwise a new file starts
    if not files or files[-1].is_named or files[-1].hunks:
        files.append(_FileDiff())
    file = files[-1]
    file.is_named = True
    old, new = _name(lines[at][4:]), _name(lines[at + 1][4:])
    file.is_new |= old == _NULL_PATH
    file.is_deleted |= new == _NULL_PATH
    file.old, file.new = _strip_prefixes(old, new)
    return at + 2


def _parse_hunk(lines: Sequence[str], at: int, files: list[_FileDiff]) -> int:
    if not files or files[-1].old is None:
        raise PatchError(
            f"Line {at + 1} of the patch is a hunk without a file: {excerpt(lines[at])}\n"
            "Add '--- a/PATH' and '+++ b/PATH' above it"
        )
    hunk = HunkBuilder()
    hunk.read_header(lines[at].removesuffix("\r"))
    at += 1
    while at < len(lines) and not _ends_hunk(lines, at) and not hunk.is_complete(lines[at]):
        hunk.read(lines[at], at + 1)
        at += 1
    files[-1].hunks.append(hunk)
    return at


def _ends_hunk(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    if line.startswith(("@@", _GIT_HEADER, "# wink:", "```")):
        return True
    # `--- x` may be a removed line `-- x`; a header is followed by a hunk
    return _is_header(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith("@@")


def _parse_extended_header(line: str, file: _FileDiff) -> None:
    """Parse a line of git's extended header."""
    key, _, value = line.rpartition(" ")
    match key:
        case "new file mode":
            file.is_new = True
        case "deleted file mode":
            file.is_deleted = True
        case "old mode" | "new mode":
            file.has_mode = True
        case _:
            pass
    if value == _LINK_MODE and key.endswith("mode"):
        name = file.new or file.old
        raise PatchError(f"Patch is for a symbolic link, which cannot be applied as text: {name!r}")
    for word in ("rename from ", "rename to ", "copy from ", "copy to "):
        if line.startswith(word):
            file.renamed[word.strip()] = _name(line.removeprefix(word))


def _build_patches(file: _FileDiff) -> Iterator[FilePatch]:
    hunks = tuple(hunk.build() for hunk in file.hunks)
    old, new = file.old or "", file.new or ""
    if "copy to" in file.renamed:
        raise PatchError(
            f"Patch copies a file, which is not supported: {file.renamed['copy to']!r}\n"
            "Add the new file with its full text"
        )
    if file.is_new:
        yield FilePatch("add", new, content="".join(hunk.new_text for hunk in hunks))
    elif file.is_deleted:
        yield FilePatch("delete", old, hunks, literal=True)
    elif "rename to" in file.renamed:
        source = file.renamed.get("rename from", old)
        yield FilePatch("move", source, hunks, file.renamed["rename to"], literal=True)
    elif hunks:
        yield FilePatch("update", old, hunks, literal=True, other_path=new)
    elif file.has_mode:
        raise PatchError(
            f"Patch changes only the permissions of a file, which is not supported: {new!r}"
        )


def _git_names(line: str) -> tuple[str | None, str | None]:
    """Return the two names of a `diff --git` line; they differ only in their prefix."""
    rest = line.removeprefix(_GIT_HEADER)
    if rest.startswith('"'):
        quoted = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', rest)
        return _strip_prefixes(*map(_name, quoted[:2])) if len(quoted) > 1 else (None, None)
    middle = len(rest) // 2
    left, right = rest[:middle], rest[middle + 1 :]
    if left.partition("/")[2] != right.partition("/")[2]:
        left, _, right = rest.partition(" ")
    return _strip_prefixes(left, right)


def _name(text: str) -> str:
    """Return a file name without quotes, and without the timestamp that may follow it."""
    text = text.removesuffix("\r")
    if not text.startswith('"') or text.count('"') == 1:
        return text.partition("\t")[0].rstrip()
    raw = _ESCAPE.sub(_unescape, text[1 : text.rindex('"')])
    return raw.encode("latin-1", "surrogateescape").decode("utf-8", "surrogateescape")


def _unescape(match: re.Match[str]) -> str:
    letter = match[1]
    return chr(int(letter, 8)) if len(letter) == 3 else _ESCAPES.get(letter, letter)


def _strip_prefixes(old: str, new: str) -> tuple[str, str]:
    has_prefixes = old.startswith("a/") or old == _NULL_PATH
    if has_prefixes and (new.startswith("b/") or new == _NULL_PATH):
        return old.removeprefix("a/"), new.removeprefix("b/")
    return old, new
