"""From a patch to what is to be done: everything is planned before anything is written."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.patching.hunks import (
    FilePatch,
    PatchError,
    PlannedChange,
    Reader,
    check_placeholders,
)
from weakincentives.contrib.tools.patching.placement import place_hunks
from weakincentives.contrib.tools.patching.unified import parse_unified
from weakincentives.contrib.tools.patching.v4a import BEGIN, has_padded_marks, parse_v4a
from weakincentives.filesystem import normalize_path

_Parser = Callable[[str], tuple[FilePatch, ...]]
_NOTHING_DONE = "Nothing was changed in any file"


def plan_patch(
    text: str, read: Reader, *, resolve: Callable[[str], str] = normalize_path
) -> tuple[PlannedChange, ...]:
    """Return what a patch does to each file, in its order.

    Args:
        text: A V4A patch (`*** Begin Patch`) or a unified diff.
        read: Gives the text of a file.
        resolve: Gives the path of a file for what the patch calls it.

    Raises:
        PatchError: The patch is not one, or a part of it has no place; nothing is to be done.
        PathEscapeError: A path leads out of the workspace.
    """
    refusals: list[PatchError] = []
    for parse in _readings(text):
        try:
            patches = _merged(_resolved(patch, resolve) for patch in parse(text))
            _check_names(patches)
            return tuple(_planned(patch, read) for patch in patches)
        except PatchError as error:
            refusals.append(error)
    # a reading whose files exist is likelier to be the one that is meant
    likely = next((each for each in reversed(refusals) if each.missing is None), refusals[0])
    raise PatchError(f"{likely}\n{_NOTHING_DONE}", missing=likely.missing) from None


def patched_paths(text: str) -> tuple[str, ...]:
    """Return the paths that a patch may be about, as it spells them, each once.

    Raises:
        PatchError: It is no patch.
    """
    patches: list[FilePatch] = []
    refusals: list[PatchError] = []
    readings = _readings(text)
    for parse in readings:
        try:
            patches += parse(text)
        except PatchError as error:
            refusals.append(error)
    if len(refusals) == len(readings):
        raise refusals[0]
    named = ((each.path, each.new_path, each.other_path) for each in patches)
    return tuple(dict.fromkeys(path for names in named for path in names if path is not None))


def _readings(text: str) -> tuple[_Parser, ...]:
    """Return the ways to read a patch, the likeliest first; what has a place is meant."""
    # the first mark decides: either format can hold the other one as text
    for line in text.split("\n"):
        if line.strip() == BEGIN:
            return (parse_v4a, _parse_padded) if has_padded_marks(text) else (parse_v4a,)
        if line.startswith(("--- ", "diff --git ")):
            break
    return (parse_unified,)


def _parse_padded(text: str) -> tuple[FilePatch, ...]:
    return parse_v4a(text, padded=True)


def _resolved(patch: FilePatch, resolve: Callable[[str], str]) -> FilePatch:
    new_path, other = patch.new_path, patch.other_path
    return replace(
        patch,
        path=resolve(patch.path),
        new_path=None if new_path is None else resolve(new_path),
        other_path=None if other is None else resolve(other),
    )


def _merged(patches: Iterable[FilePatch]) -> list[FilePatch]:
    """Return the patches with those of one file made one, if that has a meaning."""
    merged: dict[str, FilePatch] = {}
    for patch in patches:
        known = merged.get(patch.path)
        if known is None:
            merged[patch.path] = patch
        elif known.kind in {"update", "move"} and patch.kind == "update":
            merged[patch.path] = replace(known, hunks=known.hunks + patch.hunks)
        elif known.kind == "delete" and patch.kind == "add":
            merged[patch.path] = replace(known, kind="update", content=patch.content, hunks=())
        else:
            raise PatchError(
                f"Patch has two parts for one file that do not go together "
                f"({known.kind}, {patch.kind}): {patch.path!r}\nSay in one part what is to be done"
            )
    return list(merged.values())


def _check_names(patches: Iterable[FilePatch]) -> None:
    """Refuse patches of which two would write the same file."""
    written: set[str] = set()
    for patch in patches:
        path = patch.new_path or patch.path
        if path in written:
            raise PatchError(f"Patch writes a file twice: {path!r}")
        if patch.kind != "delete":
            written.add(path)


def _planned(patch: FilePatch, read: Reader) -> PlannedChange:
    current = read(patch.path)
    path = patch.path
    if current is None and patch.other_path not in {None, path}:
        path = patch.other_path or path
        current = read(path)
    if patch.kind == "add":
        return _addition(patch, current)
    if current is None:
        raise PatchError(
            f"File to {patch.kind} does not exist: {path!r}\n"
            "Look for it by name, or add it as a new file",
            missing=path,
        )
    if patch.new_path is not None and read(patch.new_path) is not None:
        raise PatchError(
            f"File cannot be moved from {path!r}, for there is one already: {patch.new_path!r}"
        )
    if patch.content is not None:
        check_placeholders(current.split("\n"), patch.content.split("\n"))
        return PlannedChange("update", path, patch.content)
    content, grade = _changed(patch, current)
    if patch.kind == "delete":
        return _deletion(patch, content)
    return PlannedChange(patch.kind, path, content, patch.new_path, grade)


def _addition(patch: FilePatch, current: str | None) -> PlannedChange:
    if current is not None:
        raise PatchError(
            f"File to add exists already: {patch.path!r}\nUpdate it, or delete it first"
        )
    return PlannedChange("add", patch.path, patch.content)


def _deletion(patch: FilePatch, left: str) -> PlannedChange:
    if patch.hunks and left:
        raise PatchError(
            f"File to delete holds lines that the patch does not have: {patch.path!r}\n"
            "Read it again before it is deleted"
        )
    return PlannedChange("delete", patch.path)


def _changed(patch: FilePatch, current: str) -> tuple[str, MatchLevel]:
    if not patch.hunks:
        return current, MatchLevel.EXACT
    try:
        return place_hunks(current, patch.hunks, literal=patch.literal)
    except PatchError as error:
        raise PatchError(f"File cannot be patched: {patch.path!r}\n{error}") from None
