"""How the indentation of a text that was asked for maps to that of the text that was found.

Lines that are the same but for their indentation match only if one rule explains all of
them: a prefix more or less, tabs for spaces, or another width. The same rule then
indents the new text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd

from weakincentives.contrib.tools.editing.confusables import plain

Pair = tuple[str, str]
_WIDTHS = (4, 8, 2, 3, 1, 5, 6, 7)  # columns of a tab, likely ones first
_SCALES = frozenset(Fraction(there, here) for there, here in ((2, 4), (4, 2), (3, 4), (4, 3)))


@dataclass(frozen=True, slots=True)
class Style:
    """How texts are indented where the found lines do not tell.

    Args:
        tabs: The text is indented with tabs.
        unit: How many spaces a level of it has.
        levels: How many spaces a block in it is deeper than what opens it, where that varies.
        asked_unit: How many spaces a level has in what was asked for, as its blocks show.
    """

    tabs: bool
    unit: int
    levels: frozenset[int] = frozenset()
    asked_unit: int | None = None


@dataclass(frozen=True, slots=True)
class Reindent:
    """A rule that gives every indentation its counterpart.

    Args:
        known: Counterparts that were seen.
        width: Columns of a tab.
        scale: Columns there for each column here.
        shift: Columns to add.
        tabs: Indent with tabs.
        first: The indentation of the first line and its counterpart, if it follows no rule.
    """

    known: Mapping[str, str]
    width: int
    scale: Fraction
    shift: Fraction
    tabs: bool
    first: Pair | None = None
    prefix: Pair | None = None

    def of(self, indent: str, *, is_first: bool = False) -> str | None:
        """Return the counterpart of an indentation; None if there is none."""
        if is_first and self.first is not None and indent == self.first[0]:
            return self.first[1]
        if indent in self.known:
            return self.known[indent]
        if self.prefix is not None:
            asked, found = self.prefix
            return found + indent.removeprefix(asked) if indent.startswith(asked) else None
        return self._by_columns(indent)

    def _by_columns(self, indent: str) -> str | None:
        there = columns(indent, self.width) * self.scale + self.shift
        if there < 0 or there.denominator != 1:
            return None
        count = int(there)
        if not self.tabs:
            return " " * count
        return "\t" * (count // self.width) + " " * (count % self.width)


def reindent_between(pairs: Sequence[Pair], new: Sequence[str], style: Style) -> Reindent | None:
    """Return the rule that turns the first of each pair into the second; None if there is none.

    Args:
        pairs: The indentation of each line as it was asked for, and as it was found.
        new: The indentations that the rule is for.
        style: How the text is indented elsewhere.
    """
    known = _known(pairs)
    rule = None if known is None else _moved(known, new, style)
    if rule is None:
        rule = _first_stripped(pairs, new, style)
    if rule is None and known is not None:
        rule = _scaled(known, [*known, *new])
    return rule


def columns(indent: str, width: int) -> int:
    """Return how wide an indentation is where a tab goes to the next multiple of `width`."""
    return len(plain(indent).expandtabs(width))


def _known(pairs: Sequence[Pair]) -> Mapping[str, str] | None:
    """Return the counterparts that were seen; None if an indentation has several."""
    different = set(pairs)
    known = dict(different)
    return known if len(known) == len(different) else None


def _first_stripped(pairs: Sequence[Pair], new: Sequence[str], style: Style) -> Reindent | None:
    """Return the rule for lines that are where they belong but for the first one.

    Texts are often stripped before they are sent, so that it has lost its indentation.
    """
    known = _known(pairs[1:])
    if not known or pairs[0][0]:
        return None
    rest = _moved(known, new[1:], style)
    if rest is None or rest.shift or rest.scale != 1 or rest.prefix not in {None, ("", "")}:
        return None
    return replace(rest, first=pairs[0])


def _moved(known: Mapping[str, str], new: Sequence[str], style: Style) -> Reindent | None:
    """Return the rule that moves every line by as much."""
    asked = [*known, *new]
    tabs = any("\t" in found for found in known.values())
    if not any(known.values()):
        tabs = style.tabs
    rule = _in_units(known, asked, style) or _prefixed(known, tabs)
    if rule is not None and all(each in known or _suits(rule, each) for each in new):
        return rule
    return _shifted(known, asked, style, tabs)


def _suits(rule: Reindent, indent: str) -> bool:
    """Return whether a rule gives an indentation that is made as those around it are."""
    there = rule.of(indent)
    if there is None or not rule.tabs:
        return there is not None and "\t" not in there
    # spaces after tabs only align what was aligned before
    return not there.lstrip("\t").strip(" ") if "\t" in indent else not there.strip("\t")


def _prefixed(known: Mapping[str, str], tabs: bool) -> Reindent | None:
    """Return the rule that adds a prefix or takes one away, for whatever characters it has."""
    asked, found = min(known.items(), key=lambda pair: len(pair[0]))
    shared = 0
    while shared < min(len(asked), len(found)) and asked[-1 - shared] == found[-1 - shared]:
        shared += 1
    prefix = asked[: len(asked) - shared], found[: len(found) - shared]
    if any(
        not each.startswith(prefix[0]) or prefix[1] + each[len(prefix[0]) :] != there
        for each, there in known.items()
    ):
        return None
    return Reindent(known, 1, Fraction(1), Fraction(0), tabs, prefix=prefix)


def _shifted(
    known: Mapping[str, str], asked: Sequence[str], style: Style, tabs: bool
) -> Reindent | None:
    """Return the rule by columns, for the width of a tab that fits best."""
    unit = _unit(asked, style)
    best: tuple[tuple[int, bool, bool, int, int], Reindent] | None = None
    for order, width in enumerate(dict.fromkeys((*_WIDTHS, unit))):
        shifts = {columns(there, width) - columns(each, width) for each, there in known.items()}
        if len(shifts) != 1:
            continue
        shift = shifts.pop()
        rule = Reindent({}, width, Fraction(1), Fraction(shift), tabs)
        odd = sum(rule.of(each) != there for each, there in known.items())
        uneven = sum((columns(each, width) + shift) % width > 0 for each in asked) if tabs else 0
        cost = odd, width != unit, shift != 0, uneven, order
        if best is None or cost < best[0]:
            best = cost, replace(rule, known=known)
    return best[1] if best else None


def _in_units(known: Mapping[str, str], asked: Sequence[str], style: Style) -> Reindent | None:
    """Return the rule for levels of another width, if the lines found are all of one level.

    Then both a shift and another width explain them. It is a shift, unless blocks in the text
    that was asked for have levels of a width that the other text does not have.
    """
    unit = style.asked_unit
    if unit is None or unit == style.unit or unit in style.levels:
        return None
    scale = Fraction(style.unit, unit)
    has_tabs = any("\t" in each for each in (*asked, *known.values()))
    if has_tabs or any(len(each) * scale != len(there) for each, there in known.items()):
        return None
    return Reindent(known, 1, scale, Fraction(0), tabs=False)


def _scaled(known: Mapping[str, str], asked: Sequence[str]) -> Reindent | None:
    """Return the rule that makes every level wider or narrower."""
    if not (_is_uniform(asked) and _is_uniform(known.values())):
        return None
    tabs = any("\t" in there for there in known.values())
    points = sorted((columns(each, 1), columns(there, 1)) for each, there in known.items())
    (left, there), (right, far) = points[0], points[-1]
    scale = Fraction(far - there, max(right - left, 1))
    if scale not in _SCALES:
        return None
    shift = there - left * scale
    if any(x * scale + shift != y for x, y in points):
        return None
    return Reindent(known, 1, scale, shift, tabs)


def _is_uniform(indents: Iterable[str]) -> bool:
    """Return whether only one kind of blank is in all of them."""
    return len(set("".join(indents))) < 2


def _unit(asked: Sequence[str], style: Style) -> int:
    """Return how many columns a level has in the text that was asked for."""
    if any("\t" in each for each in asked):
        return style.unit
    # the margin of what was asked for need not be a level
    return style.asked_unit or gcd(*map(len, asked)) or style.unit
