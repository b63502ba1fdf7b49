"""Grep: the same results as a search line by line, in bounded time."""

import random
import string
import sys
import threading
from collections.abc import Iterator

import pytest
import re2
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.sizes import size
from weakincentives.errors import WinkError
from weakincentives.filesystem import grep as search
from weakincentives.filesystem.grep import InvalidRegexError, LineMatch, compile_regex
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits
from weakincentives.filesystem.text import BytesContent, Content
from weakincentives.posix import TimeLimitError, time_limit

Found = list[tuple[int, str, int, int]]


def grep(pattern: str, data: bytes | str, limits: Limits = DEFAULT_LIMITS) -> list[LineMatch]:
    raw = data.encode() if isinstance(data, str) else data
    return list(compile_regex(pattern, limits).lines(BytesContent(raw)))


def numbers(pattern: str, data: bytes | str) -> list[int]:
    return [match.line_number for match in grep(pattern, data)]


def reference(pattern: str, data: bytes) -> Found:
    """Every line on its own, by the pattern as it was written."""
    options = re2.Options()
    options.log_errors = False
    compiled = re2.compile(pattern, options)
    *ended, last = data.split(b"\n")
    lines = [line.removesuffix(b"\r") for line in ended] + ([last] if last else [])
    found: Found = []
    for number, line in enumerate(lines, 1):
        match = compiled.search(line)
        if match is not None:
            # RE2 takes \B inside a character for true: its start is the place
            start, end = (len(line[:at].decode(errors="ignore")) for at in match.span())
            found.append((number, line.decode(), start, end))
    return found


def answers(pattern: str, data: bytes) -> Found:
    return [
        (match.line_number, match.line_content, match.match_start, match.match_end)
        for match in grep(pattern, data)
    ]


ATOMS = [
    "a", "b", "é", "ab", "ba", r"\.", ".", "[^a]", "[ab]", "[^\\n]", r"\s", r"\S", r"\w", r"\W",
    r"\d", r"\D", r"\b", r"\B", "^", "$", r"\A", r"\z", r"\n", r"\r", "\n", "\r", "[$]", "[]^]",
    "[^]a]", "[[:alpha:]$]", "[[:^space:]]", r"\Qa$\E", r"\Q^", r"[\]$]", "(?s).", "(?m)^", "(?m)$",
    "(?-m)^", "(?-m:$)", "(?i)A", "(?i:B)", "(?s:.)", r"\x61", r"\x{e9}", r"\pL", r"\PL", r"\141",
    "{", "a{,2}", "]", " ", "\\\\", r"\$", r"\^", "(?P<n>a)", "(?:ab)", "()", "\U0001f600", "\x00",
]  # fmt: skip
REPEATS = ["", "", "", "", "*", "+", "?", "*?", "{2}", "{0}", "{1,2}", "{0,1}?"]

pieces = st.builds("".join, st.tuples(st.sampled_from(ATOMS), st.sampled_from(REPEATS)))
joined = st.lists(pieces, max_size=5).map("".join)
patterns = st.recursive(
    joined,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("|".join),
        st.tuples(inner, st.sampled_from(REPEATS)).map(lambda both: f"({both[0]}){both[1]}"),
        st.tuples(inner, inner).map("".join),
    ),
    max_leaves=4,
)
line_texts = st.text(st.sampled_from("aab$^é.\r \U0001f600A{]\\1"), max_size=8)
texts = st.lists(st.tuples(line_texts, st.sampled_from(["\n", "\n", "\r\n", ""]))).map(
    lambda lines: "".join(text + end for text, end in lines)
)


def is_valid(pattern: str) -> bool:
    try:
        compile_regex(pattern, DEFAULT_LIMITS)
    except InvalidRegexError:
        return False
    return True


@settings(max_examples=size(400, 5_000))
@given(patterns, texts)
@example(r"a\s+b", "a\nb\n")
@example("[^x]", "\n\na")
@example("b$", "b\r\nb\n")
@example(r"\r", "a\r\nb\rc\r")
@example("", "\n")
@example("^$", "a\n\n")
@example("a|", "")
@example(r"(?-m)^b", "a\nb")
@example("a$", "a\r\n" + "\r\n")
@example(r"\B", "1é\n")
@example(r"\B", "1\U0001f600")
@example("[[:alpha:]$]", "(\n$\n:\n")
@example("[]$]", "(\n$\n")
@example(r"\Q$\E", "(\n$\n")
def test_the_answers_are_those_of_a_search_line_by_line(pattern: str, text: str) -> None:
    assume(is_valid(pattern))
    assert answers(pattern, text.encode()) == reference(pattern, text.encode())


