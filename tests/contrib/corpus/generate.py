"""Writes `generated.json`: edits of real-looking files, with mistakes that models make.

`python3 -m tests.contrib.corpus.generate` from the project's directory. Nothing of the
package is imported. A case begins with what is meant: lines of a file as they are
stored, and what they are to become, byte for byte. Then the text of the edit is
spoilt, and the expected outcome stays what was meant. Whether a spoilt text can still
mean one place only is judged here, by comparing blurred lines one by one.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.contrib.corpus.files import UNITS, Lines, Stored, blurred, clean, places, stored
from tests.contrib.corpus.meanings import CHANGES, New
from tests.contrib.corpus.mistakes import spoilt
from tests.contrib.corpus.refused import REFUSALS, Case

OUTPUT = Path(__file__).parent / "generated.json"


@dataclass(frozen=True)
class Recipe:
    """Cases to make: the file, how it is stored, what is wrong with the edit, what comes of it."""

    category: str
    source: str
    dressings: tuple[str, ...] = ()
    mistakes: tuple[str, ...] = ()
    grade: str = "exact"
    count: int = 2
    edit_ends: str = "\n"


def solvable(recipe: Recipe, file: Stored, random: Random) -> Case | None:
    """Return a case that lands, or None if the dice fell badly."""
    size = random.randint(2, 6)
    start = random.randrange(0, max(len(file.lines) - size, 1))
    stop = min(start + size, len(file.lines))
    closed = "final-newline" in recipe.mistakes or random.random() < 0.5
    if "final-newline" in recipe.mistakes:
        start, stop = len(file.lines) - size, len(file.lines)
    if not closed and file.lines[stop - 1] != file.lines[stop - 1].rstrip():
        return None
    if not file.lines[start].strip() or not file.lines[stop - 1].strip():
        return None
    if len({end for end in file.ends[start:stop] if end}) > 1:
        return None
    span = [blurred(line) for line in file.lines[start:stop]]
    if len(places([blurred(line) for line in file.lines], span)) != 1:
        return None
    new = random.choice(CHANGES)(file, start, stop, random)
    return None if new is None else _case(recipe, file, (start, stop, closed), new)


def _case(
    recipe: Recipe, file: Stored, where: tuple[int, int, bool], new: list[New]
) -> Case | None:
    start, stop, closed = where
    quoted = [(line, True) for line in file.lines[start:stop]]
    there = file.lines[start:stop]
    old_lines = spoilt(quoted, recipe.mistakes, start + 1, there)
    new_lines = spoilt([(line.text, line.kept) for line in new], recipe.mistakes, start + 1, there)
    begin, end = file.slice(start, stop, closed)
    if old_lines is None or new_lines is None:
        return None
    final = recipe.edit_ends if closed else ""
    old = recipe.edit_ends.join(old_lines) + final
    is_spoilt = old not in file.text
    if is_spoilt != (recipe.grade != "exact" or recipe.category == "gutters"):
        return None
    if not _is_needed(recipe, there, old_lines):
        return None
    last = file.ends[stop - 1] if closed else ""
    put = "".join(
        line.text + (file.ends[line.origin] or file.ends[0] if number < len(new) - 1 else last)
        for number, line in enumerate(new)
    )
    return {
        "category": recipe.category,
        "text": file.key,
        "old": old,
        "new": recipe.edit_ends.join(new_lines) + (final if new_lines else ""),
        "span": [begin, end],
        "put": put,
        "grade": recipe.grade,
    }


def _is_needed(recipe: Recipe, there: Lines, old: Lines) -> bool:
    """Return whether less than the grade would not find these lines."""
    if recipe.grade == "trailing space":
        return there != old
    if recipe.grade == "indentation":
        return [line.rstrip() for line in there] != [line.rstrip() for line in old]
    if recipe.grade == "unicode":
        return [line.strip() for line in there] != [line.strip() for line in old]
    return True


ALL = tuple(UNITS)
BRACED = ("cart.ts", "ring.c", "Scheduler.java", "lexer.rs", "page.html")
QUOTING = ("inventory.py", "cart.ts", "page.html", "Scheduler.java", "report.sql")
WIDE = ("inventory.py", "ring.c", "Scheduler.java", "lexer.rs")
NARROW = ("cart.ts", "deploy.yaml", "page.html")
NESTED = (*BRACED, "inventory.py", "deploy.yaml", "server.go")
LISTED = ("inventory.py", "server.go", "deploy.yaml")

# category, sources, how the file is stored, mistakes, grade, how many for each source
Row = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], str, int]

ROWS: tuple[Row, ...] = (
    ("as it is", ALL, (), (), "exact", 1),
    ("crlf file", ALL, ("crlf",), (), "line endings", 2),
    ("half crlf", ALL, ("half-crlf",), (), "line endings", 1),
    ("bom", ALL, ("bom", "crlf"), (), "line endings", 1),
    ("no final newline", ALL, ("no-end",), ("final-newline",), "line endings", 1),
    ("trailing blanks in file", ALL, ("trailing",), ("rstripped",), "trailing space", 2),
    ("trailing blanks in edit", ALL, (), ("trailing-added",), "trailing space", 1),
    ("trailing and crlf", ALL, ("trailing", "crlf"), ("rstripped",), "trailing space", 1),
    ("blank lines indented", QUOTING, ("blank-indent",), ("rstripped",), "trailing space", 1),
    ("shifted right", ALL, (), ("right-4",), "indentation", 1),
    ("shifted right", ALL, ("crlf",), ("right-2",), "indentation", 1),
    ("spaces for tabs", ("server.go", "build.mk"), (), ("tabs-as-4",), "indentation", 3),
    ("spaces for tabs", ("server.go", "build.mk"), (), ("tabs-as-8",), "indentation", 3),
    ("spaces for tabs", ("server.go", "build.mk"), (), ("tabs-as-2",), "indentation", 3),
    ("spaces for tabs", WIDE, ("tabs",), ("tabs-as-4",), "indentation", 3),
    ("spaces for tabs", WIDE, ("tabs", "crlf"), ("tabs-as-8",), "indentation", 2),
    ("tabs for spaces", WIDE, (), ("4-as-tabs",), "indentation", 3),
    ("tabs for spaces", NARROW, (), ("2-as-tabs",), "indentation", 2),
    ("tabs and shifted", WIDE, ("tabs",), ("right-tab", "tabs-as-4"), "indentation", 2),
    ("halved", WIDE, (), ("halved",), "indentation", 2),
    ("doubled", NARROW, (), ("doubled",), "indentation", 2),
    ("dedented", NESTED, (), ("dedented",), "indentation", 3),
    ("first line stripped", NESTED, ("crlf",), ("first-stripped",), "line endings", 1),
    (
        "first line stripped",
        NESTED,
        ("trailing",),
        ("rstripped", "first-stripped"),
        "indentation",
        1,
    ),
    (
        "all at once",
        WIDE,
        ("tabs", "trailing", "crlf", "bom"),
        ("rstripped", "tabs-as-4"),
        "indentation",
        2,
    ),
    ("curly file", QUOTING, ("curly",), ("straight",), "unicode", 2),
    ("curly edit", QUOTING, (), ("curled",), "unicode", 2),
    ("curly crlf file", QUOTING, ("curly", "crlf"), ("straight",), "unicode", 1),
    ("curly and shifted", QUOTING, ("curly",), ("straight", "right-4"), "unicode", 1),
    ("hard spaces in file", QUOTING, ("hard-spaces",), ("straight",), "unicode", 1),
    ("hard spaces in edit", QUOTING, (), ("hard-spaced",), "unicode", 1),
    ("zero width in edit", QUOTING, (), ("zero-width",), "unicode", 1),
    ("dashes in edit", QUOTING, (), ("dashed",), "unicode", 1),
    ("dashes in file", ("report.sql",), ("dashes",), ("straight",), "unicode", 3),
    ("typography", ("handbook.md",), (), ("straight",), "unicode", 8),
    ("typography", ("handbook.md",), ("nfd",), ("straight",), "unicode", 4),
    ("typography", ("handbook.md",), ("crlf", "bom"), ("straight",), "unicode", 3),
    ("composed otherwise", ("handbook.md",), ("nfd",), ("composed",), "unicode", 3),
    ("composed otherwise", ("handbook.md",), (), ("apart",), "unicode", 3),
    ("gutters", ALL, (), ("cat-n",), "exact", 1),
    ("gutters", LISTED, (), ("arrow",), "exact", 1),
    ("gutters", LISTED, (), ("pipe",), "exact", 1),
    ("gutters", LISTED, (), ("colon",), "exact", 1),
    ("gutters", LISTED, (), ("grep",), "exact", 1),
    ("gutters", LISTED, ("crlf",), ("cat-n",), "line endings", 1),
)


def recipes() -> Iterator[Recipe]:
    """Yield what to make."""
    for category, sources, dressings, mistakes, grade, count in ROWS:
        for source in sources:
            yield Recipe(category, source, dressings, mistakes, grade, count)
    for source in ALL:
        yield Recipe("crlf edit", source, (), (), "line endings", 1, "\r\n")
        half = ("half-crlf",)
        yield Recipe("crlf edit of half crlf", source, half, (), "line endings", 1, "\r\n")


def within_lines(source: str, dressings: tuple[str, ...], count: int) -> list[Case]:
    """Return edits of a part of a line that is typed as a keyboard has it."""
    file = stored(source, dressings)
    random = Random(f"within {source} {dressings}")
    made: list[Case] = []
    while len(made) < count:
        number = random.randrange(len(file.lines))
        words = file.lines[number].split(" ")
        if len(words) < 4:
            continue
        start = random.randrange(len(words) - 2)
        before, part = " ".join(words[:start]), " ".join(words[start : start + 3])
        old = clean(part)
        if old in file.text or clean(file.text).count(old) != 1 or len(old) < 8:
            continue
        begin = file.starts[number] + len(before) + (start > 0)
        made.append(
            {
                "category": "part of a line",
                "text": file.key,
                "old": old,
                "new": old + " and more",
                "span": [begin, begin + len(part)],
                "put": old + " and more",
                "grade": "unicode",
            }
        )
    return made


def cases() -> Iterator[Case]:
    """Yield every case; the same ones each time."""
    for number, recipe in enumerate(recipes()):
        yield from _made(recipe, Random(f"{number} {recipe}"))
    for dressings in ((), ("nfd",), ("crlf", "bom")):
        yield from within_lines("handbook.md", dressings, 5)
    for source in ALL:
        for make, count in REFUSALS:
            file, random = stored(source, ()), Random(f"{source} {make.__name__}")
            yield from _different((make(file, random) for _ in range(200)), count)


def corpus() -> dict[str, object]:
    """Return the texts and the cases, which name them."""
    made = list(cases())
    keys = sorted({str(case["text"]) for case in made})
    texts = {key: stored(*_divided(key)).text for key in keys}
    return {"texts": texts, "cases": made}


def _made(recipe: Recipe, random: Random) -> list[Case]:
    file = stored(recipe.source, recipe.dressings)
    return _different((solvable(recipe, file, random) for _ in range(400)), recipe.count)


def _different(tries: Iterator[Case | None], count: int) -> list[Case]:
    """Return the first cases that are not the same."""
    made: list[Case] = []
    for case in tries:
        if case is not None and case not in made:
            made.append(case)
        if len(made) == count:
            break
    return made


def _divided(key: str) -> tuple[str, list[str]]:
    name, *dressings = key.split("+")
    return name, dressings


if __name__ == "__main__":
    OUTPUT.write_text(json.dumps(corpus(), indent=1) + "\n", encoding="utf-8")
