"""`ls`, `stat` and `tree`: directory listings and metadata."""

import pytest

from tests.contrib.handlers.requests import ask, make_link, refusal
from weakincentives.contrib.tools.context import Dialect
from weakincentives.contrib.tools.requests import LsParams, StatParams, TreeParams, WorkspaceParams
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import BaseFilesystem, Filesystem, InMemoryFilesystem


def test_directories_come_first_and_files_have_sizes(fs: Filesystem):
    fs.write("src/b.py", "x" * 1_234)
    fs.write("src/a.py", "")
    fs.mkdir("src/z")
    fs.write("src/.env", "x")
    result = ask(fs, LsParams("src"))
    assert result.message == (
        "src: 1 directory, 3 files\nz/\n.env (1 byte)\na.py (0 bytes)\nb.py (1.2 kB)"
    )
    assert [each.path for each in result.value.entries] == [
        "src/z",
        "src/.env",
        "src/a.py",
        "src/b.py",
    ]
    assert not result.value.truncated


def test_the_largest_file_comes_first_on_request(fs: Filesystem):
    for name, size in (("a.py", 1), ("b.py", 30), ("c.py", 2)):
        fs.write(name, "x" * size)
    fs.mkdir("z")
    listed = ask(fs, LsParams(sort_by="size")).value.entries
    assert [each.path for each in listed] == ["b.py", "c.py", "a.py", "z"]


def test_the_top_is_listed_by_any_of_its_names(fs: Filesystem):
    fs.write("a.py", "")
    for path in (".", "", "/", "./"):
        assert ask(fs, LsParams(path)).message == ".: 1 file\na.py (0 bytes)"


def test_links_show_where_they_lead(own: BaseFilesystem):
    own.write("a", "")
    make_link(own, "b", "../else/where\n")
    assert ask(own, LsParams()).message == ".: 1 file, 1 link\na (0 bytes)\nb -> ../else/where\\n"


def test_names_that_cannot_be_seen_are_escaped(own: BaseFilesystem):
    make_link(own, "a\u200bb", "x")
    assert "a\\u200bb -> x" in ask(own, LsParams()).message


def test_an_empty_directory_is_said_to_be_empty(fs: Filesystem):
    fs.mkdir("void")
    assert ask(fs, LsParams("void")).message == "void is an empty directory"


def test_a_file_is_said_to_be_one(fs: Filesystem):
    fs.write("a.py", "")
    assert refusal(fs, LsParams("a.py"), NotADirectoryError) == (
        "'a.py' is a file, not a directory; to read it: read_file with file_path='a.py'"
    )
    plain = refusal(fs, LsParams("a.py"), NotADirectoryError, dialect=Dialect())
    assert plain == "'a.py' is a file, not a directory"


def test_a_missing_directory_is_told_with_what_may_have_been_meant(fs: Filesystem):
    fs.write("source/a.py", "")
    assert refusal(fs, LsParams("sources"), FileNotFoundError) == (
        "No such directory: 'sources'; did you mean 'source'?"
    )


def test_a_link_to_a_directory_is_not_followed_but_explained(own: BaseFilesystem):
    own.write("src/a.py", "")
    make_link(own, "link", "src")
    assert refusal(own, LsParams("link"), PermissionError).endswith(
        "use its target: ls with path='src'"
    )


def test_a_large_directory_is_cut_with_what_to_do(fs: Filesystem):
    for number in range(30):
        fs.write(f"f{number:02}", "")
    result = ask(fs, LsParams(), max_entries=10)
    assert result.value.truncated
    assert len(result.value.entries) == 10
    head, *_, last, foot = result.message.split("\n")
    assert head == ".: 30 files"
    assert last == "f09 (0 bytes)"
    assert foot == (
        "[truncated: 10 of 30 entries shown; to continue: ls with offset=10; to find others"
        " by name, for example: glob with pattern='a*']"
    )


def test_the_pages_of_a_listing_are_the_whole_of_it(fs: Filesystem):
    for number in range(25):
        fs.write(f"f{number:02}", "")
    pages = [ask(fs, LsParams(offset=offset), max_entries=10) for offset in (0, 10, 20)]
    names = [entry.name for page in pages for entry in page.value.entries]
    assert names == [f"f{number:02}" for number in range(25)]
    assert [page.value.truncated for page in pages] == [True, True, False]
    assert "truncated" not in pages[-1].message


@pytest.mark.parametrize("offset", [3, 99, -1])
def test_more_entries_cannot_be_skipped_than_there_are(fs: Filesystem, offset: int):
    for number in range(3):
        fs.write(f"f{number}", "")
    text = refusal(fs, LsParams(offset=offset), ToolValidationError)
    assert text == f"offset {offset} is out of range: . has 3 entries"


def test_a_listing_stays_within_the_budget(fs: Filesystem):
    for number in range(200):
        fs.write(f"a-name-that-is-not-short-{number:03}", "")
    result = ask(fs, LsParams(), max_characters=1_000)
    assert 5 < len(result.value.entries) < 40
    assert "[truncated" in result.message


# --- stat ---


def test_stat_says_what_is_there(own: BaseFilesystem):
    own.write("a.sh", "x" * 1_500)
    make_link(own, "b", "a.sh")
    own.mkdir("c")
    result = ask(own, StatParams("a.sh"))
    assert result.message.startswith("a.sh: file\nsize: 1,500 bytes\nmodified: 2")
    assert result.message.endswith("\npermissions: 644")
    assert (result.value.size_bytes, result.value.is_file) == (1_500, True)
    assert ask(own, StatParams("b")).message.startswith("b: symbolic link to 'a.sh'")
    assert ask(own, StatParams("c")).message.startswith("c: directory")


