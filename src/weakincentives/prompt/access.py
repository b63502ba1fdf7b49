"""Which files a call is about; policies decide by it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """Which files a call is about, as paths of the workspace in normal form.

    Args:
        reads: Files that it shows.
        writes: Files whose content it changes, so that they should have been read before.
        searches: Directories and files that it looks through, with everything below them.
        others: What it creates, removes or moves without regard to content.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[str, ...]:
        """What is not the same afterwards."""
        return self.writes + self.others

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(self.reads + self.writes + self.searches + self.others))