@settings(max_examples=size(150, 2_000))
@given(patterns, texts)
def test_the_answers_do_not_depend_on_where_blocks_are_cut(pattern: str, text: str) -> None:
    assume(is_valid(pattern))
    data = text.encode()
    longest = max(map(len, data.split(b"\n"))) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_BLOCK_SIZE", longest)
        compile_regex.cache_clear()
        found = answers(pattern, data)
    compile_regex.cache_clear()
    assert found == reference(pattern, data)


@pytest.mark.parametrize(
    ("pattern", "required"),
    [
        ("abc+de", b"abc"),
        ("abc*de", b"ab"),
        ("abc?def", b"def"),
        ("abcd{0}", b"abc"),
        (r"def \w+\(self", b"(self"),
        ("(abc)?de", b"de"),
        ("abc|d", b""),
        ("(abc|d)ef", b"ef"),
        ("(?i)abc", b""),
        ("ab(?i)c", b""),
        (r"\x41bc", b"bc"),
        (r"\pLbc", b"bc"),
        (r"\p{Greek}bc", b"bc"),
        (r"\101bc", b"bc"),
        ("[abc]d", b""),
        ("éa+", "éa".encode()),
    ],
)
def test_the_text_that_is_looked_for_first_is_in_every_match(pattern: str, required: bytes) -> None:
    tokens = [(found.lastgroup or "", found.group()) for found in search._TOKEN.finditer(pattern)]
    assert search._required_literal(tokens) == required


def test_a_match_never_spans_lines() -> None:
    assert numbers(r"(?s)a.b|a\nb", "a\nb\na b\n") == [3]


def test_one_match_is_reported_for_a_line_and_it_is_the_first() -> None:
    assert answers("[0-9]+", b"a 12 34\n") == [(1, "a 12 34", 2, 4)]


def test_positions_count_characters_and_not_bytes() -> None:
    assert answers("b+", "éé\U0001f600bb\n".encode()) == [(1, "éé\U0001f600bb", 3, 5)]


def test_lines_after_the_last_hit_and_before_the_first_are_counted() -> None:
    assert numbers("x", "\n\nx\n\n\nx\n\n") == [3, 6]


def test_an_empty_file_has_no_line_to_match() -> None:
    assert grep("", b"") == []


def test_a_literal_with_regex_characters_is_found_as_written() -> None:
    assert numbers(r"a\.b\(", "axb(\na.b(\n") == [2]


def test_a_carriage_return_before_the_line_end_is_not_part_of_the_line() -> None:
    (match,) = grep("b", b"ab\r\n")
    assert match.line_content == "ab"


# --- what is binary ---


@pytest.mark.parametrize(
    "data",
    [
        b"needle\0",
        b"\0" + b"\n" * 100 + b"needle",
        b"needle \xff\n",
        "needle".encode("utf-16"),
        b"\xffn\0e\0e\0d\0l\0e\0 needle",
    ],
)
def test_binary_content_is_skipped(data: bytes) -> None:
    assert grep("needle", data) == []
    assert grep("needle$|n.edle", data) == []


def test_a_nul_after_the_first_8_kib_does_not_make_text_binary() -> None:
    assert numbers("needle", b"a" * 8192 + b"\0\nneedle\n") == [2]


def test_bytes_that_are_no_text_after_the_first_8_kib_are_shown_replaced() -> None:
    (match,) = grep("needle", b"a" * 8191 + b"\n" + b"\xff needle\n")
    assert (match.line_content, match.match_start) == ("\ufffd needle", 2)


