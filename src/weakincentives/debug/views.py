"""What the page shows, as JSON values: sessions, steps, trees, changes, slices, searches."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, cast
from uuid import UUID

from weakincentives.characters import strip_escapes
from weakincentives.debug.content import Mask, describe_diff, describe_file
from weakincentives.debug.highlight import Token, highlight_output
from weakincentives.debug.recording import RecordedSession, Recording
from weakincentives.filesystem import ReadableFilesystem, diff
from weakincentives.filesystem.base import State
from weakincentives.redaction import mask_secrets, mask_values
from weakincentives.runtime.timeline import (
    StepRecord,
    StoredSession,
    describe_step,
    step_command,
    step_request,
)
from weakincentives.serde import to_builtins

MAX_ENTRIES = 100_000
"""Entries in one tree."""
_MAX_PATHS = 100  # changed paths named in the list of steps
_MAX_ITEMS = 200  # of a slice
_MAX_STRING = 100_000
_MAX_FOUND = 100
_EXCERPT = 60  # characters before and after what was found


class SessionView:
    """One session as the page shows it."""

    def __init__(
        self, session: RecordedSession, recording: Recording, *, masks: bool = False
    ) -> None:
        """Show what `recording` has; with `masks`, secrets are masked and paths shortened."""
        self._session = session
        self._recording = recording
        self._masks = masks
        self._mask: Mask = mask_secrets if masks else str

    @property
    def recording(self) -> Recording:
        """The steps and their states."""
        return self._recording

    @property
    def masks(self) -> bool:
        """Whether secrets are masked."""
        return self._masks

    def summary(self) -> dict[str, Any]:
        """Return the session in a few figures."""
        steps = self._recording.steps
        rows = [_row(each) for each in steps]
        calls = [each for each in steps if each.kind == "tool"]
        return self.clean(
            {
                "name": self._session.name,
                "task": _find_task(steps),
                "model": _find_model(steps),
                "steps": len(steps),
                "tool_calls": len(calls),
                "failed_calls": sum(not each.success for each in calls),
                "failed_commands": sum(each["command_failed"] for each in rows),
                "branches": len({each.parent for each in steps[1:]}) < len(steps) - 1,
                "tokens": _total_tokens(rows),
                "cost": _total(rows, "cost"),
                "started_at": steps[0].created_at if steps else None,
                "ended_at": steps[-1].created_at if steps else None,
                "problem": self._recording.problem,
            }
        )

    def rows(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the steps after number `since`, one row each."""
        return [self.clean(_row(each)) for each in self._recording.steps[since:]]

    def step(self, number: int) -> dict[str, Any]:
        """Return everything about a step but its files."""
        record = self._recording.step(number)
        change = record.messages
        details = dict(record.details)
        command = step_command(record)
        if command is not None and command.styled:
            details |= {
                "output": self._output(command.styled),
                "command": replace(command, styled=""),
            }
        return self.clean(
            _row(record)
            | {
                "details": _bounded(to_builtins(details)),
                "messages": [] if change is None else _bounded(list(change.items)),
                "messages_kept": None if change is None else change.start,
                "slices": list(self._changed_slices(record)),
                "commands": self._commands(number),
            }
        )

    def messages(self, number: int) -> list[Any]:
        """Return the whole conversation as it was after a step."""
        return self.clean(_bounded(list(self._recording.messages(number))))

    def slices(self, number: int) -> list[dict[str, Any]]:
        """Return all slices of all sessions after a step."""
        return self.clean(
            [
                {
                    "session": str(session.session_id),
                    "type": name,
                    "log": each.log,
                    "count": len(each.items),
                    "items": _bounded(each.items[-_MAX_ITEMS:]),
                }
                for session in self._recording.sessions(number).values()
                for name, each in session.slices.items()
            ]
        )

    def tree(self, number: int) -> dict[str, Any]:
        """Return every entry of the workspace after a step: path, kind, size."""
        return self.clean(list_tree(self._recording.files(number)))

    def file(
        self, number: int, path: str, first: int = 0, *, colours: bool = True
    ) -> dict[str, Any]:
        """Return a file as it was after a step."""
        files = self._recording.files(number)
        return describe_file(files, path, first=first, mask=self._mask, colours=colours)

    def diff(
        self,
        number: int,
        base: int | None = None,
        path: str | None = None,
        *,
        colours: bool = True,
    ) -> dict[str, Any]:
        """Return what a step changed in the files, or what differs from another step."""
        if base is None:
            base = self._recording.step(number).parent or number
        found = self._recording.diff(base, number)
        if path is not None:
            found = found.only(lambda change: path in (change.path, change.source))
        sides = self._recording.files(base), self._recording.files(number)
        shown = describe_diff(found, *sides, mask=self._mask, colours=colours)
        return {"base": base, "step": number} | shown

    def search(self, text: str, number: int) -> dict[str, Any]:
        """Return the steps, and the files of one step, that contain a text in any case."""
        wanted = text.casefold()
        files = self._recording.files(number)
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
        for step in self._recording.steps:
            for place, text in (("title", step.title), *_strings(step.details)):
                at = text.casefold().find(wanted)
                if at >= 0:
                    yield {"n": step.number, "place": place, "text": _excerpt(text, at)}
                    break

    def _changed_slices(self, step: StepRecord) -> Iterator[dict[str, Any]]:
        before: Mapping[UUID, StoredSession] = (
            {} if step.parent is None else self._recording.sessions(step.parent)
        )
        now = self._recording.sessions(step.number)
        found = ((*each, now[each[0]].slices[each[1]]) for each in step.changed_slices())
        for session_id, name, keep, each in sorted(found, key=lambda change: change[3].log):
            known = before.get(session_id)
            old = known.slices[name].items if known and name in known.slices else ()
            yield {
                "session": str(session_id),
                "type": name,
                "log": each.log,
                "before": len(old),
                "after": len(each.items),
                "kept": keep,
                "removed": _bounded(old[keep:][-_MAX_ITEMS:]),
                "added": _bounded(each.items[keep:][-_MAX_ITEMS:]),
            }

    def _commands(self, number: int) -> list[dict[str, str]]:
        """Return the commands that begin at a step."""
        main = self._session.files.main
        place = shlex.quote(main.name if self._masks else str(main))
        return [
            {"does": does, "command": f"wink {command}"}
            for does, command in (
                ("Write the files to a new directory", f"restore {place} {number} --to DIR"),
                ("Continue from here with the same task", f"resume {place} --at {number}"),
                ("Name a branch that starts here", f"fork {place} {number} --name NAME"),
                ("Print this step", f"show {place} {number}"),
            )
        ]

    def _output(self, styled: str) -> list[Token]:
        """Return output in its colours; without them if a secret in it has to be masked."""
        text = strip_escapes(styled)
        return highlight_output(styled) if self.clean(text) == text else []

    def clean(self, value: Any) -> Any:
        """Return a value as JSON values, masked if that is wanted."""
        plain = to_builtins(value)
        return mask_values(plain) if self._masks else plain


