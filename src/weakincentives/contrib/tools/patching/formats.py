"""The two formats of patches: V4A, which OpenAI's models write, and unified diffs.

A V4A patch goes from `*** Begin Patch` to `*** End Patch`. A unified diff is as `diff -u` and git
write it, and as models imitate it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from textwrap import dedent

from weakincentives.contrib.tools.editing.match import excerpt
from weakincentives.contrib.tools.patching.hunks import (
    FilePatch,
    HunkBuilder,
    PatchError,
    check_placeholders,
)

_Parser = Callable[[str], tuple[FilePatch, ...]]
_BEGIN = "*** Begin Patch"
_END = "*** End Patch"
_ADD = "*** Add File:"
_UPDATE = "*** Update File:"
_DELETE = "*** Delete File:"
_MOVE = "*** Move to:"
_END_OF_FILE = "*** End of File"
_SECTIONS = (_ADD, _UPDATE, _DELETE)
_IN_UPDATES = (*_SECTIONS, _MOVE, _END_OF_FILE, "@@")
_GIT_HEADER = "diff --git "
_NULL_PATH = "/dev/null"
_BINARY_MARKERS = ("GIT binary patch", "Binary files ")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_LINK_MODE = "120000"


def patched_paths(text: str) -> tuple[str, ...]:
    """Return the paths that a patch may touch, as it spells them, without duplicates.

    Raises:
        PatchError: The text is not a patch.
    """
    patches: list[FilePatch] = []
    errors: list[PatchError] = []
    parsers = select_parsers(text)
    for parse in parsers:
        try:
            patches += parse(text)
        except PatchError as error:
            errors.append(error)
    if len(errors) == len(parsers):
        raise errors[0]
    named = ((each.path, each.new_path, each.other_path) for each in patches)
    return tuple(dict.fromkeys(path for names in named for path in names if path is not None))


def select_parsers(text: str) -> tuple[_Parser, ...]:
    """Return the parsers to try, the likeliest first; the first that can be applied counts."""
    # the first marker decides: either format can contain the other as text
    for line in text.split("\n"):
        if line.strip() == _BEGIN:
            padded = partial(parse_v4a, padded=True)
            return (parse_v4a, padded) if _has_padded_markers(text) else (parse_v4a,)
        if line.startswith(("--- ", "diff --git ")):
            break
    return (parse_unified,)


def parse_v4a(text: str, *, padded: bool = False) -> tuple[FilePatch, ...]:
    """Return the patch of each file.

    Leading spaces before a marker are ignored where only a marker can be. In an update, a
    marker after a space could also be an unchanged line; if `padded`, it is a marker.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    start, stop = _find_bounds(text, lines)
    _dedent(lines, start, stop)
    if padded:
        lines = [_strip_padding(line) for line in lines]
    found = tuple(_parse_sections(lines, start, stop))
    if not found:
        raise PatchError(f"Patch names no file; start with one of {', '.join(_SECTIONS)}")
    return found


def _has_padded_markers(text: str) -> bool:
    return any(
        line[:1].isspace() and line.lstrip().startswith(_IN_UPDATES) for line in text.split("\n")
    )


def _find_bounds(text: str, lines: Sequence[str]) -> tuple[int, int]:
    """Return the line after `*** Begin Patch`, and the line of `*** End Patch`."""
    markers = [line.rstrip() for line in lines]
    bare = [line.strip() for line in lines]
    if _BEGIN not in bare:
        raise PatchError(f"Patch does not start with {_BEGIN!r}: {excerpt(text)}")
    if _END not in bare:
        raise PatchError(
            f"Patch does not end with {_END!r}, so part of it may be missing: "
            f"{excerpt(lines[-1] or lines[max(len(lines) - 2, 0)])}\nSend the whole patch"
        )
    ends = markers if _END in markers else bare
    return bare.index(_BEGIN) + 1, len(ends) - 1 - ends[::-1].index(_END)


