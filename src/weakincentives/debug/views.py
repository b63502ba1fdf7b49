"""What the page shows, as JSON values: sessions, steps, trees, changes, slices, searches."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, cast
from uuid import UUID

from weakincentives.debug.content import (
    PAGE,
    Mask,
    describe_beside,
    describe_diff,
    describe_file,
    describe_messages,
    find_output,
    format_text,
    is_beside,
    list_messages,
    shorten,
)
from weakincentives.debug.recording import RecordedSession, Recording, RecordingError
from weakincentives.debug.rows import Figures, Row, changed_files, create_row, find_outcome
from weakincentives.filesystem import ReadableFilesystem, diff
from weakincentives.filesystem.base import State
from weakincentives.redaction import mask_secrets, mask_values
from weakincentives.runtime.timeline import (
    StepRecord,
    TimelineError,
    describe_step,
    step_command,
    without_collector,
)
from weakincentives.serde import convert, to_builtins

MAX_ENTRIES = 100_000
"""Entries in one tree."""
_MAX_ITEMS = 200  # of a slice
_MAX_FOUND = 100
NO_CHANGES: Mapping[str, Any] = {"changes": [], "insertions": 0, "deletions": 0}
"""The changes of a step that changed no file."""
_EXCERPT = 60  # characters before and after what was found


class SessionView:
    """One session as the page shows it."""

    def __init__(
        self, session: RecordedSession, recording: Recording, *, masks: bool = False
    ) -> None:
        """Show what `recording` has; with `masks`, secrets are masked and paths shortened."""
        self._session = session
        self.name: str = session.name
        self.recording: Recording = recording
        """The steps and their states."""
        self.masks: bool = masks
        """Whether secrets are masked."""
        self._mask: Mask = mask_secrets if masks else str
        self._rows: dict[int, Row] = {}
        self._figures = Figures()
        self._last_diff: tuple[object, dict[str, Any]] = (None, {})

    def summary(self) -> dict[str, Any]:
        """Return the session in a few figures."""
        self._read()
        return self._describe(self._figures)

    def _describe(self, figures: Figures) -> dict[str, Any]:
        return self.clean(
            {
                "name": self.name,
                "problem": self.recording.problem,
                "branches": self.recording.branches,
                **figures.describe(),
            }
        )

    def run(self, branch: str | None = None) -> dict[str, Any]:
        """Return how a branch went, by default the newest: its figures, outcome and answer.

        Raises:
            RecordingError: There is no such branch.
        """
        end = self.end(branch)
        chain = self.recording.ancestors(end)
        outcome = find_outcome(self._session, [self.recording.step(each) for each in chain])
        names = {number: name for name, number in self.recording.branches.items()}
        answer = outcome.pop("answer")
        return self.figures(end) | {
            "branch": branch or names.get(end),
            "end": end,
            "outcome": self.clean(outcome),
            "answer": format_text(self._mask(answer)) or self._mask(answer),
        }

    def figures(self, end: int) -> dict[str, Any]:
        """Return what the steps that lead to a step add up to."""
        self._read()
        chain = self.recording.ancestors(end)
        found = Figures()
        for each in chain:
            found.add(self.recording.step(each), self._rows[each])
        return self._describe(found)

    def end(self, branch: str | None = None) -> int:
        """Return the last step of a branch, by default of the newest.

        Raises:
            RecordingError: There is no such branch.
        """
        self._read()
        if branch is None:
            return max(self._rows, default=0)
        found = self.recording.branches.get(branch)
        if found is None:
            known = ", ".join(map(repr, self.recording.branches))
            raise RecordingError(f"There is no branch {branch!r}: {self.name!r} has {known}")
        return found

    def rows(self, since: int = 0) -> Sequence[Row]:
        """Return the steps after number `since`, one row each."""
        self._read()
        rows = list(self._rows.values())[since:]
        return [convert(self.clean(each), Row) for each in rows] if self.masks else rows

    def _read(self) -> None:
        """Add the steps that are new since the last call."""
        with without_collector():
            for step in self.recording.steps[len(self._rows) :]:
                row = create_row(step)
                self._rows[step.number] = row
                self._figures.add(step, row)

    def step(self, number: int, *, formats: bool = True) -> dict[str, Any]:
        """Return everything about a step but its files; with `formats`, Markdown as nodes."""
        record = self.recording.step(number)
        change = record.messages
        command = step_command(record)
        # its output is sent in colours
        plain = {} if command is None else {"command": to_builtins(replace(command, styled=""))}
        facts: dict[str, Any] = {
            "details": shorten({**record.details, **plain}),
            "output": find_output(record, self._mask),
            "messages_kept": None if change is None else change.start,
            "files": changed_files(record),
            "slices": list(self._changed_slices(record)),
            "commands": self.commands(str(number)),
            "text_nodes": None,
            "summary_nodes": None,
        }
        if formats and record.kind != "test":
            facts["text_nodes"] = self._format(record.details.get("text"))
            facts["summary_nodes"] = self._format(record.details.get("summary"))
        messages = [] if change is None else [(number, each) for each in change.items]
        beside = [(number, describe_beside(record))] if is_beside(record) else []
        row = cast("dict[str, Any]", to_builtins(create_row(record)))
        return self.clean(row | facts) | {
            "messages": self._describe_messages(messages, formats=formats),
            "beside": next(iter(self._describe_messages(beside)), None),
        }

    def _format(self, text: object) -> list[Any] | None:
        return format_text(self._mask(text)) if isinstance(text, str) else None

    def messages(self, number: int, first: int | None = None) -> dict[str, Any]:
        """Return the conversation as it was after a step, from message `first` on, or its end."""
        found = list_messages(self.recording, self.recording.ancestors(number))
        start = max(0, len(found) - PAGE) if first is None else min(first, len(found))
        # a result is shown with its call
        while start and first is None and found[start][1].get("role") == "tool":
            start -= 1
        shown = self._describe_messages(found[start : start + PAGE])
        return {"first": start, "total": len(found), "messages": shown}

    def _describe_messages(
        self, found: Sequence[tuple[int, Any]], *, formats: bool = True
    ) -> list[dict[str, Any]]:
        return describe_messages(
            self.recording, found, mask=self._mask, masks=self.masks, formats=formats
        )

    def slices(self, number: int) -> list[dict[str, Any]]:
        """Return all slices of all sessions after a step."""
        return self.clean(
            [
                {
                    "session": str(session.session_id),
                    "type": name,
                    "log": each.log,
                    "count": len(each.items),
                    "items": shorten(each.items[-_MAX_ITEMS:]),
                }
                for session in self.recording.sessions(number).values()
                for name, each in session.slices.items()
            ]
        )

    def tree(self, number: int) -> dict[str, Any]:
        """Return every entry of the workspace after a step: path, kind, size."""
        return self.clean(list_tree(self.recording.files(number)))

    def file(
        self, number: int, path: str, first: int = 0, *, colours: bool = True
    ) -> dict[str, Any]:
        """Return a file as it was after a step."""
        files = self.recording.files(number)
        return describe_file(files, path, first=first, mask=self._mask, colours=colours)

    def diff(
        self, number: int, base: int | None = None, path: str | None = None, *, colours: bool = True
    ) -> dict[str, Any]:
        """Return what a step changed in the files, or what differs from another step."""
        if base is None:
            step = self.recording.step(number)
            base = step.parent or number
            if not step.files:
                return {"base": base, "step": number, **NO_CHANGES}
        asked = base, number, path, colours
        if self._last_diff[0] != asked:  # that of a whole run is asked for each time it is opened
            found = self.recording.diff(base, number)
            if path is not None:
                found = found.only(lambda change: path in (change.path, change.source))
            sides = self.recording.files(base), self.recording.files(number)
            shown = describe_diff(found, *sides, mask=self._mask, colours=colours)
            self._last_diff = asked, {"base": base, "step": number} | shown
        return self._last_diff[1]

    def search(self, text: str, number: int) -> dict[str, Any]:
        """Return the steps, and the files of one step, that contain a text in any case."""
        wanted = text.casefold()
        files = self.recording.files(number)
        names = [path for path in _paths(files) if wanted in path.casefold()]
        found = files.grep(f"(?i){re.escape(text)}", max_matches=_MAX_FOUND)
        return self.clean(
            {
                "steps": list(self._search_steps(wanted))[:_MAX_FOUND],
                "names": names[:_MAX_FOUND],
                "lines": [
                    {
                        "path": each.path,
                        "line": each.line_number,
                        "text": _excerpt(each.line_content, each.match_start),
                    }
                    for each in found
                ],
                "truncated": found.truncated or len(names) > _MAX_FOUND,
            }
        )

    def _search_steps(self, wanted: str) -> Iterator[dict[str, Any]]:
        for step in self.recording.steps:
            for place, text in (("title", step.title), *_strings(step.details)):
                at = text.casefold().find(wanted)
                if at >= 0:
                    yield {"n": step.number, "place": place, "text": _excerpt(text, at)}
                    break

    def _changed_slices(self, step: StepRecord) -> Iterator[dict[str, Any]]:
        changed = list(step.changed_slices())
        if not changed:
            return
        values = self.recording.session_values
        try:
            before: Mapping[str, Any] = {} if step.parent is None else values(step.parent)
            now = values(step.number)
        except TimelineError:  # a step before it is lost
            return
        found = ((*each, *_find_slice(now, *each[:2])) for each in changed)
        for session_id, name, keep, is_log, items in sorted(found, key=lambda each: each[3]):
            old = _find_slice(before, session_id, name)[1]
            yield {
                "session": str(session_id),
                "type": name,
                "log": is_log,
                "before": len(old),
                "after": len(items),
                "kept": keep,
                "removed": shorten(old[keep:][-_MAX_ITEMS:]),
                "added": shorten(items[keep:][-_MAX_ITEMS:]),
            }

    def commands(self, number: str) -> list[dict[str, str]]:
        """Return the commands that begin at a step."""
        main = self._session.files.main
        place = shlex.quote(main.name if self.masks else str(main))
        return [
            {"does": does, "command": f"wink {command}"}
            for does, command in (
                ("Write the files to a new directory", f"restore {place} {number} --to DIR"),
                ("Continue from here with the same task", f"resume {place} --at {number}"),
                ("Name a branch that starts here", f"fork {place} {number} --name NAME"),
                ("Print this step", f"show {place} {number}"),
            )
        ]

    def clean(self, value: Any) -> Any:
        """Return a value as JSON values, masked if that is wanted."""
        plain = to_builtins(value)
        return mask_values(plain) if self.masks else plain


def compare(first: SessionView, second: SessionView, ends: tuple[int, int]) -> dict[str, Any]:
    """Return two runs side by side: their steps, aligned, and the files that differ."""
    left, right = (
        [view.recording.step(each) for each in view.recording.ancestors(end)]
        for view, end in zip((first, second), ends, strict=True)
    )
    keys = [[(each.kind, each.title) for each in side] for side in (left, right)]
    pairs: list[tuple[int | None, int | None, bool]] = []
    for _, a, b, c, d in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        pairs += _align(left[a:b], right[c:d])
    sides = first.recording.files(ends[0]), second.recording.files(ends[1])
    titles = [{str(each.number): describe_step(each) for each in side} for side in (left, right)]
    return {
        "sessions": [first.figures(ends[0]), second.figures(ends[1])],
        "ends": list(ends),
        "pairs": pairs,
        "titles": titles,
        "diff": describe_diff(diff(*sides), *sides),
    }


def list_tree(files: ReadableFilesystem) -> dict[str, Any]:
    """Return the entries of a workspace: path, first letter of the kind, size; sorted."""
    entries: list[tuple[str, str, int]] = []
    for _, children in State(files).directories("Tree"):
        entries += [(each.path, each.kind[0], each.size_bytes) for each in children.values()]
        if len(entries) > MAX_ENTRIES:
            break
    entries.sort()
    return {"entries": entries[:MAX_ENTRIES], "truncated": len(entries) > MAX_ENTRIES}


def _align(
    left: Sequence[StepRecord], right: Sequence[StepRecord]
) -> Iterator[tuple[int | None, int | None, bool]]:
    """Yield the steps in pairs, and whether both did the same with the same result."""
    for first, second in zip_longest(left, right):
        yield (
            first and first.number,
            second and second.number,
            first is not None and second is not None and _outcome(first) == _outcome(second),
        )


def _outcome(step: StepRecord) -> tuple[object, ...]:
    return (step.kind, step.title, *(step.details.get(each) for each in _OUTCOME))


_OUTCOME = ("tool", "params", "success", "result_message", "error", "text")


def _find_slice(
    sessions: Mapping[str, Any], session_id: UUID, name: str
) -> tuple[bool, Sequence[Any]]:
    """Return whether a slice is a log, and its items; none if it is not there."""
    found: Any = sessions
    for key in (str(session_id), "slices", name):
        found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
    given = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    items = given.get("items")
    return bool(given.get("log")), cast("Sequence[Any]", items if isinstance(items, list) else ())


def _paths(files: ReadableFilesystem) -> Iterator[str]:
    for _, children in State(files).directories("Search"):
        yield from sorted(each.path for each in children.values())


def _strings(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the strings in a JSON value, each with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, each in cast("Mapping[str, object]", value).items():
            yield from _strings(each, f"{place}.{key}" if place else key)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[object]", value):
            yield from _strings(each, place)


def _excerpt(text: str, at: int) -> str:
    start = max(0, at - _EXCERPT)
    end = at + 2 * _EXCERPT
    cut = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{cut}{'…' if end < len(text) else ''}"
