"""The words of the documents beside their budgets: `make words` prints them.

`make check` fails where a folder has more words than its budget, or where the README is too long
or too wide. The budget of a page is a goal: one page may be longer where another is shorter.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.steps import ROOT

TOTALS: Mapping[str, int] = {"docs": 45_000, "docs/reference": 5_000, "docs/decisions": 7_000}
PAGES: Mapping[str, int] = {
    "docs/adapters.md": 2_300,
    "docs/benchmarks.md": 1_900,
    "docs/cli.md": 3_200,
    "docs/compare.md": 1_300,
    "docs/digest.md": 1_400,
    "docs/editing.md": 1_100,
    "docs/evaluate.md": 1_100,
    "docs/files.md": 2_300,
    "docs/filesystem.md": 2_600,
    "docs/frameworks.md": 600,
    "docs/index.md": 350,
    "docs/mcp.md": 2_300,
    "docs/prompts.md": 1_400,
    "docs/quickstart.md": 600,
    "docs/review.md": 1_600,
    "docs/runs.md": 1_900,
    "docs/safety.md": 1_900,
    "docs/sandbox.md": 2_900,
    "docs/sessions.md": 1_500,
    "docs/stability.md": 700,
    "docs/telemetry.md": 500,
    "docs/tools.md": 2_500,
    "docs/undo.md": 2_600,
    "docs/walkthrough.md": 1_200,
    "docs/why.md": 450,
    "docs/write-a-backend.md": 1_500,
    "docs/reference/api.md": 70,
    "docs/reference/archive-format.md": 750,
    "docs/reference/errors.md": 800,
    "docs/reference/events.md": 350,
    "docs/reference/history.md": 1_100,
    "docs/reference/json.md": 600,
    "docs/reference/limits.md": 550,
    "docs/reference/recording-format.md": 150,
    "docs/reference/session-format.md": 700,
}
README_LINES = 120
README_COLUMNS = 76
"""What fits into a block of code of the README on a forge, at the usual width of a window."""


def count(root: Path, folder: str) -> dict[str, int]:
    """Return the words of each page in a folder, not of those in folders below it."""
    pages = sorted((root / folder).glob("*.md"))
    return {each.relative_to(root).as_posix(): _words(each) for each in pages}


def problems(root: Path) -> Iterator[str]:
    """Yield a sentence for each folder over its budget, and for what is wrong with the README."""
    for folder, budget in TOTALS.items():
        total = sum(count(root, folder).values())
        if total > budget:
            yield f"{folder}: {total:,} words, {total - budget:,} more than {budget:,}"
    lines = (root / "README.md").read_text(encoding="utf-8").splitlines()
    if len(lines) > README_LINES:
        yield f"README.md: {len(lines)} lines, {len(lines) - README_LINES} more than {README_LINES}"
    in_code = False
    for number, line in enumerate(lines, start=1):
        if line.startswith("```"):
            in_code = not in_code
        elif in_code and len(line) > README_COLUMNS:
            yield f"README.md:{number}: {len(line)} characters of code, at most {README_COLUMNS}"


def main() -> int:
    """Print the tables and what is over its budget; 1 if anything is."""
    for folder, budget in TOTALS.items():
        pages = count(ROOT, folder)
        for name, words in pages.items():
            print(_row(name, words, PAGES.get(name)))
        print(_row(f"all of {folder}, {len(pages)} pages", sum(pages.values()), budget), end="\n\n")
    found = list(problems(ROOT))
    print("\n".join(found))
    return 1 if found else 0


def _row(name: str, words: int, budget: int | None) -> str:
    over = f"{words - budget:+,}" if budget and words > budget else ""
    limit = f"{budget:,}" if budget else "-"
    return f"{name:<48}{words:>8,}{limit:>8}{over:>8}".rstrip()


def _words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    sys.exit(main())
