"""The steps of a recording as rows of the list, what they add up to, and how a run ended."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import msgspec

from weakincentives.contrib.review import RunRecord, find_record
from weakincentives.debug.recording import RecordedSession
from weakincentives.runtime.timeline import (
    StepRecord,
    call_subject,
    describe_step,
    step_command,
    step_request,
)

_MAX_PATHS = 100  # changed paths named in a row
# commands that are taken for the tests of a project, where wink ran none itself
_TESTS = re.compile(
    r"\b(?:pytest|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest)\b"
    r"|\b(?:npm|pnpm|yarn|bun|cargo|go|make|just|mix|dotnet|gradlew?|mvnw?|swift|deno|zig|hatch|rake)"
    r"\s+(?:run\s+)?(?:test|check)\b"
)


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


def find_outcome(session: RecordedSession, chain: Sequence[StepRecord]) -> dict[str, Any]:
    """Return how the steps of a branch ended."""
    recording = session.open()
    is_newest = chain[-1].number == len(recording.steps)
    place = session.files.run if is_newest else None
    record = None if place is None else find_record(place)
    status, step = _find_status(chain, is_recording=is_newest and recording.is_recording)
    if record is not None and status == "done" and record.status in ("failed", "cancelled"):
        status = record.status
    details: Mapping[str, Any] = {} if step is None else step.details
    return {
        "status": status,
        "error": details.get("error"),
        "answer": str(details.get("text") or ""),
        "decision": "" if record is None else _describe_decision(record),
        "test": _find_test(chain),
    }


def _find_status(
    chain: Sequence[StepRecord], *, is_recording: bool
) -> tuple[str, StepRecord | None]:
    """Return how the last prompt ended, and its end; a status is empty without a prompt."""
    last = next((each for each in reversed(chain) if each.kind in ("prompt", "end")), None)
    if last is None:
        return "running" if is_recording else "", None
    if last.kind == "end":
        return "done" if last.success else "failed", last
    return "running" if is_recording else "interrupted", None


def _describe_decision(record: RunRecord) -> str:
    """Return what was done with the changes of a run."""
    paths = {path for each in record.applied for path in (*each.accepted, *each.contents)}
    applied = f"{len(paths)} paths applied" if record.applied else ""
    if record.copy is not None and record.changes:
        return f"{applied}; other changes wait" if applied else "changes wait for a decision"
    return applied or ("" if record.copy is not None else "not applied")


def _find_test(chain: Sequence[StepRecord]) -> dict[str, Any] | None:
    """Return the last run of the tests, and how many there were."""
    own = [each for each in chain if each.kind == "test"]
    found = own or [each for each in chain if each.kind == "tool" and _is_test(each)]
    if not found:
        return None
    outcomes = [step_command(each) for each in found]
    failures = [outcome is not None and outcome.failed for outcome in outcomes]
    return {
        "n": found[-1].number,
        "command": _subject(found[-1]),
        "failed": failures[-1],
        "outcome": str(outcomes[-1]),
        "runs": len(found),
        "failures": sum(failures),
    }


def _is_test(step: StepRecord) -> bool:
    outcome = step_command(step)
    return outcome is not None and not outcome.is_running and bool(_TESTS.search(_subject(step)))


def _subject(step: StepRecord) -> str:
    return call_subject(step.details.get("params") or {})
