"""Changes of files as JSON values: hunks of highlighted lines, with their numbers on both sides."""

import re
from collections.abc import Iterator
from typing import Any

from weakincentives.debug.content import Mask, decode_text, image_type, shorten_line
from weakincentives.debug.highlight import Token, highlight
from weakincentives.filesystem import Change, Diff, FileStat, ReadableFilesystem
from weakincentives.filesystem.base import is_binary
from weakincentives.filesystem.diff import changed_blocks, hunks, split_lines

MAX_CHANGES = 300
"""Files whose lines are shown; of others, only the path."""
MAX_DIFF_LINES = 5_000
"""Lines in all changes of one answer; what exceeds them is named only."""
_MAX_BYTES = 2 * 1024 * 1024
_CONTEXT = 3
_HEADER = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


def describe_diff(
    found: Diff,
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    *,
    mask: Mask = str,
    colours: bool = True,
) -> dict[str, Any]:
    """Return the changes with their lines, and the totals."""
    room = MAX_DIFF_LINES
    entries: list[dict[str, Any]] = []
    for change in found.entries:
        if change.is_directory:
            continue
        facts = _facts(change, mask)
        if room > 0 and len(entries) < MAX_CHANGES:
            facts |= _describe_lines(change, before, after, mask, colours=colours)
            length = sum(len(each["lines"]) for each in facts["hunks"])
            room -= length
            if room < 0:
                facts |= {"hunks": [], "omitted": f"{length:,} lines are not shown"}
        else:
            facts |= {"hunks": [], "omitted": "too many changes to show all"}
        entries.append(facts)
    return {
        "changes": entries,
        "insertions": sum(each.get("insertions", 0) for each in entries),
        "deletions": sum(each.get("deletions", 0) for each in entries),
    }


def _facts(change: Change, mask: Mask) -> dict[str, Any]:
    before, after = change.before, change.after
    facts: dict[str, Any] = {
        "path": mask(change.path),
        "kind": change.kind,
        "source": None if change.source is None else mask(change.source),
        "sizes": [None if each is None else each.size_bytes for each in (before, after)],
    }
    if before and after and before.permissions != after.permissions:
        facts["permissions"] = [f"{each.permissions:04o}" for each in (before, after)]
    return facts


def _describe_lines(
    change: Change,
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    mask: Mask,
    *,
    colours: bool,
) -> dict[str, Any]:
    sizes = [each.size_bytes for each in change.sides]
    if max(sizes, default=0) > _MAX_BYTES:
        return {"hunks": [], "omitted": f"{max(sizes):,} bytes: too large to compare here"}
    old, new = _read(before, change.before), _read(after, change.after)
    if old is None or new is None:
        what = "a picture" if image_type(change.path) else "binary"
        return {"hunks": [], "omitted": what}
    lines, new_lines = (split_lines(mask(decode_text(each)).encode()) for each in (old, new))
    tokens, new_tokens = (
        _tokens(change.path, each, colours=colours) for each in (lines, new_lines)
    )
    blocks = changed_blocks(lines, new_lines)
    return {
        "insertions": sum(each.new_stop - each.new_start for each in blocks),
        "deletions": sum(each.stop - each.start for each in blocks),
        "hunks": [
            _hunk(each, tokens, new_tokens) for each in hunks(lines, new_lines, blocks, _CONTEXT)
        ],
    }


def _tokens(path: str, lines: list[bytes], *, colours: bool) -> list[list[Token]]:
    text = "".join(f"{shorten_line(_strip(each))}\n" for each in lines)
    return highlight(path, text, colours=colours)


def _strip(line: bytes) -> str:
    return line.decode().removesuffix("\n")


def _read(files: ReadableFilesystem, found: FileStat | None) -> bytes | None:
    """Return the text of one side, None if it is binary."""
    if found is None:
        return b""
    if found.link_target is not None:
        return f"-> {found.link_target}\n".encode("utf-8", "replace")
    if not found.is_file:
        return b""
    data = files.read_bytes(found.path).content
    return None if is_binary(data) else data


def _hunk(data: bytes, old: list[list[Token]], new: list[list[Token]]) -> dict[str, Any]:
    header = _HEADER.match(data)
    assert header is not None
    first, new_first = int(header[1]), int(header[3])
    # an empty side is numbered by the line before it
    at = first - (header[2] != b"0")
    new_at = new_first - (header[4] != b"0")
    return {
        "header": header[0].decode().strip(),
        "lines": list(_lines(data[header.end() :], (at, new_at), old, new)),
    }


def _lines(
    data: bytes, start: tuple[int, int], old: list[list[Token]], new: list[list[Token]]
) -> Iterator[dict[str, Any]]:
    at, new_at = start
    for line in split_lines(data):
        sign = chr(line[0])
        if sign == "\\":
            yield {"sign": sign, "old": None, "new": None, "tokens": [["", _strip(line)]]}
        elif sign == "-":
            at += 1
            yield {"sign": sign, "old": at, "new": None, "tokens": old[at - 1]}
        elif sign == "+":
            new_at += 1
            yield {"sign": sign, "old": None, "new": new_at, "tokens": new[new_at - 1]}
        else:
            at, new_at = at + 1, new_at + 1
            yield {"sign": sign, "old": at, "new": new_at, "tokens": new[new_at - 1]}