def compare(first: SessionView, second: SessionView, ends: tuple[int, int]) -> dict[str, Any]:
    """Return two runs side by side: their steps, aligned, and the files that differ."""
    left, right = (
        [view.recording.step(each) for each in _chain(view.recording, end)]
        for view, end in zip((first, second), ends, strict=True)
    )
    keys = [[(each.kind, each.title) for each in side] for side in (left, right)]
    pairs: list[tuple[int | None, int | None, bool]] = []
    for _, a, b, c, d in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        pairs += _align(left[a:b], right[c:d])
    sides = first.recording.files(ends[0]), second.recording.files(ends[1])
    titles = [{str(each.number): describe_step(each) for each in side} for side in (left, right)]
    return {
        "sessions": [first.summary(), second.summary()],
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


def _chain(recording: Recording, number: int) -> list[int]:
    chain: list[int] = []
    current: int | None = number
    while current is not None:
        chain.append(current)
        current = recording.step(current).parent
    return chain[::-1]


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


def _row(step: StepRecord) -> dict[str, Any]:
    """Return a step as a row of the list."""
    details = step.details
    paths = [] if step.parent is None else list(step.paths)
    command = step_command(step)
    return {
        "n": step.number,
        "parent": step.parent,
        "kind": step.kind,
        "title": describe_step(step),
        "at": step.created_at,
        "branch": step.branch,
        "ok": step.success,
        "rolled_back": step.kind == "tool" and not step.success,
        "command": None if command is None else str(command),
        "command_failed": command is not None and command.failed,
        "ms": step.duration_ms,
        "actor": step.actor,
        "undoes": step.undoes,
        "client": step.client,
        "tokens": details.get("usage"),
        "cost": details.get("cost"),
        "tool": details.get("tool"),
        "paths": paths[:_MAX_PATHS],
        "changes": len(paths),
    }


def _total_tokens(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the tokens of all model answers and summaries; without any, those of the prompts."""
    found = {kind: [each["tokens"] for each in rows if each["kind"] == kind] for kind in _COUNTED}
    usages = [*found["model"], *found["context"]] or found["end"]
    return {
        name: sum(int(each.get(name) or 0) for each in usages if each)
        for name in ("input_tokens", "output_tokens", "cached_tokens")
    }


_COUNTED = ("model", "context", "end")


def _total(rows: Iterable[Mapping[str, Any]], name: str) -> float | None:
    found = [each[name] for each in rows if isinstance(each[name], int | float)]
    return sum(found) if found else None


def _find_model(steps: Iterable[StepRecord]) -> str | None:
    found = (each.details.get("model") for each in steps)
    return next((str(each) for each in found if each), None)


def _find_task(steps: Iterable[StepRecord]) -> str:
    """Return the first request of the user."""
    return next((each for each in map(step_request, steps) if each), "")


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


def _bounded(value: Any) -> Any:
    """Return a JSON value whose strings are not too long to show."""
    if isinstance(value, str):
        left = len(value) - _MAX_STRING
        return value if left <= 0 else f"{value[:_MAX_STRING]}\n… {left:,} more characters"
    if isinstance(value, Mapping):
        return {str(key): _bounded(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_bounded(each) for each in cast("Sequence[Any]", value)]
    return value
