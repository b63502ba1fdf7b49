"""Globs: the semantics of wcmatch, in linear time, one directory at a time."""

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wcmatch import glob as wcglob

from tests.sizes import size
from weakincentives.errors import WinkError
from weakincentives.filesystem.glob import (
    InvalidGlobError,
    compile_filter,
    compile_glob,
    glob_match,
)
from weakincentives.filesystem.paths import PathEscapeError

FLAGS = wcglob.BRACE | wcglob.GLOBSTAR | wcglob.DOTGLOB | wcglob.CASE | wcglob.FORCEUNIX

PIECES = [
    "a", "b", "ab", ".", "-", "é", "\n", "*", "*", "**", "?", "[ab]", "[!a]", "[^a]", "[a-c]",
    "[]a]", "[!]a]", "[a-]", "[-a]", "[[:alpha:]]", "[![:digit:]b]", "[z-a]", r"\*", r"\?", r"[\]]",
    r"\[", "[", "]", "{a,b}", "{a,{b,c}}", "{a,*b}", "{a/b,c}", "{1..3}", "{", "}", ",", "!", "^",
    "$", "(", "|", "+", "~", "&&", "[a&&b]", "[--a]", "[+--]", "1", "2",
]  # fmt: skip
segments = st.one_of(
    st.just("**"),
    st.just("*"),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join),
)
# few braces: the expansions multiply
globs = (
    st.lists(segments, min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda pattern: pattern.count("{") <= 4 and not names_itself(pattern))
)
NAMES = "aabc.-é\n*?[]!^{},1"


def is_name(text: str) -> bool:
    # wcmatch takes a line end at the end of a name for no part of it
    return text not in {".", ".."} and not text.endswith("\n")


names = st.text(st.sampled_from(NAMES), min_size=1, max_size=6).filter(is_name)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


def names_itself(pattern: str) -> bool:
    """Whether a segment of the pattern is `.` or `..`, which wcmatch takes for names."""
    return any(part in {".", ".."} for part in re.split(r"[/{},]", pattern))


def some_glob(choice: random.Random) -> str:
    """Return one of `globs`, in a fraction of the time."""
    while True:
        pattern = "/".join(some_segment(choice) for _ in range(choice.randint(1, 4)))
        if pattern.count("{") <= 4 and not names_itself(pattern):
            return pattern


def some_segment(choice: random.Random) -> str:
    pieces = "".join(choice.choices(PIECES, k=choice.randint(1, 4)))
    return choice.choice(["**", "*", pieces])


def some_path(choice: random.Random) -> str:
    """Return one of `paths`, with letters that the patterns have too."""
    names = ["".join(choice.choices(NAMES, k=choice.randint(1, 6))) for _ in range(4)]
    allowed = [name for name in names if is_name(name)]
    return "/".join(allowed[: choice.randint(1, 4)]) or "a"


def test_three_thousand_answers_are_those_of_wcmatch() -> None:
    choice = random.Random(0)
    asked = [(some_glob(choice), some_path(choice)) for _ in range(3_000)]
    answers = [glob_match(path, pattern) for pattern, path in asked]
    expected = [wcglob.globmatch(path, pattern, flags=FLAGS) for pattern, path in asked]
    assert [each for each in zip(asked, answers, expected, strict=True) if each[1] != each[2]] == []
    assert 300 < sum(answers) < 2_700