@pytest.mark.parametrize("before", [8189, 8190, 8191, 8192])
def test_a_character_across_the_edge_of_the_first_8_kib_is_text(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"a" * before + "\U0001f600\nneedle\n".encode()
    assert numbers("needle", data) == [2]
    monkeypatch.setattr(search, "_BLOCK_SIZE", 1_024)
    assert numbers("needle$", data) == [2]


def test_a_binary_first_block_hides_hits_in_later_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_BLOCK_SIZE", 16)
    assert grep("needle", b"\xff" * 15 + b"\n" + b"needle\n") == []


# --- what is shown ---


def test_a_long_line_is_shown_by_a_window_around_the_match() -> None:
    (match,) = grep("needle", "é" * 40_000 + "needle" + "x" * 7_000)
    assert len(match.line_content) == 2_000
    assert match.line_content[match.match_start : match.match_end] == "needle"
    assert match.line_content.startswith("é")
    assert match.line_content.endswith("x")


def test_a_match_near_the_edge_of_a_long_line_has_a_full_window() -> None:
    for text in ("needle" + "x" * 9_000, "x" * 9_000 + "needle"):
        (match,) = grep("needle", text)
        assert len(match.line_content) == 2_000
        assert match.line_content[match.match_start : match.match_end] == "needle"


def test_a_match_longer_than_the_window_is_cut() -> None:
    (match,) = grep("x+", "a" + "x" * 9_000 + "b")
    assert (match.line_content, match.match_start, match.match_end) == ("x" * 2_000, 0, 2_000)


@given(
    st.text("aé\U0001f600", max_size=30), st.text("aé\U0001f600", max_size=30), st.integers(1, 40)
)
def test_a_window_always_holds_the_match_and_never_half_a_character(
    before: str, after: str, width: int
) -> None:
    (match,) = grep("x{1,3}", f"{before}xx{after}", Limits(max_line_length=width))
    assert len(match.line_content) == min(width, len(before) + 2 + len(after))
    assert match.line_content in f"{before}xx{after}"
    shown = match.line_content[match.match_start : match.match_end]
    assert shown == "xx"[:width]


# --- large content ---


class Recording(Content):
    """Equal lines that are made when they are read, then a last one; notes the largest read."""

    def __init__(self, line: bytes, count: int, last: bytes = b"") -> None:
        self._line = line
        self._count = count
        self._last = last
        self.largest = 0

    @property
    def size(self) -> int:
        return len(self._line) * self._count + len(self._last)

    def read(self, offset: int, size: int) -> bytes:
        self.largest = max(self.largest, size)
        first, skipped = divmod(offset, len(self._line))
        lines = min(self._count - first, size // len(self._line) + 2)
        return (self._line * lines + self._last)[skipped : skipped + size]


@pytest.mark.parametrize("pattern", ["needle", "n..dle", "needle$", "[n]eedle\\b"])
def test_large_content_is_read_in_blocks_and_lines_are_counted_across_them(pattern: str) -> None:
    count = 2_000_000
    content = Recording(b"0123456789\r\n", count, b"a needle\r\n")
    found = list(compile_regex(pattern, DEFAULT_LIMITS).lines(content))
    assert found == [LineMatch(count + 1, "a needle", 2, 8)]
    assert content.largest <= 8 * 1024 * 1024 < content.size


def test_a_line_longer_than_a_block_is_searched_in_its_first_block_and_counted_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_BLOCK_SIZE", 64)
    data = b"one\n" + b"x" * 30 + b"head" + b"y" * 200 + b"tail\n" + b"three\n"
    assert numbers("head", data) == [2]
    assert numbers("tail", data) == []
    assert numbers("three", data) == [3]


def test_the_cut_of_a_line_longer_than_a_block_is_not_the_end_of_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_BLOCK_SIZE", 64)
    compile_regex.cache_clear()
    assert numbers("x$", b"x" * 200 + b"\nx\n") == [2]
    assert numbers(r"x\z", ("é" * 30 + "x" * 200).encode()) == []
    compile_regex.cache_clear()


def test_a_character_cut_by_a_block_does_not_make_text_binary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_BLOCK_SIZE", 64)
    for shift in range(4):
        data = ("a" * shift + "needle" + "\U0001f600" * 100).encode()
        assert numbers("needle", data) == [1]


def test_a_line_of_many_parts_is_searched_to_its_end() -> None:
    pattern = "|".join(f"q{letter}{{900}}" for letter in "abcdef") + "|needle$"
    data = b"x" * 1_000_000 + b"needle\nneedle\n" + b"needle x\n"
    assert numbers(pattern, data) == [1, 2]


def test_a_match_at_the_edge_of_a_part_of_a_long_line_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "_MAX_WORK", 1_000)
    compile_regex.cache_clear()
    for shift in range(200):
        assert answers("needle[0-9]", b"x" * shift + b"needle1" + b"x" * 200 + b"\n") == [
            (1, "x" * shift + "needle1" + "x" * 200, shift, shift + 7)
        ]
    compile_regex.cache_clear()


# --- patterns that are refused ---


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        ("(?=a)", "lookaround"),
        ("(?!a)", "lookaround"),
        ("(?<=a)b", "lookaround"),
        ("(?<!a)b", "lookaround"),
        (r"(a)\1", "backreferences"),
        ("(?P<n>a)(?P=n)", "backreferences"),
        ("a++", "possessive"),
        ("(?>a)", "atomic"),
        (r"a\Z", r"use \z or $"),
        ("a{1001}", "1000"),
        ("(?x) a", "x flag"),
        (r"\u00e9", r"\x{...}"),
        (r"\C", "dot"),
    ],
)
def test_a_pattern_that_is_not_supported_is_refused_with_what_to_do_instead(
    pattern: str, advice: str
) -> None:
    with pytest.raises(InvalidRegexError, match=r"^Invalid regex") as refusal:
        grep(pattern, b"a")
    assert advice in str(refusal.value)
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, WinkError)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "[",
        "*",
        "a**",
        "[z-a]",
        "\ud800",
        "(" * 5_000,
        "(" * 4_000,
        "(" * 5_000 + ")" * 5_000,
        "((a{100}){100}){100}",
        "(?:a{0,1000}){1000}",
        r"\pL{500}",
        r"\pL" * 1_300,
        ".{999}" * 600,
        "(?:" * 600 + "a" + "){9}" * 600,
        "a" * 4_097,
    ],
    ids=lambda pattern: ascii(pattern[:12]),
)
def test_a_pattern_that_is_wrong_or_explodes_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegexError, match=r"^Invalid regex") as refusal:
        grep(pattern, b"a")
    assert len(str(refusal.value)) < 500


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "pattern", ["(" * 2_000 + "a" + ")" * 2_000, "|" * 4_000, "a\0b", "(a?){500}"]
)
def test_a_large_or_odd_pattern_that_is_valid_is_searched(pattern: str) -> None:
    assert numbers(pattern, b"a\n" + b"x" * 9_000 + b"\na\0b\n")[-1:] == [3]