def _dedent(lines: list[str], start: int, stop: int) -> None:
    """Remove indentation common to all lines of a patch; otherwise no line would have a sign."""
    first = next((line for line in lines[start:stop] if line.strip()), "")
    if first[:1].isspace() and first.lstrip().startswith(_SECTIONS):
        lines[start:stop] = dedent("\n".join(lines[start:stop])).split("\n")


def _strip_padding(line: str) -> str:
    return line.lstrip() if line.lstrip().startswith(_IN_UPDATES) else line


def _parse_sections(lines: Sequence[str], start: int, stop: int) -> list[FilePatch]:
    heads: list[int] = []
    for at in range(start, stop):
        # only in an update does a leading space mean something: an unchanged line
        in_update = bool(heads) and lines[heads[-1]].lstrip().startswith(_UPDATE)
        line = lines[at] if in_update else lines[at].lstrip()
        if line.startswith(_SECTIONS):
            heads.append(at)
        elif not heads and line:
            raise _unexpected_line_error(lines[at], at)
    return [_parse_section(lines, at, end) for at, end in pairwise([*heads, stop])]


def _parse_section(lines: Sequence[str], start: int, stop: int) -> FilePatch:
    head = lines[start].strip()
    kind = next(each for each in _SECTIONS if head.startswith(each))
    path = head.removeprefix(kind).strip()
    if not path:
        raise PatchError(f"Line {start + 1} of the patch has no file path: {head!r}")
    if kind == _ADD:
        return FilePatch("add", path, content=_parse_added(lines, start + 1, stop))
    if kind == _DELETE:
        for number in range(start + 1, stop):
            if lines[number].strip():
                raise _unexpected_line_error(lines[number], number)
        return FilePatch("delete", path)
    return _parse_update(path, lines, start + 1, stop)


def _parse_added(lines: Sequence[str], start: int, stop: int) -> str:
    while stop > start and not lines[stop - 1]:
        stop -= 1
    added: list[str] = []
    for number in range(start, stop):
        line = lines[number]
        if line and not line.startswith("+"):
            raise PatchError(
                f"Line {number + 1} of the patch, in a new file, does not start with '+': "
                f"{excerpt(line)}\nStart every line of a new file with '+'"
            )
        added.append(line[1:])
    return "".join(line + "\n" for line in added)


def _parse_update(path: str, lines: Sequence[str], start: int, stop: int) -> FilePatch:
    new_path = None
    if start < stop and lines[start].startswith(_MOVE):
        new_path = lines[start].strip().removeprefix(_MOVE).strip()
        start += 1
    hunks: list[HunkBuilder] = []
    for number in range(start, stop):
        _parse_line(hunks, lines[number], number)
    built = tuple(hunk.build() for hunk in hunks if hunk.body)
    found = tuple(hunk for hunk in built if hunk.old or hunk.new)
    for hunk in found:
        check_placeholders(hunk.old, hunk.new)
    if not found and new_path is None:
        raise PatchError(
            f"Update of {path!r} changes nothing\nAdd lines that start with '-' or '+' below '@@'"
        )
    return FilePatch("move" if new_path else "update", path, found, new_path)


def _parse_line(hunks: list[HunkBuilder], line: str, number: int) -> None:
    """Add a line of an update to the last hunk, or start another one."""
    if line.startswith("@@"):
        # several anchors in a row go from the outermost to the innermost block
        if not hunks or hunks[-1].body:
            hunks.append(HunkBuilder())
        hunks[-1].read_header(line)
    elif line.rstrip() == _END_OF_FILE and hunks:
        hunks[-1].at_end = True
    elif line.startswith("***"):
        raise _unexpected_line_error(line, number)
    elif line or hunks:
        if not hunks or hunks[-1].at_end:
            hunks.append(HunkBuilder())
        hunks[-1].read(line, number + 1)


def _unexpected_line_error(line: str, number: int) -> PatchError:
    known = (*_SECTIONS, _MOVE, _END_OF_FILE, _END)
    return PatchError(
        f"Line {number + 1} of the patch is not allowed there: {excerpt(line)}\n"
        f"Allowed are {', '.join(known)} and, in updates, '@@' and lines that start with"
        " ' ', '+' or '-'"
    )


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
    """Return the patch of each file in a diff."""
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
