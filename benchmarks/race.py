"""Turn subjects into contenders that all answer the same question."""

from collections.abc import Callable, Iterable

from benchmarks.harness import Contender, Role
from benchmarks.subject import Subject


def race(
    role: Role,
    subjects: Iterable[Subject],
    ask: Callable[[Subject], Callable[[], object]],
    check: Callable[[Subject, object], None],
    *,
    repeat: int = 1,
    wall: float = 60.0,
) -> tuple[Contender, ...]:
    """One contender for each subject: `ask(subject)` is timed, `check(subject, answer)` is not."""
    return tuple(
        Contender(
            subject.name,
            role,
            ask(subject),
            _checker(subject, check),
            repeat=repeat,
            wall=wall,
        )
        for subject in subjects
    )


class Fresh:
    """A subject that is made anew before every sample, so that nothing is remembered."""

    def __init__(self, make: Callable[[], Subject]) -> None:
        """Make the first one."""
        self.make = make
        self.subject: Subject = make()

    @property
    def name(self) -> str:
        """The name of the subject."""
        return self.subject.name

    def renew(self) -> None:
        """Close the old one, make a new one."""
        self.subject.close()
        self.subject = self.make()

    def close(self) -> None:
        """Close the last one."""
        self.subject.close()

    def contender(
        self,
        role: Role,
        run: Callable[[Subject], object],
        check: Callable[[Subject, object], None],
        *,
        wall: float = 60.0,
    ) -> Contender:
        """A contender that starts from nothing in every sample."""
        return Contender(
            self.name,
            role,
            lambda: run(self.subject),
            lambda answer: check(self.subject, answer),
            prepare=self.renew,
            wall=wall,
        )


def _checker(
    subject: Subject, check: Callable[[Subject, object], None]
) -> Callable[[object], None]:
    return lambda answer: check(subject, answer)