@settings(max_examples=size(300, 3_000))
@given(globs, paths)
@example("a/**", "a")
@example("**", "a/b")
@example("[a/b]", "[a/b]")
@example("[[:alpha:]", ":")
@example("a\\/b", "a/b")
@example("*aa*aa", "aaa")
@example("*", "\udcff")
def test_the_answers_are_those_of_wcmatch(pattern: str, path: str) -> None:
    assert glob_match(path, pattern) == wcglob.globmatch(path, pattern, flags=FLAGS)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("*.py", ".py", True),
        ("*", ".hidden", True),
        ("**/*.py", "a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("src/**", "src", False),
        ("src/**", "src/a/b", True),
        ("src/**/b", "src/b", True),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
        ("A", "a", False),
        ("a?c", "a/c", False),
        ("a[!b]c", "a/c", False),
        ("[", "[", True),
        ("a[b", "a[b", True),
        ("[]", "[]", True),
        ("\\", "\\", True),
        (r"\a", "a", True),
        (r"[\a-c]", "b", True),
        ("[[:digit:][:upper:]_]x", "_x", True),
        ("[[:nonsense:]]", "n", False),
        ("{a,b}.{c,d}", "b.c", True),
        ("{a,b{c,d}}", "bd", True),
        ("{a}", "{a}", True),
        (r"\{a,b\}", "{a,b}", True),
        ("x{,y}", "x", True),
        ("/a", "a", True),
        ("./a//b/.", "a/b", True),
        ("a/../b", "b", True),
        ("a", "a\n", False),
        ("*", "a\nb", True),
        ("a?", "a\udc80", True),
    ],
)
def test_a_pattern_matches_the_whole_path(pattern: str, path: str, expected: bool) -> None:
    assert glob_match(path, pattern) is expected


def test_a_class_that_runs_backwards_matches_nothing_and_its_opposite_everything() -> None:
    assert not glob_match("m", "[z-a]")
    assert glob_match("m", "[!z-a]")


# --- a directory at a time ---


@settings(max_examples=size(300, 3_000))
@given(globs, paths)
def test_a_walk_and_the_whole_path_agree(pattern: str, path: str) -> None:
    glob = compile_glob(pattern)
    *directories, name = path.split("/")
    state = glob.start
    for directory in directories:
        state = glob.descend(state, directory)
    assert bool(state and glob.accepts(state)(name)) == glob.matches(path)


def test_a_directory_below_which_nothing_can_match_is_pruned() -> None:
    glob = compile_glob("src/*/test_*.py")
    assert not glob.descend(glob.start, "docs")
    source = glob.descend(glob.start, "src")
    package = glob.descend(source, "anything")
    assert package
    assert not glob.descend(package, "deeper")
    assert glob.accepts(package)("test_a.py")
    assert not glob.accepts(package)("a.py")
    assert not glob.accepts(source)("test_a.py")


def test_a_last_segment_opens_no_directory() -> None:
    glob = compile_glob("*")
    assert not glob.descend(glob.start, "a")


def test_names_are_tested_alike_for_suffixes_words_and_other_segments() -> None:
    glob = compile_glob("{*.py,*.pyi,Makefile,test_*,[ab]}")
    accepts = glob.accepts(glob.start)
    wanted = ["a.py", "b.pyi", "Makefile", "test_x", "a"]
    assert list(filter(accepts, [*wanted, "a.pyc", "makefile", "xtest_", "c"])) == wanted


def test_states_can_be_remembered() -> None:
    glob = compile_glob("**/a/**/b")
    first = glob.descend(glob.descend(glob.start, "a"), "x")
    second = glob.descend(glob.descend(glob.start, "a"), "y")
    assert {first: "same"}[second] == "same"


def test_what_is_remembered_is_bounded_and_forgetting_changes_no_answer() -> None:
    letters = "abcdefghijk"
    glob = compile_glob("{" + ",".join(f"**/{letter}/**/{letter}.x" for letter in letters) + "}")
    for number in range(1, 2 ** len(letters)):
        seen = [letter for at, letter in enumerate(letters) if number >> at & 1]
        state = glob.start
        for letter in seen:
            state = glob.descend(state, letter)
        names = [f"{letter}.x" for letter in letters]
        assert list(filter(glob.accepts(state), names)) == [f"{letter}.x" for letter in seen]
    assert len(glob._accepting) <= 1_024


# --- directories ---


def test_a_pattern_that_ends_in_a_slash_is_for_directories() -> None:
    assert compile_glob("a/*/").directories_only
    assert not compile_glob("a/*").directories_only
    assert not compile_glob("{a/,b}").directories_only
    assert compile_glob("{a/,b/}").directories_only


def test_alternatives_for_directories_match_no_file_beside_others() -> None:
    assert not compile_glob("{a/,b}").matches("a")


