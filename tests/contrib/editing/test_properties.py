"""Properties of edits: an edit changes its span and nothing else, or raises an error."""

import re
import unicodedata
from itertools import pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st

from weakincentives.contrib.tools.editing import (
    Edit,
    EditError,
    EditOutcome,
    MatchLevel,
    apply_edits,
)
from weakincentives.contrib.tools.editing.confusables import fold_confusables, unfold_column

TEXTS = st.text(st.sampled_from("ab \t\n\r“\u00a0é\u0301-…\u200b\udcff"), max_size=40)
WORDS = ("alpha", "beta(x)", "if y:", "}", "say “hi”", 'say "hi"', "naïve \u2013 so", "end")
INDENTS = ("", "  ", "    ", "        ", "\t", "\t\t")
BLANKS = ("", "  ", "\t")
ENDS = ("\n", "\r\n")

LINES = st.lists(
    st.tuples(
        st.sampled_from(INDENTS),
        st.sampled_from(WORDS),
        st.integers(0, 9),
        st.sampled_from(BLANKS),
        st.sampled_from(ENDS),
    ),
    min_size=1,
    max_size=12,
)


def try_edits(text: str, *edits: Edit) -> EditOutcome | None:
    try:
        return apply_edits(text, edits)
    except EditError as error:
        assert len(str(error)) > 20
        return None


def same_outside(text: str, outcome: EditOutcome) -> bool:
    """Return whether the old and the new text are the same between and around the spans."""
    old = [(0, 0), *outcome.spans, (len(text), len(text))]
    new = [(0, 0), *outcome.new_spans, (len(outcome.content), len(outcome.content))]
    kept = [text[left[1] : right[0]] for left, right in pairwise(old)]
    return kept == [outcome.content[left[1] : right[0]] for left, right in pairwise(new)]


@given(TEXTS, st.data())
def test_an_exact_edit_changes_the_span_and_nothing_else(text: str, data: st.DataObject):
    assume(text and not text.startswith("\ufeff"))
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    new = data.draw(st.text("xyz", max_size=5))
    old = text[start:end]
    assume(len(re.findall(f"(?={re.escape(old)})", text)) == 1)
    outcome = apply_edits(text, [Edit(old, new)])
    assert outcome.content == text[:start] + new + text[end:]
    assert outcome.match_level is MatchLevel.EXACT
    assert outcome.spans == ((start, end),)


@st.composite
def texts_and_edits(draw: st.DrawFn) -> tuple[str, list[Edit]]:
    """Draw a text and edits of parts of it, exact or retyped."""
    text = draw(TEXTS)
    edits: list[Edit] = []
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        part = text[start : draw(st.integers(start, len(text)))]
        typed = (
            fold_confusables(part).replace("\r\n", "\n").strip(draw(st.sampled_from(["", " \t"])))
        )
        old = draw(st.sampled_from([part, typed, part.replace("\n", "\r\n")]) | TEXTS)
        edits.append(Edit(old, draw(TEXTS), draw(st.booleans())))
    return text, edits


@given(texts_and_edits())
def test_whatever_is_asked_nothing_changes_outside_of_the_spans(
    asked: tuple[str, list[Edit]],
):
    text, edits = asked
    outcome = try_edits(text, *edits)
    if outcome is not None:
        assert same_outside(text, outcome)
    single = try_edits(text, edits[0])
    if single is not None:
        assert same_outside(text, single)
        assert single.replacements == len(single.spans)
        assert single.content != text


def drop_ignorable(text: str) -> str:
    """Return the text without everything that matching may ignore, and more."""
    return "".join(fold_confusables(text).split())


def indent_lines(lines: list[str], indent: str) -> list[str]:
    return [indent + line if line.strip() else line for line in lines]


