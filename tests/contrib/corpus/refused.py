"""Edits that must be rejected: the quoted text is missing, ambiguous or not meant."""

import re
from random import Random

from tests.contrib.corpus.files import Stored, blurred, indent_of, places

Case = dict[str, object]


def stale(file: Stored, random: Random) -> Case | None:
    """The file has changed since it was read: a word of one quoted line is another one now."""
    size = random.randint(2, 6)
    start = random.randrange(0, len(file.lines) - size)
    lines = file.lines[start : start + size]
    number = random.randrange(size)
    words = re.findall(r"[A-Za-z]{4,}", lines[number])
    if not words or sum(len(line.strip()) > 5 for line in lines) < 2:
        return None
    word = random.choice(words)
    lines[number] = lines[number].replace(word, word[:-1] + "qx", 1)
    old = "\n".join(lines)
    return _refusal("stale", file, old, old + "\nmore", ["not found"], start + 1)


def missing_line(file: Stored, random: Random) -> Case | None:
    """A line in the middle was forgotten."""
    size = random.randint(4, 7)
    start = random.randrange(0, len(file.lines) - size)
    lines = file.lines[start : start + size]
    number = random.randrange(1, size - 1)
    if len(lines[number].strip()) < 6:
        return None
    del lines[number]
    old = "\n".join(lines)
    if places([blurred(line) for line in file.lines], [blurred(line) for line in lines]):
        return None
    return _refusal("missing line", file, old, old + "\nmore", ["not found"], start + 1)


def extra_line(file: Stored, random: Random) -> Case | None:
    """A line that the file does not have was made up."""
    size = random.randint(3, 6)
    start = random.randrange(0, len(file.lines) - size)
    lines = file.lines[start : start + size]
    lines.insert(random.randrange(1, size), indent_of(lines[1]) + "check_invariants(strict)")
    old = "\n".join(lines)
    if sum(len(line.strip()) > 5 for line in file.lines[start : start + size]) < 2:
        return None
    return _refusal("extra line", file, old, old + "\nmore", ["not found"], start + 1)


def other_structure(file: Stored, random: Random) -> Case | None:
    """The last line is in another block: the same words, but not the same program."""
    size = random.randint(3, 6)
    start = random.randrange(0, len(file.lines) - size)
    lines = file.lines[start : start + size]
    if not all(line.strip() for line in lines) or len(set(map(indent_of, lines))) < 2:
        return None
    if indent_of(lines[-1]) != indent_of(lines[-2]):
        return None
    lines[-1] = file.unit + lines[-1]
    old = "\n".join(lines)
    if places([blurred(line) for line in file.lines], [blurred(line) for line in lines]) != [start]:
        return None
    return _refusal(
        "other structure", file, old, old + "\nmore", ["not found", "indentation"], start + 1
    )


def other_case(file: Stored, random: Random) -> Case | None:
    """Capitals are not small letters."""
    size = random.randint(2, 4)
    start = random.randrange(0, len(file.lines) - size)
    old = "\n".join(file.lines[start : start + size]).swapcase()
    if sum(len(line.strip()) > 5 for line in old.split("\n")) < 2 or old in file.text:
        return None
    return _refusal("other case", file, old, "x = 1", ["not found", "case"], start + 1)


def ambiguous(file: Stored, random: Random) -> Case | None:
    """Several places have the same lines."""
    size = random.randint(1, 3)
    start = random.randrange(0, len(file.lines) - size)
    lines = file.lines[start : start + size]
    if not lines[0].strip() or not lines[-1].strip():
        return None
    found = places(file.lines, lines)
    old = "\n".join(lines) + "\n"
    if len(found) < 2 or file.text.count(old) != len(found):
        return None
    said = [f"{len(found)} times", *(str(number + 1) for number in found)]
    return _refusal("ambiguous", file, old, "x = 1\n", said, None)


def ambiguous_blurred(file: Stored, random: Random) -> Case | None:
    """Several places have the same lines, and none has the indentation of the edit."""
    case = ambiguous(file, random)
    if case is None:
        return None
    lines = str(case["old"]).split("\n")[:-1]
    old = "\n".join("   " + line if line.strip() else line for line in lines) + "\n"
    if old in file.text or all(line.strip() in "})]" for line in lines):
        return None
    found = places([blurred(line) for line in file.lines], [blurred(line) for line in lines])
    said = [*(str(number + 1) for number in found), "times"]
    return _refusal("ambiguous but for indentation", file, old, "x = 1\n", said, None)


def elided(file: Stored, random: Random) -> Case | None:
    """The middle of what is quoted was left out."""
    size = random.randint(5, 9)
    start = random.randrange(0, len(file.lines) - size)
    lines = file.lines[start : start + size]
    if not lines[0].strip() or not lines[-1].strip():
        return None
    old = "\n".join([lines[0], "    ...", lines[-1]])
    return _refusal("elided", file, old, lines[0], ["not found", "ellipsis"], None)


PLACEHOLDERS = (
    "# ... rest of the code unchanged ...",
    "// ... existing code ...",
    "/* ... remaining methods ... */",
    "<!-- rest of the file unchanged -->",
    "... (rest unchanged)",
    "-- ... other columns unchanged",
    "# rest of the function stays the same",
    "// existing code here",
    "{/* ... existing content ... */}",
    "[rest of file omitted]",
    "    # \u2026 unchanged \u2026",
    "// ... rest of implementation",
)


def placeholder(file: Stored, random: Random) -> Case | None:
    """The new text says that text was left out."""
    size = random.randint(3, 6)
    start = random.randrange(0, len(file.lines) - size)
    old = "\n".join(file.lines[start : start + size])
    line = random.choice(PLACEHOLDERS)
    if file.text.count(old) != 1:
        return None
    new = f"{file.lines[start]} changed\n{line}"
    return _refusal("placeholder", file, old, new, ["placeholder", line.strip()[:10]], None)


def _refusal(
    category: str, file: Stored, old: str, new: str, said: list[str], near: int | None
) -> Case | None:
    if near is not None and (not old.strip() or old in file.text):
        return None
    case: Case = {"category": category, "text": file.key, "old": old, "new": new, "says": said}
    if near is not None:
        blank = [not line.strip() for line in file.lines[near - 1 :]]
        case["near"] = near + blank.index(False)
    return case


REFUSALS = (
    (stale, 3),
    (missing_line, 1),
    (extra_line, 1),
    (other_structure, 1),
    (other_case, 1),
    (ambiguous, 2),
    (ambiguous_blurred, 1),
    (elided, 1),
    (placeholder, 2),
)
