"""Outlines: tree-sitter and Python's own parser agree, and every language has its definitions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib import digest
from weakincentives.contrib.digest import outline, repo_map
from weakincentives.contrib.digest.definitions import MAX_DEFINITIONS
from weakincentives.contrib.digest.outline import OutlineParser, ParseError, outline_python
from weakincentives.contrib.digest.treesitter import outline_source
from weakincentives.extras import install_command
from weakincentives.filesystem import InMemoryFilesystem

SOURCES = sorted(Path(digest.__file__).parents[2].rglob("*.py"))[::9]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_both_parsers_find_the_same_in_a_python_file(path: Path):
    assert outline_source(path.read_bytes(), "python") == outline_python(path.read_text())


def lines(text: str, family: str) -> list[str]:
    return [
        f"{each.line} {'  ' * each.depth}{each.signature}"
        for each in outline_source(text.encode(), family)
    ]


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        (
            "python",
            "@decorated\nclass A(B):\n    async def f(  # why\n        self,\n    ) -> int:\n"
            "        def inner(): ...\n\nif X:\n    def g(x: str = 'a'): pass\n",
            ["2 class A(B)", "3   async def f(self) -> int", "9 def g(x: str = 'a')"],
        ),
        (
            "javascript",
            "export default class A { #x = 1; get y() {} }\nconst f = async (a) => 1;\n"
            "exports.g = function (b) { function hidden() {} };\nfunction* h() {}\n",
            [
                "1 class A",
                "1   get y()",
                "2 const f = async (a)",
                "3 exports.g = function (b)",
                "4 function* h()",
            ],
        ),
        (
            "typescript",
            "export interface I<T> extends J { m(): void }\ntype T = string;\nenum E { A }\n"
            "export abstract class A { abstract f(a: number): void; }\nnamespace N { }\n",
            [
                "1 interface I<T> extends J",
                "1   m(): void",
                "2 type T = string",
                "3 enum E",
                "4 abstract class A",
                "4   abstract f(a: number): void",
                "5 namespace N",
            ],
        ),
        ("tsx", "export function App(p: P) { return <a/>; }\n", ["1 function App(p: P)"]),
        (
            "go",
            "package p\n\ntype (\n\tA struct{ x int }\n)\n\nfunc (a *A) M(n int) error {}\n",
            ["4 type A struct{ x int }", "7 func (a *A) M(n int) error"],
        ),
        (
            "rust",
            "pub struct S<T> { a: T }\nimpl<T> S<T> {\n    pub fn new() -> Self { todo!() }\n}\n"
            "trait T { fn f(&self); }\nmacro_rules! m { () => {} }\n",
            [
                "1 pub struct S<T>",
                "2 impl<T> S<T>",
                "3   pub fn new() -> Self",
                "5 trait T",
                "5   fn f(&self)",
                "6 macro_rules! m { () => {} }",
            ],
        ),
        (
            "c",
            "struct s { int a; };\ntypedef struct { int b; } t;\nstatic char *f(int a)\n{\n}\n"
            "int g(void);\nint OF(int);\n#define M(x) x\n#define N 1\n",
            [
                "1 struct s",
                "2 typedef struct t",
                "3 static char *f(int a)",
                "6 int g(void)",
                "8 #define M(x) x",
            ],
        ),
        (
            "cpp",
            "namespace n {\nclass A : B {\n  A();\n  int f() const { return 1; }\n};\n}\n"
            "int n::A::g() {}\n",
            [
                "1 namespace n",
                "2   class A : B",
                "3     A()",
                "4     int f() const",
                "7 int n::A::g()",
            ],
        ),
        (
            "java",
            "class A<T> extends B {\n  A() {}\n  int f(int a) throws X {}\n  enum E { X }\n}\n",
            ["1 class A<T> extends B", "2   A()", "3   int f(int a) throws X", "4   enum E"],
        ),
        (
            "ruby",
            "module M\n  class A < B\n    def f(a)\n    end\n    def self.g; end\n  end\nend\n",
            ["1 module M", "2   class A < B", "3     def f(a)", "5     def self.g; end"],
        ),
        (
            "php",
            "<?php\ninterface I {}\nclass A extends B {\n  public function f(int $a): int {}\n}\n",
            ["2 interface I", "3 class A extends B", "4   public function f(int $a): int"],
        ),
        (
            "csharp",
            "namespace N {\n  class A : B {\n    public int P { get; set; }\n    A() {}\n  }\n}\n",
            ["1 namespace N", "2   class A : B", "3     public int P", "4     A()"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_each_language_has_its_definitions(family: str, text: str, expected: list[str]):
    assert lines(text, family) == expected


def test_a_file_in_the_middle_of_an_edit_has_an_outline():
    assert (
        lines("class A:\n    def f(self):\n        x = (\n\ndef g(): pass\n", "python")[0]
        == "1 class A"
    )
    assert outline_python("def f(:\n") == ()


def test_lines_are_right_far_down_in_a_file():
    text = "\n" * 70_000 + "def f(): pass\n"
    assert lines(text, "python") == ["70001 def f()"]


@pytest.mark.parametrize(
    "family", sorted({"python", "javascript", "tsx", "c", "cpp", "rust", "php"})
)
@pytest.mark.parametrize("piece", ["(", "{", "<", '"', "class A { ", "a.b(", "\0", "é\n", "/*"])
def test_hostile_sources_take_no_time_to_speak_of(family: str, piece: str):
    assert len(outline_source(piece.encode() * 3_000, family)) <= MAX_DEFINITIONS


def test_a_file_that_takes_too_much_to_parse_has_no_outline():
    fs = InMemoryFilesystem()
    fs.write("bad.py", ("/*" * 30 + "\n") * 700)  # tree-sitter would need minutes and gigabytes
    fs.write("good.py", "def f(): ...\n")
    found = repo_map(fs)
    assert "good.py:\n    1 def f()" in found.text
    assert sorted(found.files) == ["bad.py", "good.py"]
    assert found.warnings == ("1 file without an outline: too much time or memory to parse.",)


def test_after_a_few_such_files_no_more_are_parsed(monkeypatch: pytest.MonkeyPatch):
    # a process that ends at once
    monkeypatch.setattr(outline, "_WORKER", (sys.executable, "-c", ""))
    started = 0
    start = subprocess.Popen

    def count(*args: Any, **options: Any) -> Any:
        nonlocal started
        started += 1
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", count)
    with OutlineParser() as parser:
        for _ in range(5):
            with pytest.raises(ParseError):
                parser.parse(b"x = 1", "python")
        assert (parser.failures, started) == (5, outline.MAX_FAILURES)


def test_without_the_extra_python_has_an_outline_and_the_rest_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(outline, "_HAS_GRAMMARS", False)
    fs = InMemoryFilesystem()
    fs.write("a.py", "class A:\n    def f(self): ...\n")
    fs.write("b.js", "class B {}\n")
    fs.write("c.go", "package c\n")
    found = repo_map(fs)
    assert "    1 class A\n    2   def f(self)" in found.text
    assert "class B" not in found.text
    assert found.files == ("a.py", "b.js", "c.go")
    assert found.warnings == (
        "No outline for 2 files in Go, JavaScript: install the grammars with"
        f" {install_command('repomap')}.",
    )