# --- hostile patterns ---


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a*)*b$", "(.*a){12}$", "(x+x+)+y"])
def test_a_pattern_that_backtracks_elsewhere_is_linear(pattern: str) -> None:
    line = b"a" * 40 + b"b\n"
    assert grep(pattern.replace("b$", "c$"), line) == []
    assert grep(pattern.replace("b$", "c$"), line * (1_000_000 // len(line))) == []


# on letters in no order RE2 cannot use its fast way for these
LETTERS = bytes(random.Random(0).choices(string.ascii_lowercase.encode(), k=200_000))
SLOW = ["[a-m].{800}Z", "(?:[a-m].{60}){9}Z", "|".join(f"[a-m].{{{n}}}Z" for n in range(20, 50))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pattern", SLOW)
def test_a_search_without_its_fast_way_stops_at_the_time_limit(pattern: str) -> None:
    searcher = compile_regex(pattern, DEFAULT_LIMITS)
    with time_limit(0.2), pytest.raises(TimeLimitError):
        for _ in range(1_000):
            list(searcher.lines(BytesContent(LETTERS)))


def test_a_search_that_is_out_of_time_does_not_begin() -> None:
    with time_limit(0), pytest.raises(TimeLimitError):
        grep("a", b"a")


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads that hold the interpreter lock pass it on at once, so only C code can keep it."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("quick_switches")
def test_another_thread_runs_during_a_hostile_search() -> None:
    searcher = compile_regex(SLOW[0], DEFAULT_LIMITS)
    content = BytesContent(LETTERS[:25_000])
    found: list[LineMatch] = []
    work = threading.Thread(target=lambda: found.extend(searcher.lines(content)))
    work.start()
    progress = 0
    while work.is_alive():
        progress += 1
    work.join()
    assert found == []
    assert progress > 100_000  # with the lock held it is a tenth of that


def test_hits_are_found_one_by_one_as_they_are_asked_for() -> None:
    found = compile_regex("a", DEFAULT_LIMITS).lines(Recording(b"a\n", 500_000_000))
    assert [next(found).line_number for _ in range(3)] == [1, 2, 3]
