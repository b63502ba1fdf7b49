"""Backends that search wrongly."""

from dataclasses import replace
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import GlobMatch, GrepMatch, Results, TimeLimitError


class CrossesSegments(Memory):
    """Lets a star match a slash, as fnmatch does."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        super().glob(pattern, **where)
        wide = pattern.replace("**/", "*").replace("**", "*").replace("*", "**/*")
        return super().glob(wide, **where)


class GlobHidesDots(Memory):
    """Hides dot files, as shells do."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        found = super().glob(pattern, **where)
        return Results(match for match in found if "/." not in f"/{match.path}")


class GlobInTreeOrder(Memory):
    """Sorts by segments, depth first."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        found = super().glob(pattern, **where)
        return Results(sorted(found, key=lambda match: match.path.split("/")))


class GlobRelative(Memory):
    """Reports paths relative to the base."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        base = where.get("path", ".").strip("./") + "/"
        found = super().glob(pattern, **where)
        return Results(GlobMatch(match.path.removeprefix(base), match.is_file) for match in found)


class GrepFindsAll(Memory):
    """Reports a line twice when it matches twice."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        again = (m for m in found for _ in range(1 + m.line_content.count("xx")))
        return Results(again, truncated=found.truncated)


class GrepCountsFromZero(Memory):
    """Counts lines from 0."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        lower = (replace(match, line_number=match.line_number - 1) for match in found)
        return Results(lower, truncated=found.truncated)


class GrepIgnoresCase(Memory):
    """Ignores case."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        super().grep(pattern, **where)
        return super().grep(f"(?i){pattern}", **where)


class GrepIgnoresFilter(Memory):
    """Searches every file."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        where["glob"] = None
        return super().grep(pattern, **where)


class GrepSaysItIsAll(Memory):
    """Never reports truncation."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        return Results(super().grep(pattern, **where))


class ReadsNoIgnoreFiles(Memory):
    """Ignores ignore files."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        where["use_ignore_files"] = False
        return super().glob(pattern, **where)


class GrepLosesWhatItFound(Memory):
    """Returns nothing when time runs out."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        if found.reason != "time limit":
            return found
        return Results((), reason=found.reason, coverage=found.coverage)


class GrepRunsOutOfTimeSilently(Memory):
    """Reports a timed-out search as complete."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        return Results(found) if found.reason == "time limit" else found


class GrepForgetsWhatItMissed(Memory):
    """Does not report the files it did not search."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        return Results(found, reason=found.reason)


class GlobLosesWhatItFound(Memory):
    """Raises when time runs out."""

    def glob(self, pattern: str, **where: Any) -> Results[GlobMatch]:
        found = super().glob(pattern, **where)
        if found.reason == "time limit":
            raise TimeLimitError("Search stopped")
        return found


class GrepSkipsLateNuls(Memory):
    """Treats a file as binary if it has a NUL anywhere."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        text = (each for each in found if b"\0" not in self.read_bytes(each.path).content)
        return Results(text, reason=found.reason, coverage=found.coverage)


class GrepNeedsUtf8(Memory):
    """Treats a file as binary if its last byte is not UTF-8."""

    def grep(self, pattern: str, **where: Any) -> Results[GrepMatch]:
        found = super().grep(pattern, **where)
        text = (each for each in found if "\ufffd" not in each.line_content)
        return Results(text, reason=found.reason, coverage=found.coverage)