def test_stat_of_nothing_says_what_may_have_been_meant(fs: Filesystem):
    fs.write("readme.md", "")
    said = refusal(fs, StatParams("README.md"), FileNotFoundError)
    assert said == "No such file or directory: 'README.md'; did you mean 'readme.md'?"


# --- tree ---


def test_a_tree_shows_what_is_below(fs: Filesystem):
    for path in ("src/app/main.py", "src/app/web/view.py", "src/z.py", "a.md", ".git/HEAD"):
        fs.write(path, "x")
    result = ask(fs, TreeParams())
    assert result.message == (
        ".: 2 directories, 1 file\n"
        ".git/ ...\n"
        "src/\n  app/\n    web/\n      view.py (1 byte)\n    main.py (1 byte)\n  z.py (1 byte)\n"
        "a.md (1 byte)\n"
        "[truncated: the content of 1 directory (...) not shown; list a subdirectory to see more]"
    )


def test_a_tree_leaves_out_what_it_is_told_to(fs: Filesystem):
    for path in ("src/a.py", "src/a.pyc", "node_modules/x/y.js", "src/gen/z.py"):
        fs.write(path, "x")
    text = ask(fs, TreeParams(exclude=("*.pyc", "node_modules/", "src/gen"))).message
    assert text == ".: 1 directory\nsrc/\n  a.py (1 byte)"
    assert (
        ask(fs, TreeParams("src", exclude=("gen", "*.py*"))).message == "src is an empty directory"
    )


def test_a_large_tree_is_opened_level_by_level(fs: Filesystem):
    for number in range(20):
        fs.write(f"deep/below/f{number:02}", "")
    fs.write("other/file", "")
    result = ask(fs, TreeParams(), max_entries=5)
    assert result.value.truncated
    assert result.message.startswith(
        ".: 2 directories\ndeep/\n  below/ ...\n    f00 (0 bytes)\n"
        "other/\n  file (0 bytes)\n[truncated"
    )


def test_a_tree_of_a_file_is_refused(fs: Filesystem):
    fs.write("a.py", "")
    assert "is a file" in refusal(fs, TreeParams("a.py"), NotADirectoryError)


# --- what is left out ---


def test_a_listing_leaves_out_what_it_is_told_to(fs: Filesystem):
    for path in ("a.py", "a.pyc", "build/x", "src/y"):
        fs.write(path, "")
    text = ask(fs, LsParams(exclude=("*.pyc", "build/"))).message
    assert text == ".: 1 directory, 1 file\nsrc/\na.py (0 bytes)"
    assert ask(fs, LsParams("src", exclude=("*",))).message == (
        "All entries of src are excluded: 1 file"
    )


# --- the workspace ---


def test_the_workspace_says_where_it_is(fs: Filesystem):
    result = ask(fs, WorkspaceParams())
    assert result.value == fs.root
    assert result.message.startswith(f"{fs.root}\nThis is the workspace root; only files below it")


def test_a_workspace_that_cannot_be_changed_says_so():
    fs = InMemoryFilesystem(read_only=True)
    assert ask(fs, WorkspaceParams()).message.endswith("\nThe workspace is read-only.")


def test_some_levels_of_a_directory_are_shown(fs: Filesystem):
    fs.write("src/a/deep/x.py", "")
    fs.write("src/a/b.py", "")
    fs.write("src/z.py", "")
    two = "src: 1 directory, 1 file\na/\n  deep/\n  b.py (0 bytes)\nz.py (0 bytes)"
    assert ask(fs, TreeParams("src", depth=2)).message == two
    assert "    x.py" in ask(fs, TreeParams("src", depth=3)).message
    one = ask(fs, TreeParams("src", depth=1)).message
    assert one == "src: 1 directory, 1 file\na/\nz.py (0 bytes)" == ask(fs, LsParams("src")).message


def test_the_levels_of_a_directory_are_shown_in_pages_that_go_on(fs: Filesystem):
    for number in range(30):
        fs.write(f"{number % 5}/{number:02}.txt", "")
    whole = ask(fs, TreeParams(depth=2)).value.lines
    pages = [ask(fs, TreeParams(depth=2, offset=at, limit=7)).value for at in range(0, 35, 7)]
    assert [line for page in pages for line in page.lines] == list(whole)
    assert [page.truncated for page in pages] == [True, True, True, True, False]
    bounded = ask(fs, TreeParams(depth=2, limit=1_000), max_entries=10)
    assert len(bounded.value.lines) == 10
    assert "10 entries shown, more follow" in bounded.message


@pytest.mark.parametrize(
    "request_",
    [
        TreeParams(depth=0),
        TreeParams(depth=1, limit=0),
        TreeParams(depth=2, offset=-1),
        TreeParams(depth=2, offset=9),
    ],
)
def test_levels_that_cannot_be_shown_are_refused(fs: Filesystem, request_: TreeParams):
    fs.write("a", "")
    refusal(fs, request_, ToolValidationError)


def test_an_empty_directory_has_no_levels(fs: Filesystem):
    fs.mkdir("void")
    assert ask(fs, TreeParams("void", depth=2)).message == "void is an empty directory"
    refusal(fs, TreeParams("gone", depth=2), FileNotFoundError)
