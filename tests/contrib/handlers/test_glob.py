"""`glob`: files by name, and the diagnosis if there are none."""

import pytest

from tests.contrib.handlers.requests import ask, make_link, refusal
from weakincentives.contrib.tools.context import Dialect
from weakincentives.contrib.tools.requests import GlobParams
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    InvalidGlobError,
    TimeLimitError,
    time_limit,
)

FILES = ("top.py", "src/app.py", "src/web/view.py", "src/web/page.html", ".github/ci.yml")


@pytest.fixture
def files(fs: Filesystem) -> Filesystem:
    for path in FILES:
        fs.write(path, "")
    return fs


def test_paths_are_listed_sorted_with_their_number(files: Filesystem):
    result = ask(files, GlobParams("**/*.py"))
    assert result.message == "3 files match '**/*.py'\nsrc/app.py\nsrc/web/view.py\ntop.py"
    assert [each.path for each in result.value.matches] == [
        "src/app.py",
        "src/web/view.py",
        "top.py",
    ]
    assert (result.value.total, result.value.truncated) == (3, False)


def test_a_directory_to_look_in_narrows_the_search(files: Filesystem):
    text = ask(files, GlobParams("*.py", "src")).message
    assert text == "1 file in src matches '*.py'\nsrc/app.py"


def test_a_pattern_with_a_slash_at_the_end_finds_directories(files: Filesystem):
    text = ask(files, GlobParams("src/**/")).message
    assert text == "2 directories match 'src/**/'\nsrc/\nsrc/web/"


def test_names_with_a_dot_are_names_like_others(files: Filesystem):
    assert ".github/ci.yml" in ask(files, GlobParams("**/*.yml")).message


def test_a_pattern_may_begin_at_the_root(own: BaseFilesystem):
    own.write("src/app.py", "")
    own.write("lib/app.py", "")
    root = own.root.rstrip("/")
    for pattern, path in (
        ("/src/*.py", "."),
        ("/src/*.py", "src"),
        (f"{root}/src/*.py", "."),
        (f"{root}/src/*.py", "src"),
        (f"{root}/src/", "src"),
    ):
        assert ask(own, GlobParams(pattern, path)).message.endswith("\nsrc/app.py")


def test_a_pattern_from_the_root_does_not_lead_out_of_the_place_to_look_in(fs: Filesystem):
    fs.write("src/app.py", "")
    fs.write("srcs/app.py", "")
    assert refusal(fs, GlobParams("/srcs/*.py", "src"), ToolValidationError) == (
        "Pattern '/srcs/*.py' starts at the workspace root and lies outside 'src'; search in"
        " '.', or make the pattern relative to the directory"
    )


def test_the_root_as_a_pattern_means_all_files(own: BaseFilesystem):
    own.write("src/app.py", "")
    for pattern in ("/", own.root):
        assert ask(own, GlobParams(pattern)).message == "1 file matches '**'\nsrc/app.py"


def test_links_are_found(own: BaseFilesystem):
    make_link(own, "a.py", "gone")
    assert ask(own, GlobParams("*.py")).message == "1 file matches '*.py'\na.py"


# --- ignore files ---


def test_what_is_ignored_is_left_out_unless_it_is_asked_for(files: Filesystem):
    files.write(".gitignore", "src/web/\n*.html\n")
    files.write("src/.ignore", "app.*\n")
    assert ask(files, GlobParams("**/*.py")).message == "1 file matches '**/*.py'\ntop.py"
    assert ask(files, GlobParams("**/*.py", include_ignored=True)).value.total == 3


def test_only_ignored_matches_are_told_with_how_to_see_them(files: Filesystem):
    files.write(".gitignore", "web/\n")
    assert ask(files, GlobParams("**/*.html")).message == (
        "No files match '**/*.html'; 1 matching file is excluded by .gitignore or .ignore;"
        " to see them: glob with pattern='**/*.html', include_ignored=true"
    )


def test_the_files_of_git_itself_are_left_out(fs: Filesystem):
    fs.write(".git/config", "")
    assert ask(fs, GlobParams("**/config")).message.startswith("No files match")


# --- nothing ---


def test_nothing_is_said_to_match(files: Filesystem):
    result = ask(files, GlobParams("*.rs"))
    assert result.success
    assert result.message == "No files match '*.rs'"
    assert result.value.matches == ()


