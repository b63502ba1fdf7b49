"""`grep`: lines, files and counts, with any number of matches."""

import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contrib.handlers.requests import ask, make_context, make_link, refusal
from weakincentives.contrib.tools.context import Dialect
from weakincentives.contrib.tools.handlers.search import FILE_TYPES
from weakincentives.contrib.tools.requests import GrepMode, GrepParams
from weakincentives.contrib.tools.results import GrepCount
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    InMemoryFilesystem,
    InvalidRegexError,
    TimeLimitError,
    time_limit,
)

FILES = {
    "README.md": "# Title\nuse foo\n",
    "src/app.py": "import os\n\n\ndef main():\n    foo(1)\n    return 2\n",
    "src/lib/tools.py": "def foo(x):\n    return x\n\n\ndef bar():\n    foo(2)\n    # end\n",
    "web/app.js": "foo();\n",
}


@pytest.fixture
def files(fs: Filesystem) -> Filesystem:
    for path, text in FILES.items():
        fs.write(path, text)
    return fs


def counts(fs: Filesystem, **more: object) -> dict[str, int]:
    request = GrepParams(output_mode="count", **{"pattern": "foo", **more})  # pyright: ignore[reportArgumentType]
    return {each.path: each.count for each in ask(fs, request).value.counts}


# --- the modes ---


def test_lines_are_grouped_by_file(files: Filesystem):
    result = ask(files, GrepParams("foo", path="src"))
    assert result.message == (
        "3 matches in 2 files for 'foo'\n"
        "src/app.py\n5:    foo(1)\n\n"
        "src/lib/tools.py\n1:def foo(x):\n6:    foo(2)"
    )
    assert [(each.path, each.line_number) for each in result.value.matches] == [
        ("src/app.py", 5),
        ("src/lib/tools.py", 1),
        ("src/lib/tools.py", 6),
    ]
    assert result.value.counts == (GrepCount("src/app.py", 1), GrepCount("src/lib/tools.py", 2))


def test_files_are_listed_once(files: Filesystem):
    result = ask(files, GrepParams("foo", output_mode="files_with_matches"))
    assert result.message == (
        "4 files have matches for 'foo'\nREADME.md\nsrc/app.py\nsrc/lib/tools.py\nweb/app.js"
    )
    assert not result.value.truncated


def test_lines_are_counted(files: Filesystem):
    result = ask(files, GrepParams("foo", output_mode="count", path="src"))
    assert result.message == "3 lines in 2 files match 'foo'\nsrc/app.py:1\nsrc/lib/tools.py:2"


# --- context ---


def test_lines_around_have_a_dash_and_groups_are_divided(files: Filesystem):
    assert ask(files, GrepParams("foo", path="src", context=1)).message == (
        "3 matches in 2 files for 'foo'\n"
        "src/app.py\n4-def main():\n5:    foo(1)\n6-    return 2\n\n"
        "src/lib/tools.py\n1:def foo(x):\n2-    return x\n--\n"
        "5-def bar():\n6:    foo(2)\n7-    # end"
    )


def test_before_and_after_are_their_own_numbers(files: Filesystem):
    path = "src/lib/tools.py"
    text = ask(files, GrepParams("bar", path=path, before=2, after=1)).message
    assert text.endswith(f"{path}\n3-\n4-\n5:def bar():\n6-    foo(2)")
    text = ask(files, GrepParams("bar", path=path, context=2, after=0)).message
    assert text.endswith(f"{path}\n3-\n4-\n5:def bar():")


def test_groups_that_touch_are_one(files: Filesystem):
    text = ask(files, GrepParams("foo", path="src/lib/tools.py", context=2)).message
    assert "--" not in text
    assert text.endswith("4-\n5-def bar():\n6:    foo(2)\n7-    # end")


def test_negative_context_is_refused(files: Filesystem):
    assert "must be at least 0: -1" in refusal(
        files, GrepParams("foo", before=-1), ToolValidationError
    )


def test_lines_around_in_files_with_crlf_and_other_encodings(fs: Filesystem):
    fs.write("a.txt", "one\r\ntwo\r\nthree\r\n")
    assert ask(fs, GrepParams("two", context=1)).message.endswith("a.txt\n1-one\n2:two\n3-three")


