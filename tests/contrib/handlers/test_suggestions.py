"""Suggestions of similar names for a missing path."""

import pytest

from tests.contrib.handlers.requests import ask, make_context, make_link, refusal
from weakincentives.contrib.tools.context import Dialect
from weakincentives.contrib.tools.handlers.suggestions import near_names, similar_paths
from weakincentives.contrib.tools.requests import LsParams, ReadFileParams, StatParams
from weakincentives.filesystem import BaseFilesystem, Filesystem

FILES = (
    "README.md",
    "src/app/main.py",
    "src/app/models.py",
    "src/app/[id].tsx",
    "src/lib/config.py",
    "tests/app/main.py",
    "vendor/secret.py",
)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("src/app/mian.py", "src/app/main.py"),
        ("src/app/Main.py", "src/app/main.py"),
        ("readme.md", "README.md"),
        ("README", "README.md"),
        ("Src/app/main.py", "src/app/main.py"),
        ("src/ap/main.py", "src/app/main.py"),
        ("config.py", "src/lib/config.py"),
        ("src/app/config.py", "src/lib/config.py"),
        ("lib/CONFIG.py", "src/lib/config.py"),
        ("a/b/c/app/main.py", "src/app/main.py"),
        ("[id].tsx", "src/app/[id].tsx"),
    ],
)
def test_the_nearest_path_comes_first(fs: Filesystem, given: str, meant: str):
    for path in FILES:
        fs.write(path, "")
    assert similar_paths(make_context(fs), given)[0] == meant


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("mian.py", "main.py"),
        ("scr", "src"),
        ("source", "src"),
        ("README", "README.md"),
        ("config.yml", "config.yaml"),
        ("app.js", "app.ts"),
        ("userService.ts", "user_service.ts"),
        ("user-service.ts", "UserService.ts"),
        ("test_main.py", "main_test.py"),
        ("config.py", "configuration.py"),
        ("user.py", "user_service.py"),
        ("modles.py", "models.py"),
        ("gitignore", ".gitignore"),
        ("file.py", "file1.py"),
    ],
)
def test_a_near_name_is_meant_in_both_directions(wrong: str, name: str):
    assert near_names(wrong, [name]) == [name]
    assert near_names(name, [wrong]) == [wrong]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("utils.py", "views.py"),
        ("test_auth.py", "test_user.py"),
        ("get_users.py", "list_users.py"),
        ("FooController.java", "BarController.java"),
        ("api.py", "app.py"),
        ("file1.py", "file2.py"),
        ("log2024.txt", "log20241.txt"),
        ("test.py", "text.py"),
        ("mian.py", "main.css"),
        ("setup.py", "tests.py"),
        ("docs", "dist"),
        ("a.py", "b.py"),
        ("index.html", "index_of_all_pages.html"),
        ("__", "--"),
    ],
)
def test_another_name_is_not_meant(wrong: str, name: str):
    assert near_names(wrong, [name]) == []
    assert near_names(name, [wrong]) == []


def test_the_nearest_of_several_names_comes_first_and_there_are_three():
    names = ["models_old.py", "model.py", "modules.py", "models.pyi", "views.py", "Models.py"]
    assert near_names("models.py", names) == ["Models.py", "models.pyi", "model.py"]


def test_files_that_are_ignored_are_not_meant(fs: Filesystem):
    fs.write("vendor/secret.py", "")
    fs.write(".gitignore", "vendor/\n")
    assert similar_paths(make_context(fs), "src/secret.py") == ()


def test_there_are_three_at_most(fs: Filesystem):
    for number in range(9):
        fs.write(f"file{number}.py", "")
    assert len(similar_paths(make_context(fs), "file.py")) == 3


def test_a_missing_file_is_told_with_what_may_have_been_meant(fs: Filesystem):
    fs.write("src/a1.py", "")
    fs.write("src/a2.py", "")
    assert refusal(fs, ReadFileParams("src/a.py"), FileNotFoundError) == (
        "No such file: 'src/a.py'; did you mean 'src/a1.py' or 'src/a2.py'?"
    )


def test_if_nothing_is_near_the_place_to_look_is_said(fs: Filesystem):
    fs.write("src/a.py", "")
    said = refusal(fs, ReadFileParams("src/xyzzy/q/plugh"), FileNotFoundError)
    assert said == "No such file: 'src/xyzzy/q/plugh'; to see what exists: ls with path='src'"
    plain = refusal(fs, ReadFileParams("src/xyzzy"), FileNotFoundError, dialect=Dialect())
    assert plain == "No such file: 'src/xyzzy'"


def test_a_name_that_cannot_be_seen_is_escaped(fs: Filesystem):
    said = refusal(fs, ReadFileParams("a\u202eb"), FileNotFoundError)
    assert said.startswith("No such file: 'a\\\\u202eb'")


# --- names that are shown escaped ---

ODD = ("a\nb.py", "c\u202ed.py", "e\\f.py", "g\\n.py", "h\x1bi", "j\udcffk", "\U000e0001l")


@pytest.mark.parametrize("name", ODD)
def test_a_name_is_understood_as_it_is_shown(own: BaseFilesystem, name: str):
    make_link(own, name, "moved")  # no rules for names bind what is made past the protocol
    listing = ask(own, LsParams()).message
    line = next(each for each in listing.split("\n") if each.endswith(" -> moved"))
    listed = line.removesuffix(" -> moved")
    for sent in (name, listed, repr(listed)[1:-1]):
        assert ask(own, StatParams(sent)).value.path == name


def test_a_name_that_nobody_shows_so_stays_as_it_is(fs: Filesystem):
    assert "No such file: 'a" in refusal(fs, ReadFileParams("a\\x00\\u12"), FileNotFoundError)


@pytest.mark.parametrize("sent", ["\\x2eenv", "\\u002eenv", "sub\\x2f..\\x2f.env", "\\\\x2eenv"])
def test_what_need_not_be_escaped_may_not_be(fs: Filesystem, sent: str):
    fs.write(".env", "secret\n")
    fs.mkdir("sub")
    assert "No such file" in refusal(fs, ReadFileParams(sent), FileNotFoundError)