@pytest.mark.parametrize(
    ("request_", "meant", "example"),
    [
        (GlobParams("view.py"), "glob with pattern='**/view.py'", "'src/web/view.py'"),
        (GlobParams("*.html"), "glob with pattern='**/*.html'", "'src/web/page.html'"),
        (GlobParams("src/app.py", "src"), "glob with pattern='app.py', path='src'", "'src/app.py'"),
        (
            GlobParams("src/web/*.py", "src/web"),
            "glob with pattern='*.py', path='src/web'",
            "'src/web/view.py'",
        ),
        (GlobParams(".github/*", "src"), "glob with pattern='.github/*'", "'.github/ci.yml'"),
    ],
)
def test_what_may_have_been_meant_is_said(
    files: Filesystem, request_: GlobParams, meant: str, example: str
):
    said = ask(files, request_).message
    assert f"; did you mean {meant}? It finds {example}" in said


def test_without_a_tool_to_name_the_pattern_is_said(files: Filesystem):
    said = ask(files, GlobParams("view.py"), dialect=Dialect()).message
    assert said.endswith("did you mean '**/view.py'? It finds 'src/web/view.py'")


def test_a_directory_is_said_to_be_one(files: Filesystem):
    assert ask(files, GlobParams("src")).message == (
        "No files match 'src'; 'src' is a directory; to find the files in it: glob with"
        " pattern='src/**'"
    )


def test_a_name_in_another_case_is_said(files: Filesystem):
    said = ask(files, GlobParams("SRC/App.*")).message
    assert said == "No files match 'SRC/App.*'; patterns are case-sensitive: 'src/app.py' exists"


# --- too many ---


def test_many_paths_are_cut_with_where_the_others_are(fs: Filesystem):
    for number in range(40):
        fs.write(f"{'ab'[number % 2]}/f{number:02}.py", "")
    result = ask(fs, GlobParams("**/*.py"), max_entries=25)
    assert result.message.startswith("40 files match '**/*.py'\na/f00.py\n")
    assert result.message.endswith(
        "[truncated: 25 of 40 shown; use a narrower pattern or path; the rest is in b/ (15)]"
    )
    assert (len(result.value.matches), result.value.total, result.value.truncated) == (25, 40, True)


def test_a_head_limit_is_kept(files: Filesystem):
    assert len(ask(files, GlobParams("**/*.py", head_limit=2)).value.matches) == 2
    assert len(ask(files, GlobParams("**/*.py", head_limit=0)).value.matches) == 3
    assert len(ask(files, GlobParams("**/*.py", head_limit=99), max_entries=1).value.matches) == 1
    said = refusal(files, GlobParams("*", head_limit=-1), ToolValidationError)
    assert said == "The number of results must be at least 0: -1"


def test_the_budget_is_kept(fs: Filesystem):
    for number in range(200):
        fs.write(f"some/directory/with/names/{number:03}.txt", "")
    result = ask(fs, GlobParams("**"), max_characters=2_000)
    assert 10 < len(result.value.matches) < 60
    assert "[truncated" in result.message


# --- refusals ---


def test_a_place_that_is_no_directory_is_explained(files: Filesystem):
    assert "'top.py' is a file, not a directory" in refusal(
        files, GlobParams("*", "top.py"), NotADirectoryError
    )
    assert refusal(files, GlobParams("*", "scr"), FileNotFoundError) == (
        "No such directory: 'scr'; did you mean 'src'?"
    )


def test_a_pattern_that_cannot_be_is_refused(files: Filesystem):
    assert "Invalid glob" in refusal(files, GlobParams(""), InvalidGlobError)
    assert "escapes" in refusal(files, GlobParams("../*"), PermissionError)


def test_time_that_is_up_is_said_with_what_to_do(files: Filesystem):
    with time_limit(0):
        assert refusal(files, GlobParams("**"), TimeLimitError).endswith(
            "search a smaller directory"
        )


# --- what is left out ---


def test_a_search_leaves_out_what_it_is_told_to(files: Filesystem):
    assert ask(files, GlobParams("**/*.py", exclude=("src/web/**",))).value.total == 2
    assert ask(files, GlobParams("**/*.py", "src", exclude=("web", "x"))).value.total == 1
    assert ask(files, GlobParams("src/*.py", exclude=("app.*",))).message.endswith(
        "; exclude leaves out all matches, for example 'src/app.py'"
    )