def test_context_in_a_large_file_holds_only_what_is_shown(own: BaseFilesystem):
    own.write("big.log", "filler filler filler\n" * 500_000 + "needle\n" + "x" * 3_000_000 + "\n")
    context = make_context(own)
    tracemalloc.start()
    try:
        text = context.handle(GrepParams("needle", context=1)).message
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "500000-filler filler filler\n500001:needle\n500002-xxx" in text
    assert len(text) < 3_000
    assert peak < 40_000_000  # the engine searches blocks of 8 MiB


# --- long lines ---


def test_of_a_long_line_the_part_around_the_match_is_shown(fs: Filesystem):
    fs.write("app.min.js", "a" * 9_000 + "needle" + "b" * 9_000)
    text = ask(fs, GrepParams("needle")).message
    line = text.split("\n")[2]
    assert re.fullmatch(r"1:\.\.\.a+needleb+\.\.\.", line)
    assert len(line) < 600


# --- filters ---


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"glob": "*.py"}, {"src/app.py": 1, "src/lib/tools.py": 2}),
        ({"glob": "src/*.py"}, {"src/app.py": 1}),
        ({"glob": "*.{js,md}"}, {"README.md": 1, "web/app.js": 1}),
        ({"glob": "!*.py"}, {"README.md": 1, "web/app.js": 1}),
        ({"glob": "src/"}, {"src/app.py": 1, "src/lib/tools.py": 2}),
        ({"glob": "/src/*.py"}, {"src/app.py": 1}),
        ({"glob": "/src/lib/*.py", "path": "src"}, {"src/lib/tools.py": 2}),
        ({"type": "py"}, {"src/app.py": 1, "src/lib/tools.py": 2}),
        ({"type": "javascript"}, {"web/app.js": 1}),
        ({"type": "py", "glob": "src/*"}, {"src/app.py": 1}),
        ({"type": "py", "exclude": "lib"}, {"src/app.py": 1}),
        ({"exclude": "*.py"}, {"README.md": 1, "web/app.js": 1}),
        ({"exclude": "src/**"}, {"README.md": 1, "web/app.js": 1}),
        ({"exclude": "src/"}, {"README.md": 1, "web/app.js": 1}),
        ({"exclude": "src/lib"}, {"README.md": 1, "src/app.py": 1, "web/app.js": 1}),
        ({"path": "src", "exclude": "lib/*"}, {"src/app.py": 1}),
        ({"path": "src/app.py"}, {"src/app.py": 1}),
        ({"path": "/src/lib/"}, {"src/lib/tools.py": 2}),
    ],
)
def test_filters_choose_the_files(
    files: Filesystem, more: dict[str, object], found: dict[str, int]
):
    assert counts(files, **more) == found


def test_a_filter_may_begin_with_the_workspace(own: BaseFilesystem):
    own.write("src/app.py", "foo\n")
    own.write("app.py", "foo\n")
    root = own.root.rstrip("/")
    assert counts(own, glob=f"{root}/src/*.py") == {"src/app.py": 1}
    assert counts(own, glob=f"{root}/src/*.py", path="src") == {"src/app.py": 1}


def test_there_are_types_for_more_than_40_languages():
    assert len(FILE_TYPES) > 40


def test_a_type_that_is_not_known_is_refused_with_the_nearest(files: Filesystem):
    said = refusal(files, GrepParams("foo", type="pyton"), ToolValidationError)
    assert said.startswith("Unknown file type: 'pyton'; did you mean 'python'?; known types: asm, ")


def test_case_can_be_ignored(files: Filesystem):
    assert counts(files, pattern="FOO|TITLE", ignore_case=True)["README.md"] == 2


def test_plain_text_is_taken_as_it_is(files: Filesystem):
    files.write("a.txt", "a.b[0] | c\naxb\n")
    assert counts(files, pattern="a.b[0] | c", fixed_string=True) == {"a.txt": 1}
    assert counts(files, pattern="A.B[", fixed_string=True, ignore_case=True) == {"a.txt": 1}


def test_ignored_files_are_searched_only_when_asked(files: Filesystem):
    files.write(".gitignore", "web/\n*.md\n")
    assert list(counts(files)) == ["src/app.py", "src/lib/tools.py"]
    assert list(counts(files, include_ignored=True)) == list(FILES)


