"""What was done with the changes of a run, as data, and the exit code that follows from it."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "nothing",
    "applied",
    "applied-partly",
    "committed",
    "committed-partly",
    "branched",
    "branched-partly",
    "patched",
    "patched-partly",
    "discarded",
    "kept",
    "reply",
    "interrupted",
    "conflict",
    "failed",
]
EXIT_DONE, EXIT_FAILED, EXIT_KEPT, EXIT_CONFLICT = 0, 1, 3, 4
_EXIT_CODES: dict[str, int] = {
    "kept": EXIT_KEPT,
    "partly": EXIT_KEPT,
    "interrupted": EXIT_KEPT,
    "conflict": EXIT_CONFLICT,
    "failed": EXIT_FAILED,
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was done with the changes, and the facts about them as data."""

    outcome: Outcome
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    reply: str | None = None
    """What the user told the model instead of deciding."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return _EXIT_CODES.get(self.outcome.rpartition("-")[2], EXIT_DONE)
