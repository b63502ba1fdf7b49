"""How a run ended: its answer, its tests, and what was done with its changes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from weakincentives.contrib.review.records import RunRecord, find_record
from weakincentives.debug.recording import RecordedSession
from weakincentives.runtime.timeline import StepRecord, call_subject, step_command

# commands that are taken for the tests of a project, where wink ran none itself
_TESTS = re.compile(
    r"\b(?:pytest|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest)\b"
    r"|\b(?:npm|pnpm|yarn|bun|cargo|go|make|just|mix|dotnet|gradlew?|mvnw?|swift|deno|zig|hatch|rake)"
    r"\s+(?:run\s+)?(?:test|check)\b"
)


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
