"""The steps of a recording as rows of the list, and what they add up to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec

from weakincentives.runtime.timeline import StepRecord, describe_step, step_command, step_request

_MAX_PATHS = 100  # changed paths named in a row


class Row(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename={"number": "n"}):
    """A step as a row; what is missing in JSON has its default."""

    number: int
    kind: str
    title: str
    at: datetime
    parent: int | None = None
    branch: str | None = None
    ok: bool = True
    rolled_back: bool = False
    command: str | None = None
    """How its command ended."""
    command_failed: bool = False
    ms: float | None = None
    undoes: int | None = None
    client: str | None = None
    tokens: dict[str, Any] | None = None
    cost: float | None = None
    tool: str | None = None
    paths: tuple[str, ...] = ()
    """The files that changed, or at least the directories."""
    changes: int = 0


def create_row(step: StepRecord) -> Row:
    """Return a step as a row."""
    details = step.details
    command = step_command(step)
    paths = () if step.parent is None else tuple(changed_files(step))
    usage, cost = details.get("usage"), details.get("cost")
    return Row(
        number=step.number,
        kind=step.kind,
        title=describe_step(step),
        at=step.created_at,
        parent=step.parent,
        branch=step.branch,
        ok=step.success,
        rolled_back=step.kind == "tool" and not step.success,
        command=None if command is None else str(command),
        command_failed=command is not None and command.failed,
        ms=step.duration_ms,
        undoes=step.undoes,
        client=step.client,
        tokens=cast("dict[str, Any]", usage) if isinstance(usage, dict) else None,
        cost=cost if isinstance(cost, int | float) else None,
        tool=details.get("tool"),
        paths=paths[:_MAX_PATHS],
        changes=len(paths),
    )


def changed_files(step: StepRecord) -> Mapping[str, str]:
    """Return the files that a step changed, with A, M or D; without any, the directories."""
    if not step.files:
        return _NO_FILES
    found = {each.path: {each.before.kind, each.after.kind} for each in step.files}
    files = {path for path, kinds in found.items() if kinds - {"absent", "directory"}}
    return {
        each.path: _letter(each.before.kind, each.after.kind)
        for each in sorted(step.files, key=lambda each: each.path)
        if not files or each.path in files
    }


_NO_FILES: Mapping[str, str] = {}


def _letter(before: str, after: str) -> str:
    if before == "absent":
        return "A"
    return "D" if after == "absent" else "M"


@dataclass(slots=True)
class Figures:
    """What steps add up to; one step after the other is added."""

    task: str = ""
    request: str = ""
    """The last one of the user, if it is not the task."""
    model: str | None = None
    steps: int = 0
    tool_calls: int = 0
    failed_calls: int = 0
    failed_commands: int = 0
    cost: float | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    test_runs: int = 0
    failed_tests: int = 0
    _is_tested: bool = False
    _answers: dict[str, int] = field(default_factory=dict[str, int])
    _prompts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, step: StepRecord, row: Row) -> None:
        """Count a step."""
        request = step_request(step)
        if self.task and request and not self._is_tested:  # or it is what the tests printed
            self.request = request
        self.task = self.task or request
        self._is_tested = row.kind == "test"
        if self.model is None and step.details.get("model"):
            self.model = str(step.details["model"])
        self.steps += 1
        self.started_at, self.ended_at = self.started_at or row.at, row.at
        self.cost = self.cost if row.cost is None else (self.cost or 0) + row.cost
        if row.kind == "test":
            self.test_runs += 1
            self.failed_tests += row.command_failed
        elif row.kind == "tool":
            self.tool_calls += 1
            self.failed_calls += not row.ok
            self.failed_commands += row.command_failed
        elif row.tokens is not None and row.kind in ("model", "context", "end"):
            counted = self._prompts if row.kind == "end" else self._answers
            for name in _TOKENS:
                counted[name] = counted.get(name, 0) + int(row.tokens.get(name) or 0)

    @property
    def tokens(self) -> dict[str, int]:
        """The tokens of all answers and summaries; without any, those of the prompts."""
        found = self._answers or self._prompts
        return {name: found.get(name, 0) for name in _TOKENS}

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        names = [each for each in self.__slots__ if not each.startswith("_")]
        return {name: getattr(self, name) for name in names} | {"tokens": self.tokens}


_TOKENS = ("input_tokens", "output_tokens", "cached_tokens")


def add_up(steps: Iterable[tuple[StepRecord, Row]]) -> Figures:
    """Return what steps add up to."""
    figures = Figures()
    for step, row in steps:
        figures.add(step, row)
    return figures
