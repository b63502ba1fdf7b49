"""Ranking: imports lead to the right file in every language, and what is used most comes first."""

import pytest

from weakincentives.contrib.digest.file_ranking import page_rank, rank_files
from weakincentives.contrib.digest.languages import language_of
from weakincentives.contrib.digest.scanner import FileNames, scan


def rank(files: dict[str, str], *focus: str) -> list[str]:
    names = {path: scan(text, language_of(path).family) for path, text in files.items()}
    return [path for path, _ in rank_files(names, focus=focus)]


@pytest.mark.parametrize(
    ("used", "user", "text"),
    [
        ("pkg/used.py", "pkg/user.py", "from pkg.used import thing\n"),
        ("pkg/used.py", "pkg/user.py", "from .used import (\n    thing,  # why\n)\n"),
        ("pkg/used.py", "pkg/deep/user.py", "from .. import used\n"),
        ("src/pkg/used.py", "tests/test_user.py", "import pkg.used\n"),
        ("src/pkg/__init__.py", "src/other/user.py", "from pkg import thing as other\n"),
        ("lib/used.js", "lib/user.js", "const used = require('./used');\n"),
        ("lib/used/index.js", "lib/user.js", 'import used from "./used";\n'),
        ("src/used.ts", "src/deep/user.ts", "export * from '../used.js';\n"),
        ("src/a.used.ts", "src/user.ts", "import { x } from './a.used';\n"),
        ("include/used.h", "src/user.c", '#include "used.h"\n'),
        ("src/net/used.h", "src/user.c", "#include <net/used.h>\n"),
        ("src/used.rs", "src/main.rs", "mod used;\n"),
        ("src/a/used.rs", "src/b.rs", "use crate::a::used::Thing;\n"),
        ("src/used/mod.rs", "src/b.rs", "use crate::used;\n"),
        ("src/org/x/Used.java", "src/org/y/User.java", "import org.x.Used;\n"),
        ("lib/a/used.rb", "lib/user.rb", "require_relative 'a/used'\n"),
        ("src/A/Used.php", "src/B/User.php", "<?php\nuse A\\Used;\n"),
    ],
)
def test_an_import_leads_to_its_file(used: str, user: str, text: str):
    others = {f"{'a' * number}{used[used.rindex('.') :]}": "" for number in range(1, 4)}
    assert rank({**others, used: "", user: text})[0] == used


def test_a_single_name_is_not_looked_for_everywhere():
    files = {"deep/down/json.py": "", "other/a.py": "import json\n", "other/b.py": "import json\n"}
    assert rank(files) == ["deep/down/json.py", "other/a.py", "other/b.py"]  # no rank, path order


def test_a_file_whose_names_are_used_comes_first():
    files = {
        "a.go": "package x\nfunc Caller() { HelperOne() }\n",
        "b.go": "package x\nfunc CallerTwo() { HelperOne() }\n",
        "z.go": "package x\nfunc HelperOne() {}\n",
    }
    assert rank(files)[0] == "z.go"


def test_names_mean_nothing_in_another_language():
    files = {"a.py": "def one():\n    SomeHelper()\n", "z.js": "class SomeHelper {}\n"}
    assert rank(files) == ["a.py", "z.js"]


def test_comments_and_strings_are_not_references():
    for text in ("# SomeHelper\n", '"""\nSomeHelper\n"""\n', "x = 'SomeHelper'\n"):
        files = {"a.py": text, "z.py": "class SomeHelper: ...\n"}
        assert rank(files) == ["a.py", "z.py"]


def test_a_name_that_many_define_says_nothing():
    definers = {f"d{number}.py": "class Meta: ...\n" for number in range(9)}
    assert rank({"a.py": "Meta\n", **definers}) == sorted(["a.py", *definers])


def test_tests_vendored_and_compiled_code_come_after_the_projects_own():
    used = "class Used: ...\n"
    files = {
        "tests/helpers.py": used.replace("Used", "UsedA"),
        "vendor/lib.py": used.replace("Used", "UsedB"),
        "src/own.py": used.replace("Used", "UsedC"),
        "a.py": "UsedA, UsedB, UsedC\n",
    }
    assert rank(files)[0] == "src/own.py"
    compiled = {"a.js": "", "a.d.ts": "", "z.ts": ""}
    assert rank(compiled) == ["z.ts", "a.d.ts", "a.js"]


def test_a_focus_finds_what_it_uses_and_what_uses_it():
    files = {
        "used.py": "",
        "focus.py": "import used\n",
        "user.py": "import focus\n",
        "other.py": "import popular\n",
        "popular.py": "",
    }
    assert set(rank(files, "focus.py")[:3]) == {"focus.py", "used.py", "user.py"}


def test_page_rank_is_a_distribution_and_does_not_depend_on_the_order_of_edges():
    graph = {"a": {"b": 1.0, "c": 3.0}, "b": {"c": 1.0}, "c": {}, "d": {"a": 1.0}}
    ranks = page_rank(graph, {})
    assert sum(ranks.values()) == pytest.approx(1.0)
    assert max(ranks, key=lambda each: ranks[each]) == "c"
    turned = {**graph, "a": {"c": 3.0, "b": 1.0}}
    assert page_rank(turned, {}) == pytest.approx(ranks)
    assert page_rank({}, {}) == {}


def test_minified_files_have_no_names():
    assert scan("function a(){}" * 1_000, "javascript") == FileNames()