def test_a_file_that_is_named_is_searched_though_it_is_ignored(files: Filesystem):
    files.write(".gitignore", "*.md\n")
    assert counts(files, path="README.md") == {"README.md": 1}


def test_binary_files_are_passed_over(files: Filesystem):
    files.write_bytes("a.bin", b"foo\0foo\n")
    assert "a.bin" not in counts(files)


# --- how many ---


def test_matches_are_cut_at_the_head_limit(files: Filesystem):
    result = ask(files, GrepParams("foo", head_limit=2))
    assert result.message.startswith("2 matches in 2 files for 'foo', and more\nREADME.md\n")
    assert result.message.endswith(
        "[truncated; more matches follow: use a narrower pattern, path or glob; to list the"
        " files with matches: grep with pattern='foo', output_mode='files_with_matches']"
    )
    assert result.value.truncated
    exact = ask(files, GrepParams("foo", head_limit=5))
    assert not exact.value.truncated
    assert "truncated" not in exact.message
    assert not ask(files, GrepParams("foo", head_limit=0)).value.truncated


def test_files_and_counts_are_cut_at_the_head_limit(files: Filesystem):
    result = ask(files, GrepParams("foo", output_mode="files_with_matches", head_limit=3))
    assert result.message.startswith("more than 3 files have matches for 'foo'\nREADME.md\n")
    assert result.value.truncated
    result = ask(files, GrepParams("foo", output_mode="count", head_limit=1))
    assert result.message.startswith("5 lines in 4 files match 'foo'\nREADME.md:1\n[truncated")
    assert not ask(
        files, GrepParams("foo", output_mode="files_with_matches", head_limit=4)
    ).value.truncated


def test_matches_of_one_file_can_be_limited(files: Filesystem):
    result = ask(files, GrepParams("foo", path="src", max_per_file=1))
    assert result.message == (
        "2 matches in 2 files for 'foo'\nsrc/app.py\n5:    foo(1)\n\n"
        "src/lib/tools.py\n1:def foo(x):\n[more matches in src/lib/tools.py]"
    )
    assert "at least 1: 0" in refusal(files, GrepParams("foo", max_per_file=0), ToolValidationError)


@pytest.fixture
def crowd(fs: Filesystem) -> Filesystem:
    """Far more matches than a filesystem's own search returns."""
    for number in range(30):
        fs.write(f"d/f{number:02}.py", f"match {number}\nother\n" * (10 * number + 1))
    fs.write("z.py", "match\n" * 1_500)
    return fs


def test_counts_are_exact_however_many_there_are(crowd: Filesystem):
    expected = {f"d/f{number:02}.py": 10 * number + 1 for number in range(30)} | {"z.py": 1_500}
    assert counts(crowd, pattern="match") == expected
    text = ask(crowd, GrepParams("match", output_mode="count")).message
    assert text.startswith(f"{sum(expected.values()):,} lines in 31 files match")
    some = {path: count for path, count in expected.items() if path.endswith("9.py")}
    assert counts(crowd, pattern="match", exclude="*[0-8].py", glob="d/*.py") == some
    assert counts(crowd, pattern="match", path="z.py") == {"z.py": 1_500}


def test_all_files_are_found_however_many_matches_each_has(crowd: Filesystem):
    result = ask(crowd, GrepParams("match", output_mode="files_with_matches"))
    assert len(result.value.counts) == 31
    assert not result.value.truncated


def test_matches_behind_those_of_other_files_are_found(crowd: Filesystem):
    result = ask(crowd, GrepParams("match", exclude="d"))
    assert {each.path for each in result.value.matches} == {"z.py"}
    assert (len(result.value.matches), result.value.truncated) == (250, True)
    assert result.value.matches[-1].line_number == 250
    one = ask(crowd, GrepParams("match", max_per_file=1))
    assert len(one.value.matches) == 31


@pytest.mark.parametrize("mode", ["content", "files_with_matches", "count"])
def test_the_budget_is_kept(crowd: Filesystem, mode: GrepMode):
    result = ask(crowd, GrepParams("match", output_mode=mode), max_characters=400)
    assert "[truncated" in result.message
    assert result.value.truncated


# --- nothing ---