SPOILERS = {
    "rstrip": lambda lines: [line.rstrip() for line in lines],
    "trailing": lambda lines: [line + " " for line in lines],
    "right": lambda lines: indent_lines(lines, "  "),
    "tab": lambda lines: indent_lines(lines, "\t"),
    "spaces": lambda lines: [line.replace("\t", "    ") for line in lines],
    "tabs": lambda lines: [line.replace("    ", "\t") for line in lines],
    "flat": lambda lines: [line.lstrip() for line in lines],
    "first": lambda lines: [lines[0].lstrip(), *lines[1:]],
    "plain": lambda lines: [fold_confusables(line) for line in lines],
    "apart": lambda lines: [unicodedata.normalize("NFD", line) for line in lines],
    "numbered": lambda lines: [f"{number:>6}\t{line}" for number, line in enumerate(lines, 1)],
}


@given(LINES, st.data())
def test_a_spoilt_edit_lands_in_its_place_or_is_refused(
    parts: list[tuple[str, str, int, str, str]], data: st.DataObject
):
    lines = [f"{indent}{word} {number}{blanks}" for indent, word, number, blanks, _ in parts]
    ends = [part[-1] for part in parts]
    text = "".join(line + end for line, end in zip(lines, ends, strict=True))
    start = data.draw(st.integers(0, len(lines) - 1))
    stop = data.draw(st.integers(start + 1, len(lines)))
    asked = lines[start:stop]
    # overlooking everything, the place must be clear, or the text has another meaning too
    assume(
        len(re.findall(f"(?={re.escape(drop_ignorable(''.join(asked)))})", drop_ignorable(text)))
        == 1
    )
    for name in data.draw(st.lists(st.sampled_from(sorted(SPOILERS)), max_size=3)):
        asked = SPOILERS[name](asked)
    outcome = try_edits(text, Edit("\n".join(asked) + "\n", "NEW\n"))
    if outcome is not None:
        before = "".join(line + end for line, end in zip(lines[:start], ends, strict=False))
        after = text[len(before) + sum(len(lines[i] + ends[i]) for i in range(start, stop)) :]
        # exactly is exactly: what begins within a line leaves the beginning alone
        assert outcome.content.startswith(before)
        assert outcome.content.endswith(after)
        middle = outcome.content[len(before) : len(outcome.content) - len(after)]
        assert middle.strip() == "NEW"
        assert middle.endswith(ends[start])


@given(LINES, st.data())
def test_a_stale_edit_is_refused(parts: list[tuple[str, str, int, str, str]], data: st.DataObject):
    lines = [f"{indent}{word} {number}{blanks}" for indent, word, number, blanks, _ in parts]
    text = "".join(line + part[-1] for line, part in zip(lines, parts, strict=True))
    stale = list(lines)
    changed = data.draw(st.integers(0, len(lines) - 1))
    stale[changed] = stale[changed].rstrip()[:-1] + "X"
    stop = data.draw(st.integers(changed + 1, len(lines)))
    start = data.draw(st.integers(0, changed))
    assert try_edits(text, Edit("\n".join(stale[start:stop]), "NEW")) is None


@example("\u1112\u1161\u11ab", 1)
@example("a\u1112\u1161\u11ab", 2)
@given(st.text(max_size=30), st.integers(0, 40))
def test_a_column_of_a_plain_line_is_found_in_the_line(line: str, column: int):
    position = unfold_column(line, column)
    if position is not None:
        assert fold_confusables(line[:position]) == fold_confusables(line)[:column]
        assert fold_confusables(line[position:]) == fold_confusables(line)[column:]


@given(st.text(max_size=30))
def test_plain_text_stays_plain(text: str):
    assert fold_confusables(fold_confusables(text)) == fold_confusables(text)
    assert fold_confusables(text).count("\n") == text.count("\n")


@given(st.text(max_size=30), st.text(max_size=12), st.text(max_size=12))
def test_any_characters_are_edited_or_refused_in_words(text: str, old: str, new: str):
    outcome = try_edits(text, Edit(old, new))
    assert outcome is None or same_outside(text, outcome)