def test_two_stars_and_a_slash_match_the_directory_itself() -> None:
    assert compile_glob("a/**/").matches("a")
    assert compile_glob("a/**/").matches("a/b")


def test_a_path_must_say_that_it_is_a_directory_to_match_such_a_pattern() -> None:
    assert glob_match("a/", "a/")
    assert not glob_match("a", "a/")


# --- filters ---


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "x/y/a.py", True),
        ("x", "x/a.py", False),
        ("x/*.py", "x/a.py", True),
        ("x/*.py", "y/x/a.py", False),
        ("/*.py", "a.py", True),
        ("/*.py", "x/a.py", False),
        ("**/a.py", "x/a.py", True),
        ("{x/y,z}.py", "q/z.py", False),
        ("{x/y,z}.py", "x/y.py", True),
    ],
)
def test_a_filter_without_a_slash_is_for_names_at_any_depth(
    pattern: str, path: str, expected: bool
) -> None:
    assert compile_filter(pattern)(path) is expected


# --- what is refused ---


@pytest.mark.parametrize("pattern", ["", "/", ".", "./", "a/..", "{,}", "a" * 4_097])
def test_a_pattern_that_names_nothing_or_is_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidGlobError, match=r"^Invalid glob") as refusal:
        compile_glob(pattern)
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, WinkError)


def test_the_length_that_is_allowed_can_be_set() -> None:
    with pytest.raises(InvalidGlobError):
        compile_glob("abcd", max_length=3)
    assert compile_glob("abcd", max_length=4).matches("abcd")


@pytest.mark.parametrize("pattern", ["..", "../x", "a/../../x", "/../x", "{a,../b}", "./../*"])
def test_a_pattern_that_climbs_out_is_refused(pattern: str) -> None:
    with pytest.raises(PathEscapeError, match="escapes root"):
        compile_glob(pattern)


@pytest.mark.parametrize("pattern", ["*/../x", "**/../x", "[a]/../x"])
def test_climbing_after_a_wildcard_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidGlobError, match=r"'\.\.' after a wildcard"):
        compile_glob(pattern)


# --- hostile patterns ---

BOMBS = {
    "stars": "**/" * 60 + "z",
    "named stars": "**/a/" * 60 + "z",
    "stars and letters": "*a" * 60,
    "stars, letters, end": "*a" * 60 + "b",
    "marks and stars": "?*" * 2_000,
    "brackets": "[" * 3_000,
    "brackets with an escaped end": "[" * 3_000 + r"\]",
    "negated brackets": "[!" * 1_500,
    "ranges": "[a-" * 1_300,
    "classes": "[[:alpha:]]" * 370,
    "braces": "{a,b}" * 30,
    "a range of numbers": "{1..1000000}",
    "a long range of long patterns": "{1..900}" + "*a" * 1_000,
    "nested braces": "{a," * 1_000 + "}" * 1_000,
    "open braces": "{" * 4_000,
    "braces without choice": "{a}" * 1_300,
    "backslashes": "\\" * 4_001,
    "a padded range": "{" + "0" * 4_000 + "1..900}",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pattern", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_matched_or_refused_at_once(pattern: str) -> None:
    try:
        glob = compile_glob(pattern)
    except InvalidGlobError as refusal:
        assert str(refusal).startswith("Invalid glob")
        return
    for path in ("a" * 4_000, "a" * 4_000 + "c", "a/" * 300 + "c", "[" * 255, "aa/" * 300 + "aac"):
        assert not glob.matches(path) or pattern in {"*a" * 60, "?*" * 2_000}


def test_brackets_that_are_read_in_vain_again_and_again_are_refused() -> None:
    with pytest.raises(InvalidGlobError, match="unclosed brackets"):
        compile_glob("[" * 100 + r"\]")
    assert glob_match("[[]", r"[[\]")


@pytest.mark.timeout(120)
def test_a_bomb_that_matches_is_found_to_match() -> None:
    assert glob_match("a" * 4_000, "*a" * 60)
    assert glob_match("x/" * 300 + "z", "**/" * 60 + "z")
    assert glob_match("a/" * 300 + "z", "**/a/" * 60 + "z")
    assert glob_match("[" * 3_000, "[" * 3_000)
