"""The corpus of edits with mistakes: solvable edits apply, and none applies elsewhere."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.contrib.corpus import generate
from tests.contrib.corpus.handmade import LANDS, REFUSALS, Lands, Refused
from weakincentives.contrib.tools.editing import Edit, EditError, EditOutcome, apply_edits

_MIN_LANDED = 0.97


@dataclass(frozen=True)
class Attempt:
    """A case of the corpus, its expected result and its actual result."""

    name: str
    text: str
    expected: str | None  # the whole text afterwards; None if the edit must be refused
    content: str | None
    level: str | None
    message: str
    said: tuple[str, ...] = ()
    expected_level: str | None = None


def attempt(text: str, edits: Sequence[Edit]) -> EditOutcome | EditError:
    try:
        return apply_edits(text, edits)
    except EditError as error:
        return error


def run_case(name: str, text: str, edits: Sequence[Edit], expected: dict[str, Any]) -> Attempt:
    outcome = attempt(text, edits)
    if isinstance(outcome, EditOutcome):
        return Attempt(
            name, text, content=outcome.content, level=outcome.match_level, message="", **expected
        )
    return Attempt(name, text, content=None, level=None, message=str(outcome), **expected)


def generated() -> Iterator[Attempt]:
    stored = json.loads(generate.OUTPUT.read_text(encoding="utf-8"))
    for number, case in enumerate(stored["cases"]):
        text: str = stored["texts"][case["text"]]
        expected: dict[str, Any] = {"expected": None}
        if "span" in case:
            start, end = case["span"]
            expected["expected"] = text[:start] + case["put"] + text[end:]
            expected["expected_level"] = case["grade"]
        else:
            near = (f"\n{case['near']:>6}\t",) if "near" in case else ()
            expected["said"] = (*case["says"], *near)
        name = f"{number} {case['category']} {case['text']}"
        yield run_case(name, text, [Edit(case["old"], case["new"])], expected)


def handmade() -> Iterator[Attempt]:
    for case in (*LANDS, *REFUSALS):
        edits = [Edit(old, new, case.replace_all) for old, new in case.edits]
        expected: dict[str, Any] = {"expected": None}
        if isinstance(case, Lands):
            expected = {"expected": case.content, "expected_level": case.level}
        else:
            expected["said"] = case.says
        yield run_case(case.name, case.text, edits, expected)


@cache
def attempts() -> tuple[Attempt, ...]:
    return (*generated(), *handmade())


def test_the_corpus_is_large_and_has_both_kinds():
    kinds = Counter(each.expected is None for each in attempts())
    assert len(attempts()) >= 300
    assert kinds[False] >= 250
    assert kinds[True] >= 100


def test_solvable_edits_are_applied():
    solvable = [each for each in attempts() if each.expected is not None]
    landed = [each for each in solvable if each.content == each.expected]
    refused = [(each.name, each.message) for each in solvable if each.content is None]
    assert len(landed) >= _MIN_LANDED * len(solvable), refused


def test_no_edit_is_applied_elsewhere_and_no_other_byte_changes():
    landed = [each for each in attempts() if each.content is not None]
    wrong = [each.name for each in landed if each.content != each.expected]
    assert wrong == []


def test_every_error_explains_itself():
    refused = [each for each in attempts() if each.expected is None]
    silent = [
        (each.name, said, each.message)
        for each in refused
        for said in each.said
        if said not in each.message
    ]
    assert silent == []


def test_no_more_is_ignored_than_needed():
    applied = [each for each in attempts() if each.content is not None]
    other = [(each.name, each.level) for each in applied if each.level != each.expected_level]
    assert other == []


def test_every_level_is_needed_many_times():
    levels = Counter(each.level for each in attempts() if each.content is not None)
    assert all(
        levels[level] >= 40
        for level in ("exact", "line endings", "trailing space", "indentation", "unicode")
    ), levels


@pytest.mark.parametrize("case", LANDS, ids=lambda case: case.name)
def test_it_is_applied(case: Lands):
    outcome = apply_edits(case.text, [Edit(old, new, case.replace_all) for old, new in case.edits])
    assert outcome.content == case.content
    assert outcome.match_level == case.level
    assert outcome.replacements == case.replacements
    assert bool(outcome.notes) == case.noted


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_it_is_refused(case: Refused):
    with pytest.raises(EditError) as caught:
        apply_edits(case.text, [Edit(old, new, case.replace_all) for old, new in case.edits])
    assert [said for said in case.says if said not in str(caught.value)] == []


def test_the_generated_cases_are_what_their_program_writes():
    assert json.loads(generate.OUTPUT.read_text(encoding="utf-8")) == generate.corpus()
