"""Plan a patch: parse it, resolve its paths and compute every change before any is written."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from weakincentives.contrib.tools.editing import MatchLevel
from weakincentives.contrib.tools.patching.formats import select_parsers
from weakincentives.contrib.tools.patching.hunks import (
    FilePatch,
    PatchError,
    PlannedChange,
    Reader,
    check_placeholders,
)
from weakincentives.contrib.tools.patching.placement import place_hunks
from weakincentives.filesystem import normalize_path

_NOTHING_CHANGED = "No file was changed"


def plan_patch(
    text: str, read: Reader, *, resolve: Callable[[str], str] = normalize_path
) -> tuple[PlannedChange, ...]:
    """Return the change that a patch makes to each file, in order.

    Args:
        text: A V4A patch (`*** Begin Patch`) or a unified diff.
        read: Returns the text of a file.
        resolve: Returns the workspace path for a path in the patch.

    Raises:
        PatchError: The text is not a patch, or part of it cannot be applied.
        PathEscapeError: A path leads out of the workspace.
    """
    errors: list[PatchError] = []
    for parse in select_parsers(text):
        try:
            patches = _merge_by_file(_resolve_paths(patch, resolve) for patch in parse(text))
            _check_written_once(patches)
            return tuple(_plan_change(patch, read) for patch in patches)
        except PatchError as error:
            errors.append(error)
    # of several interpretations, one whose files all exist is the likelier
    likely = next((each for each in reversed(errors) if each.missing is None), errors[0])
    raise PatchError(f"{likely}\n{_NOTHING_CHANGED}", missing=likely.missing) from None


def _resolve_paths(patch: FilePatch, resolve: Callable[[str], str]) -> FilePatch:
    new_path, other = patch.new_path, patch.other_path
    return replace(
        patch,
        path=resolve(patch.path),
        new_path=None if new_path is None else resolve(new_path),
        other_path=None if other is None else resolve(other),
    )


def _merge_by_file(patches: Iterable[FilePatch]) -> list[FilePatch]:
    """Return the patches with those of the same file merged."""
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
                f"Patch has contradictory parts for one file "
                f"({known.kind}, {patch.kind}): {patch.path!r}\nCombine them into one part"
            )
    return list(merged.values())


def _check_written_once(patches: Iterable[FilePatch]) -> None:
    """Raise PatchError if two patches would write the same file."""
    written: set[str] = set()
    for patch in patches:
        path = patch.new_path or patch.path
        if path in written:
            raise PatchError(f"Patch writes a file twice: {path!r}")
        if patch.kind != "delete":
            written.add(path)


def _plan_change(patch: FilePatch, read: Reader) -> PlannedChange:
    current = read(patch.path)
    path = patch.path
    if current is None and patch.other_path not in {None, path}:
        path = patch.other_path or path
        current = read(path)
    if patch.kind == "add":
        return _plan_addition(patch, current)
    if current is None:
        remedy = "leave it out" if patch.kind == "delete" else "add it as a new file"
        raise PatchError(
            f"File to {patch.kind} does not exist: {path!r}\nCheck the path, or {remedy}",
            missing=path,
        )
    if patch.new_path is not None and read(patch.new_path) is not None:
        raise PatchError(
            f"File {path!r} cannot be moved; the destination already exists: {patch.new_path!r}"
        )
    if patch.content is not None:
        check_placeholders(current.split("\n"), patch.content.split("\n"))
        return PlannedChange("update", path, patch.content)
    content, level = _apply_hunks(patch, current)
    if patch.kind == "delete":
        return _plan_deletion(patch, content)
    return PlannedChange(patch.kind, path, content, patch.new_path, level)


def _plan_addition(patch: FilePatch, current: str | None) -> PlannedChange:
    if current is not None:
        raise PatchError(
            f"File to add already exists: {patch.path!r}\nUpdate it, or delete it first"
        )
    return PlannedChange("add", patch.path, patch.content)


def _plan_deletion(patch: FilePatch, left: str) -> PlannedChange:
    if patch.hunks and left:
        raise PatchError(
            f"File to delete has lines that are not in the patch: {patch.path!r}\n"
            "Read the file again before you delete it"
        )
    return PlannedChange("delete", patch.path)


def _apply_hunks(patch: FilePatch, current: str) -> tuple[str, MatchLevel]:
    if not patch.hunks:
        return current, MatchLevel.EXACT
    try:
        return place_hunks(current, patch.hunks, literal=patch.literal)
    except PatchError as error:
        raise PatchError(f"File cannot be patched: {patch.path!r}\n{error}") from None
