"""Indentation mapping: how the indentation of a search text maps to that of the text found.

Lines that are equal except for indentation match only if one rule explains all of them:
a prefix added or removed, tabs for spaces, or another indent width. The same rule then
indents the new text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd

from weakincentives.contrib.tools.editing.confusables import fold_confusables

IndentPair = tuple[str, str]
"""The indentation of a line in the search text, and in the document."""
_TAB_WIDTHS = (4, 8, 2, 3, 1, 5, 6, 7)  # likely ones first
_SCALES = frozenset(Fraction(found, asked) for found, asked in ((2, 4), (4, 2), (3, 4), (4, 3)))


@dataclass(frozen=True, slots=True)
class IndentStyle:
    """How texts are indented, for where the matched lines leave it open.

    Args:
        tabs: The document is indented with tabs.
        unit: The number of spaces per level in the document.
        levels: The indent widths, in spaces, that blocks of the document usually have.
        asked_unit: The number of spaces per level in the search text, as its blocks show.
    """

    tabs: bool
    unit: int
    levels: frozenset[int] = frozenset()
    asked_unit: int | None = None


@dataclass(frozen=True, slots=True)
class Reindent:
    """A rule that maps each indentation to its counterpart in the document.

    Args:
        known: Pairs that were seen.
        width: Columns per tab.
        scale: Columns in the document per column in the search text.
        shift: Columns to add.
        tabs: Indent with tabs.
        first: The pair of the first line, if it does not follow the rule.
        prefix: A prefix to replace by another; it takes precedence over columns.
    """

    known: Mapping[str, str]
    width: int
    scale: Fraction
    shift: Fraction
    tabs: bool
    first: IndentPair | None = None
    prefix: IndentPair | None = None

    def convert(self, indent: str, *, is_first: bool = False) -> str | None:
        """Return the counterpart of an indentation; None if the rule gives none."""
        if is_first and self.first is not None and indent == self.first[0]:
            return self.first[1]
        if indent in self.known:
            return self.known[indent]
        if self.prefix is not None:
            asked, found = self.prefix
            return found + indent.removeprefix(asked) if indent.startswith(asked) else None
        return self._convert_columns(indent)

    def _convert_columns(self, indent: str) -> str | None:
        columns = indent_width(indent, self.width) * self.scale + self.shift
        if columns < 0 or columns.denominator != 1:
            return None
        count = int(columns)
        if not self.tabs:
            return " " * count
        return "\t" * (count // self.width) + " " * (count % self.width)


def infer_reindent(
    pairs: Sequence[IndentPair], new: Sequence[str], style: IndentStyle
) -> Reindent | None:
    """Return the rule that maps the first of each pair to the second; None if there is none.

    It will be applied to the indentations in `new`.
    """
    known = _collect_pairs(pairs)
    rule = None if known is None else _infer_shift(known, new, style)
    if rule is None:
        rule = _infer_stripped_first_line(pairs, new, style)
    if rule is None and known is not None:
        rule = _infer_scale(known, [*known, *new])
    return rule


def indent_width(indent: str, tab_width: int) -> int:
    """Return the columns of an indentation, with tab stops every `tab_width` columns."""
    return len(fold_confusables(indent).expandtabs(tab_width))


def _collect_pairs(pairs: Sequence[IndentPair]) -> Mapping[str, str] | None:
    """Return the pairs as a mapping; None if an indentation has several counterparts."""
    distinct = set(pairs)
    known = dict(distinct)
    return known if len(known) == len(distinct) else None


def _infer_stripped_first_line(
    pairs: Sequence[IndentPair], new: Sequence[str], style: IndentStyle
) -> Reindent | None:
    """Return the rule for a text whose first line alone has lost its indentation.

    Models often strip a text before they send it.
    """
    known = _collect_pairs(pairs[1:])
    if not known or pairs[0][0]:
        return None
    rest = _infer_shift(known, new[1:], style)
    if rest is None or rest.shift or rest.scale != 1 or rest.prefix not in {None, ("", "")}:
        return None
    return replace(rest, first=pairs[0])


def _infer_shift(
    known: Mapping[str, str], new: Sequence[str], style: IndentStyle
) -> Reindent | None:
    """Return the rule that shifts every line by the same amount."""
    asked = [*known, *new]
    tabs = any("\t" in found for found in known.values())
    if not any(known.values()):
        tabs = style.tabs
    rule = _infer_unit_change(known, asked, style) or _infer_prefix(known, tabs=tabs)
    if rule is not None and all(each in known or _is_consistent(rule, each) for each in new):
        return rule
    return _infer_column_shift(known, asked, style, tabs=tabs)


def _is_consistent(rule: Reindent, indent: str) -> bool:
    """Return whether a rule maps an indentation to one in the style of its surroundings."""
    found = rule.convert(indent)
    if found is None or not rule.tabs:
        return found is not None and "\t" not in found
    # spaces after tabs are allowed only where the text was aligned so before
    return not found.lstrip("\t").strip(" ") if "\t" in indent else not found.strip("\t")


def _infer_prefix(known: Mapping[str, str], *, tabs: bool) -> Reindent | None:
    """Return the rule that replaces a prefix by another, of any characters."""
    asked, found = min(known.items(), key=lambda pair: len(pair[0]))
    shared = 0
    while shared < min(len(asked), len(found)) and asked[-1 - shared] == found[-1 - shared]:
        shared += 1
    prefix = asked[: len(asked) - shared], found[: len(found) - shared]
    if any(
        not each.startswith(prefix[0]) or prefix[1] + each[len(prefix[0]) :] != counterpart
        for each, counterpart in known.items()
    ):
        return None
    return Reindent(known, 1, Fraction(1), Fraction(0), tabs, prefix=prefix)


def _infer_column_shift(
    known: Mapping[str, str], asked: Sequence[str], style: IndentStyle, *, tabs: bool
) -> Reindent | None:
    """Return the rule that adds columns, for the tab width that fits best."""
    unit = _requested_unit(asked, style)
    best: tuple[tuple[int, bool, bool, int, int], Reindent] | None = None
    for order, width in enumerate(dict.fromkeys((*_TAB_WIDTHS, unit))):
        shifts = {
            indent_width(found, width) - indent_width(each, width) for each, found in known.items()
        }
        if len(shifts) != 1:
            continue
        shift = shifts.pop()
        rule = Reindent({}, width, Fraction(1), Fraction(shift), tabs)
        odd = sum(rule.convert(each) != found for each, found in known.items())
        uneven = 0
        if tabs:
            uneven = sum((indent_width(each, width) + shift) % width > 0 for each in asked)
        cost = odd, width != unit, shift != 0, uneven, order
        if best is None or cost < best[0]:
            best = cost, replace(rule, known=known)
    return best[1] if best else None


def _infer_unit_change(
    known: Mapping[str, str], asked: Sequence[str], style: IndentStyle
) -> Reindent | None:
    """Return the rule for another indent width, if the matched lines are all on one level.

    Both a shift and another width would explain such lines. A shift is assumed, unless the
    blocks of the search text have an indent width that the document does not use.
    """
    unit = style.asked_unit
    if unit is None or unit == style.unit or unit in style.levels:
        return None
    scale = Fraction(style.unit, unit)
    has_tabs = any("\t" in each for each in (*asked, *known.values()))
    if has_tabs or any(len(each) * scale != len(found) for each, found in known.items()):
        return None
    return Reindent(known, 1, scale, Fraction(0), tabs=False)


def _infer_scale(known: Mapping[str, str], asked: Sequence[str]) -> Reindent | None:
    """Return the rule that makes every level wider or narrower by one factor."""
    if not (_is_uniform(asked) and _is_uniform(known.values())):
        return None
    tabs = any("\t" in found for found in known.values())
    points = sorted(
        (indent_width(each, 1), indent_width(found, 1)) for each, found in known.items()
    )
    (left, low), (right, high) = points[0], points[-1]
    scale = Fraction(high - low, max(right - left, 1))
    if scale not in _SCALES:
        return None
    shift = low - left * scale
    if any(x * scale + shift != y for x, y in points):
        return None
    return Reindent(known, 1, scale, shift, tabs)


def _is_uniform(indents: Iterable[str]) -> bool:
    """Return whether all indentations use the same whitespace character."""
    return len(set("".join(indents))) < 2


def _requested_unit(asked: Sequence[str], style: IndentStyle) -> int:
    """Return the columns per level in the search text."""
    if any("\t" in each for each in asked):
        return style.unit
    # the left margin of the search text need not be a full level
    return style.asked_unit or gcd(*map(len, asked)) or style.unit
