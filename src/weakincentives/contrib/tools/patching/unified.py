"""Unified diffs, as `diff -u` and git write them and models imitate them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.patching.hunks import FilePatch, HunkLines, PatchError

_GIT = "diff --git "
_NOTHING = "/dev/null"
_BINARY = ("GIT binary patch", "Binary files ")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LINK_MODE = "120000"


@dataclass(slots=True)
class _File:
    """A file of a diff that is being read."""

    old: str | None = None
    new: str | None = None
    is_new: bool = False
    is_deleted: bool = False
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    has_mode: bool = False
    is_named: bool = False
    hunks: list[HunkLines] = field(default_factory=list[HunkLines])


def parse_unified(text: str) -> tuple[FilePatch, ...]:
    """Return what a diff says about each file.

    Raises:
        PatchError: The text is not a unified diff, or says what cannot be done to text.
    """
    lines = text.removesuffix("\n").split("\n")
    files: list[_File] = []
    at = 0
    while at < len(lines):
        at = _step(lines, at, files)
    found = tuple(patch for file in files for patch in _patches(file))
    if not found:
        raise PatchError(
            f"Text is no patch: {excerpt(text)}\n"
            "Begin with '*** Begin Patch', or with '--- a/PATH' and '+++ b/PATH'"
        )
    return found


def _step(lines: Sequence[str], at: int, files: list[_File]) -> int:
    """Read what begins at a line; return the line after it."""
    line = lines[at].removesuffix("\r")
    if line.startswith(_GIT):
        files.append(_File(*_git_names(line)))
    elif _is_header(lines, at):
        return _read_names(lines, at, files)
    elif line.startswith("@@"):
        return _read_hunk(lines, at, files)
    elif line.startswith(_BINARY) and files:
        name = files[-1].new or files[-1].old
        raise PatchError(f"Patch of a binary file cannot be applied as text: {name!r}")
    elif files:
        _read_remark(line, files[-1])
    return at + 1


def _is_header(lines: Sequence[str], at: int) -> bool:
    return at + 1 < len(lines) and lines[at].startswith("--- ") and lines[at + 1].startswith("+++ ")


def _read_names(lines: Sequence[str], at: int, files: list[_File]) -> int:
    # after `diff --git` the names are of the same file, otherwise of another one
    if not files or files[-1].is_named or files[-1].hunks:
        files.append(_File())
    file = files[-1]
    file.is_named = True
    old, new = _name(lines[at][4:]), _name(lines[at + 1][4:])
    file.is_new |= old == _NOTHING
    file.is_deleted |= new == _NOTHING
    file.old, file.new = _without_prefixes(old, new)
    return at + 2


def _read_hunk(lines: Sequence[str], at: int, files: list[_File]) -> int:
    if not files or files[-1].old is None:
        raise PatchError(
            f"Line {at + 1} of the patch is a hunk of no file: {excerpt(lines[at])}\n"
            "Write '--- a/PATH' and '+++ b/PATH' above it"
        )
    hunk = HunkLines()
    hunk.read_header(lines[at].removesuffix("\r"))
    at += 1
    while at < len(lines) and not _ends_hunk(lines, at) and not hunk.is_over(lines[at]):
        hunk.read(lines[at], at + 1)
        at += 1
    files[-1].hunks.append(hunk)
    return at


def _ends_hunk(lines: Sequence[str], at: int) -> bool:
    line = lines[at]
    if line.startswith(("@@", _GIT, "# wink:", "```")):
        return True
    # `--- x` may be a line `-- x` that goes: a header has a hunk below it
    return _is_header(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith("@@")


def _read_remark(line: str, file: _File) -> None:
    """Read a line of git's header."""
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
        raise PatchError(f"Patch of a link cannot be applied as text: {file.new or file.old!r}")
    for word in ("rename from ", "rename to ", "copy from ", "copy to "):
        if line.startswith(word):
            file.renamed[word.strip()] = _name(line.removeprefix(word))


def _patches(file: _File) -> Iterator[FilePatch]:
    hunks = tuple(hunk.hunk() for hunk in file.hunks)
    old, new = file.old or "", file.new or ""
    if "copy to" in file.renamed:
        raise PatchError(
            f"Patch copies a file, which cannot be done: {file.renamed['copy to']!r}\n"
            "Add the new file with its whole text"
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
        raise PatchError(f"Patch changes only the permissions of a file: {new!r}")


def _git_names(line: str) -> tuple[str | None, str | None]:
    """Return the two names of a `diff --git` line; they are the same but for their prefix."""
    rest = line.removeprefix(_GIT)
    if rest.startswith('"'):
        quoted = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', rest)
        return _without_prefixes(*map(_name, quoted[:2])) if len(quoted) > 1 else (None, None)
    middle = len(rest) // 2
    left, right = rest[:middle], rest[middle + 1 :]
    if left.partition("/")[2] != right.partition("/")[2]:
        left, _, right = rest.partition(" ")
    return _without_prefixes(left, right)


def _name(text: str) -> str:
    """Return a name without quotes, and without the time that may follow it."""
    text = text.removesuffix("\r")
    if not text.startswith('"') or text.count('"') == 1:
        return text.partition("\t")[0].rstrip()
    raw = _ESCAPE.sub(_unescaped, text[1 : text.rindex('"')])
    return raw.encode("latin-1", "surrogateescape").decode("utf-8", "surrogateescape")


def _unescaped(match: re.Match[str]) -> str:
    letter = match[1]
    return chr(int(letter, 8)) if len(letter) == 3 else _ESCAPES.get(letter, letter)


def _without_prefixes(old: str, new: str) -> tuple[str, str]:
    has_prefixes = old.startswith("a/") or old == _NOTHING
    if has_prefixes and (new.startswith("b/") or new == _NOTHING):
        return old.removeprefix("a/"), new.removeprefix("b/")
    return old, new
