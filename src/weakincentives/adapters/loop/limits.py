"""The bounds of a run: its deadline, its budget, and whether somebody has cancelled it."""

from dataclasses import dataclass

from weakincentives.adapters.cancellation import CancellationToken
from weakincentives.runtime import BudgetTracker, Deadline


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What may end a run from outside; checked before and after everything that it does."""

    cancellation: CancellationToken
    deadline: Deadline | None = None
    tracker: BudgetTracker | None = None

    def check(self, what: str) -> None:
        """Return while the run may go on.

        Raises:
            RunCancelledError: Somebody has cancelled it.
            DeadlineExceededError: There is no time left.
            BudgetExceededError: More was used than allowed.
        """
        self.cancellation.check(what)
        if self.deadline is not None:
            self.deadline.check(what)
        if self.tracker is not None:
            self.tracker.check(what)

    def seconds_left(self) -> float | None:
        """Return how much time there is; None is no limit."""
        return None if self.deadline is None else self.deadline.remaining().total_seconds()

    def tokens_left(self, wanted: int | None) -> int | None:
        """Return how long an answer may be: what is wanted, or less where the budget ends."""
        if wanted is None or self.tracker is None:
            return wanted
        budget, used = self.tracker.budget, self.tracker.usage
        for allowed, spent in (
            (budget.max_output_tokens, used.output_tokens),
            (budget.max_total_tokens, used.total_tokens),
        ):
            if allowed is not None:
                wanted = min(wanted, max(1, allowed - spent))
        return wanted


def earliest_deadline(*deadlines: Deadline | None) -> Deadline | None:
    """Return the deadline that ends first; they may have different clocks."""
    return min((each for each in deadlines if each is not None), key=_left, default=None)


def _left(deadline: Deadline) -> float:
    return deadline.remaining().total_seconds()