def test_nothing_is_said_to_match(files: Filesystem):
    result = ask(files, GrepParams("xyzzy", path="src"))
    assert result.success
    assert result.message == "No matches for 'xyzzy' in src"
    assert result.value.matches == ()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (
            GrepParams("FOO"),
            "it matches if case is ignored; use grep with pattern='FOO', ignore_case=true",
        ),
        (
            GrepParams("foo(1)"),
            "it matches as plain text; use grep with pattern='foo(1)', fixed_string=true",
        ),
        (
            GrepParams("foo", glob="*.rs"),
            "no file passes the filters; check glob, type and exclude",
        ),
        (
            GrepParams("foo", path="src/app.py", type="js"),
            "no file passes the filters; check glob, type and exclude",
        ),
        (
            GrepParams("foo\nbar"),
            "lines are searched one at a time, so a pattern with a newline cannot match",
        ),
        (
            GrepParams(r"foo\nbar"),
            "lines are searched one at a time, so a pattern with a newline cannot match",
        ),
    ],
)
def test_why_nothing_matches_is_said(files: Filesystem, request_: GrepParams, said: str):
    assert (
        ask(files, request_).message
        == f"No matches for {request_.pattern!r}"
        + (" in src/app.py" if request_.path != "." else "")
        + f"; {said}"
    )


def test_matches_in_ignored_files_are_told(files: Filesystem):
    files.write(".gitignore", "*\n")
    assert ask(files, GrepParams("foo")).message.endswith(
        "; it matches in files that .gitignore or .ignore exclude;"
        " use grep with pattern='foo', include_ignored=true"
    )
    plain = ask(files, GrepParams("foo"), dialect=Dialect()).message
    assert plain.endswith("; it matches in files that .gitignore or .ignore exclude")


# --- refusals ---


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("foo(", "missing )"),
        (r"foo(?=x)", "lookaround is not supported"),
        (r"(a)\1", "backreferences are not supported"),
    ],
)
def test_a_pattern_that_cannot_be_says_what_is_wrong(files: Filesystem, pattern: str, said: str):
    text = refusal(files, GrepParams(pattern, ignore_case=True), InvalidRegexError)
    assert said in text
    assert text.endswith(f": {pattern!r}")


def test_a_place_that_is_not_there_is_explained(own: BaseFilesystem):
    own.write("src/app.py", "foo\n")
    make_link(own, "link", "src/app.py")
    assert refusal(own, GrepParams("foo", path="scr"), FileNotFoundError) == (
        "No such file or directory: 'scr'; did you mean 'src'?"
    )
    assert "is a symbolic link to 'src/app.py'" in refusal(
        own, GrepParams("foo", path="link"), PermissionError
    )


def test_time_that_is_up_is_said_with_what_to_do(files: Filesystem):
    with time_limit(0):
        assert refusal(files, GrepParams("foo"), TimeLimitError).endswith(
            "search a smaller directory or fewer files"
        )


# --- whatever the files ---


@given(
    st.lists(st.text(st.sampled_from("ab\n"), max_size=30), max_size=6),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_an_excerpt_shows_each_line_once_in_order(texts: list[str], limit: int, context: int):
    fs = InMemoryFilesystem()
    for number, text in enumerate(texts):
        fs.write(f"f{number}", text)
    request = GrepParams("a", head_limit=limit, context=context)
    result = ask(fs, request)
    expected = [
        (f"f{number}", line)
        for number, text in enumerate(texts)
        for line, content in enumerate(text.split("\n"), 1)
        if "a" in content
    ]
    shown = [(each.path, each.line_number) for each in result.value.matches]
    assert shown == expected[:limit]
    assert result.value.truncated == (len(expected) > limit)
    if expected:
        check_lines(result.message, dict(enumerate(texts)))


def check_lines(message: str, texts: dict[int, str]) -> None:
    path, last = "", 0
    for line in message.split("\n")[1:]:
        if line in {"", "--"} or line.startswith("["):
            continue
        if line.startswith("f"):
            path, last = line, 0
            continue
        number, mark, text = re.fullmatch(r"(\d+)([:-])(.*)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert int(number) > last
        last = int(number)
        assert text == texts[int(path[1:])].split("\n")[last - 1]
        assert mark == "-" or "a" in text
