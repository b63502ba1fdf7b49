r"""Handwritten edits, one for each known trap.

A case says what the whole text is afterwards, byte for byte, or which words a refusal
must have. `\xNN` of text that is not UTF-8 is there as surrogates.
"""

from dataclasses import dataclass

BOM = "\ufeff"


@dataclass(frozen=True)
class Lands:
    name: str
    text: str
    edits: tuple[tuple[str, str], ...]
    content: str
    level: str = "exact"
    replace_all: bool = False
    replacements: int = 1
    noted: bool = False


@dataclass(frozen=True)
class Refused:
    name: str
    text: str
    edits: tuple[tuple[str, str], ...]
    says: tuple[str, ...]
    replace_all: bool = False


def one(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((old, new),)


_LONG = "x" * 9_000
_TWINS = "if a:\n    go()\n\nif b:\n        go()\n"
_REPEATED = "begin\n  step\nend\n" * 3

LANDS = (
    # exactly
    Lands("a word within a line", "let a = 1;\n", one("a = 1", "a = 2"), "let a = 2;\n"),
    Lands("a word at the very start", "abc\n", one("a", "z"), "zbc\n"),
    Lands("a word at the very end", "abc", one("c", "z"), "abz"),
    Lands("the whole text", "abc\n", one("abc\n", "z"), "z"),
    Lands("the whole text is removed", "abc\n", one("abc\n", ""), ""),
    Lands("signs of regular expressions", "a.*b( [x]\n", one(".*b(", "+$^"), "a+$^ [x]\n"),
    Lands(
        "references of regular expressions", "abc\n", one("b", "\\1\\g<0>\\n"), "a\\1\\g<0>\\nc\n"
    ),
    Lands(
        "a very long line", f"{_LONG}needle{_LONG}\n", one("needle", "pin"), f"{_LONG}pin{_LONG}\n"
    ),
    Lands("a very long text to find", f"a\n{_LONG}\nb\n", one(_LONG, "short"), "a\nshort\nb\n"),
    Lands("an emoji of several characters", "a 👩‍🔧 b\n", one("👩‍🔧", "🚀"), "a 🚀 b\n"),
    Lands("letters from right to left", "שלום עולם\n", one("עולם", "חבר"), "שלום חבר\n"),
    Lands("a form feed ends no line", "a\fb\nc\n", one("b\nc", "d"), "a\fd\n"),
    Lands("a line separator ends no line", "a\u2028b\nc\n", one("b", "d"), "a\u2028d\nc\n"),
    Lands("a lone carriage return", "10%\r20%\ndone\n", one("20%", "30%"), "10%\r30%\ndone\n"),
    Lands("a lone carriage return that is meant", "ab\n", one("b", "b\rc"), "ab\rc\n"),
    Lands("old mac line ends", "a\rb\rc", one("b", "d"), "a\rd\rc"),
    Lands("a null character", "a\0b\n", one("b", "c"), "a\0c\n"),
    Lands(
        "bytes that are not text, outside",
        "\udcff\udcfe ok\n",
        one("ok", "no"),
        "\udcff\udcfe no\n",
    ),
    Lands(
        "bytes that are not text, inside",
        "a \udcff b\n",
        one("\udcff b", "\udcff c"),
        "a \udcff c\n",
    ),
    Lands("blank lines only", "a\n\n\n\nb\n", one("\n\n\n\n", "\n\n"), "a\n\nb\n"),
    Lands(
        "a text that looks numbered",
        "1\tone\n2\ttwo\n",
        one("2\ttwo", "2\tdue"),
        "1\tone\n2\tdue\n",
    ),
    Lands("new line at the end, as asked", "a\nb", one("b", "b\n"), "a\nb\n"),
    Lands("a part of an indentation", "        x\n", one("  x", "  y"), "        y\n"),
    Lands("an empty file", "", one("", "hello\n"), "hello\n"),
    Lands("an empty file with a mark", BOM, one("", "hello\n"), f"{BOM}hello\n"),
    # a byte order mark
    Lands(
        "first line after a mark",
        f"{BOM}import os\n",
        one("import os", "import sys"),
        f"{BOM}import sys\n",
    ),
    Lands("mark in the edit too", f"{BOM}a\nb\n", one(f"{BOM}a", "c"), f"{BOM}c\nb\n"),
    Lands("mark in old and new", f"{BOM}a\nb\n", one(f"{BOM}a", f"{BOM}c"), f"{BOM}c\nb\n"),
    Lands("mark only in the edit", "a\nb\n", one(f"{BOM}a\n", f"{BOM}c\n"), "c\nb\n"),
    Lands(
        "mark and line ends",
        f"{BOM}a\r\nb\r\nc\r\n",
        one("a\nb\n", "x\ny\nz\n"),
        f"{BOM}x\r\ny\r\nz\r\nc\r\n",
        "line endings",
    ),
    Lands(
        "mark and indentation",
        f"{BOM}if a:\n\tb\n",
        one("  if a:\n      b\n", "  if a:\n      c\n"),
        f"{BOM}if a:\n\tc\n",
        "indentation",
    ),
    # line ends
    Lands("new lines within a line", "a;b\r\nc\r\n", one("a;", "a;\n"), "a;\r\nb\r\nc\r\n"),
    Lands("windows ends in new only", "a\nb\n", one("b", "c\r\nd"), "a\nc\nd\n"),
    Lands("no line ends anywhere", "ab", one("b", "c\r\nd"), "ac\r\nd"),
    Lands("line ends are what changes", "a\r\nb\r\n", one("a\r\nb", "a\nb"), "a\nb\r\n"),
    Lands(
        "every line keeps its own end",
        "a\r\nb\nc\r\nd\n",
        one("a\nb\nc\nd\n", "a\nb\nC\nd\n"),
        "a\r\nb\nC\r\nd\n",
        "line endings",
    ),
    Lands(
        "a new line ends as the one before it",
        "a\r\nb\nc\n",
        one("a\nb\n", "a\nnew\nb\n"),
        "a\r\nnew\r\nb\nc\n",
        "line endings",
    ),
    Lands("a block is removed", "a\r\nb\r\nc\r\n", one("b\n", ""), "a\r\nc\r\n", "line endings"),
    Lands(
        "the end of the last line is missing",
        "a\nb",
        one("a\nb\n", "a\nc\n"),
        "a\nc",
        "line endings",
    ),
    Lands("the last line is removed", "a\nb", one("b\n", ""), "a\n", "line endings"),
    Lands(
        "lines are added at a missing end",
        "a\r\nb",
        one("b\n", "b\nc\n"),
        "a\r\nb\r\nc",
        "line endings",
    ),
    Lands("two carriage returns", "a\r\r\nb\n", one("b", "c"), "a\r\r\nc\n"),
    # blanks at the ends of lines
    Lands(
        "kept lines keep their blanks",
        "a  \nb\t\nc\n",
        one("a\nb\nc\n", "a\nB\nc\n"),
        "a  \nB\nc\n",
        "trailing space",
    ),
    Lands(
        "a line of blanks only",
        "def f():\n    a\n    \n    b\n",
        one("    a\n\n    b\n", "    a\n\n    c\n"),
        "def f():\n    a\n    \n    c\n",
        "trailing space",
    ),
    Lands(
        "blanks after the last line stay",
        "a  \nb  \nc\n",
        one("a\nb", "a\nd"),
        "a  \nd  \nc\n",
        "trailing space",
    ),
    Lands(
        "blanks and windows ends",
        "a \r\nb\r\n",
        one("a\nb\n", "a\nc\n"),
        "a \r\nc\r\n",
        "trailing space",
    ),
    # indentation
    Lands(
        "a recipe with spaces",
        "all:\n\techo a\n\techo b\n",
        one("all:\n        echo a\n", "all:\n        echo a\n        echo c\n"),
        "all:\n\techo a\n\techo c\n\techo b\n",
        "indentation",
    ),
    Lands(
        "deeper in a file with tabs",
        "func f() {\n\tgo()\n}\n",
        one("    go()\n}\n", "    if ok {\n        go()\n    }\n}\n"),
        "func f() {\n\tif ok {\n\t\tgo()\n\t}\n}\n",
        "indentation",
    ),
    Lands(
        "a block that is no multiple of its level deep in the edit of tabs",
        "start()\nif x {\n\tgo()\n}\n",
        one("  start()\n", "  start()\n  if y {\n      stop()\n  }\n"),
        "start()\nif y {\n\tstop()\n}\nif x {\n\tgo()\n}\n",
        "indentation",
    ),
    Lands(
        "no indentation in the edit of tabs",
        "func f() {\n\tfor {\n\t\tgo()\n\t}\n}\n",
        one("for {\n    go()\n}\n", "for {\n    if ok {\n        go()\n    }\n}\n"),
        "func f() {\n\tfor {\n\t\tif ok {\n\t\t\tgo()\n\t\t}\n\t}\n}\n",
        "indentation",
    ),
    Lands(
        "aligned with spaces after tabs",
        "\tcall(a,\n\t     b)\n",
        one("    call(a,\n         b)\n", "    call(a,\n         c)\n"),
        "\tcall(a,\n\t     c)\n",
        "indentation",
    ),
    Lands(
        "less indentation than in the edit",
        "a\n  b\n",
        one("      a\n        b\n", "      a\n        b\n        c\n"),
        "a\n  b\n  c\n",
        "indentation",
    ),
    Lands(
        "the first line is stripped",
        "class A:\n    def f(self):  \n        return 1\n",
        one("def f(self):\n        return 1\n", "def f(self):\n        return 2\n"),
        "class A:\n    def f(self):  \n        return 2\n",
        "indentation",
    ),
    Lands(
        "a list in yaml",
        "env:\n    - name: a\n      value: 1\n",
        one("- name: a\n  value: 1\n", "- name: a\n  value: 2\n- name: b\n  value: 3\n"),
        "env:\n    - name: a\n      value: 2\n    - name: b\n      value: 3\n",
        "indentation",
    ),
    Lands(
        "blank lines do not count",
        "\ta\n\n\tb\n",
        one("    a\n\n    b\n", "    a\n\n    c\n"),
        "\ta\n\n\tc\n",
        "indentation",
    ),
    # which of two
    Lands(
        "the exact one of two",
        _TWINS,
        one("\n        go()\n", "\n        stop()\n"),
        "if a:\n    go()\n\nif b:\n        stop()\n",
    ),
    Lands(
        "without blanks at the end", "a\nb  \n--\na\nb\n", one("a\nb\n", "c\n"), "a\nb  \n--\nc\n"
    ),
    Lands(
        "the one with the same indentation",
        "  a \n  b\n--\n    a\n    b\n",
        one("  a\n  b\n", "  a\n  c\n"),
        "  a \n  c\n--\n    a\n    b\n",
        "trailing space",
    ),
    Lands(
        "look-alikes with the same indentation",
        "  “a”\n  b\n--\n    “a”\n    b\n",
        one('  "a"\n  b\n', '  "a"\n  c\n'),
        "  “a”\n  c\n--\n    “a”\n    b\n",
        "unicode",
    ),
    # look-alikes
    Lands(
        "quotes within a line",
        "say(“hi”, \u2018x\u2019); // “a”\n",
        one("say(\"hi\", 'x')", "say(1)"),
        "say(1); // “a”\n",
        "unicode",
    ),
    Lands(
        "an ellipsis",
        "wait… then go\n",
        one("wait... then", "wait, then"),
        "wait, then go\n",
        "unicode",
    ),
    Lands(
        "an ellipsis in the edit",
        "wait... then go\n",
        one("wait… then", "wait, then"),
        "wait, then go\n",
        "unicode",
    ),
    Lands(
        "letters composed otherwise",
        "cafe\u0301 noir\n",
        one("caf\u00e9", "tea"),
        "tea noir\n",
        "unicode",
    ),
    Lands("a hard space", "a\u00a0= 1\n", one("a = 1", "a = 2"), "a = 2\n", "unicode"),
    Lands(
        "indented with hard spaces",
        "x:\n\u00a0\u00a0a\n\u00a0\u00a0b\n",
        one("  a\n  b\n", "  a\n  c\n"),
        "x:\n\u00a0\u00a0a\n  c\n",
        "unicode",
    ),
    Lands(
        "nobody can see a zero width space",
        "na\u200bme = 1\n",
        one("name = 1", "name = 2"),
        "name = 2\n",
        "unicode",
    ),
    Lands(
        "a dash in prose",
        "pages 3\u20135, see below\n",
        one("3-5", "3-6"),
        "pages 3-6, see below\n",
        "unicode",
    ),
    Lands(
        "kept lines keep their quotes",
        "“a”\nb\n\u2018c\u2019\n",
        one("\"a\"\nb\n'c'\n", "\"a\"\nB\n'c'\n"),
        "“a”\nB\n\u2018c\u2019\n",
        "unicode",
    ),
    Lands(
        "quotes, tabs and windows ends",
        "\t“a”\r\n\tb\r\n",
        one('    "a"\n    b\n', '    "a"\n    c\n'),
        "\t“a”\r\n\tc\r\n",
        "unicode",
    ),
    # numbers of a listing
    Lands("a numbered line", "a\nb\n", one("     2\tb", "c"), "a\nc\n", noted=True),
    Lands(
        "numbered lines",
        "a\n\nb\n",
        one("1\ta\n2\t\n3\tb\n", "1\tc\n2\t\n3\tb\n"),
        "c\n\nb\n",
        noted=True,
    ),
    Lands(
        "the number of an empty line",
        "a\n\nb\n",
        one("  1\ta\n  2\n  3\tb", "a\n\nc"),
        "a\n\nc\n",
        noted=True,
    ),
    Lands(
        "numbers of indented lines",
        "x:\n\ta\n\tb\n",
        one("  2→\ta\n  3→\tb", "\tc"),
        "x:\n\tc\n",
        noted=True,
    ),
    # a shift and another width both explain lines of one level
    Lands(
        "four deeper in a file with levels of two",
        "def f():\n  if a:\n    call(b)\n",
        one("        call(b)", "        call(\n            b, c)"),
        "def f():\n  if a:\n    call(\n        b, c)\n",
        level="indentation",
    ),
    Lands(
        "two deeper in a file with levels of two",
        "if (a) {\n  x = b\n}\n",
        one("    x = b\n", "    x = b +\n        c\n"),
        "if (a) {\n  x = b +\n      c\n}\n",
        level="indentation",
    ),
    Lands(
        "eight deeper in a file with levels of two",
        "a:\n  b:\n    c:\n      d:\n        e\n",
        one("                e\n", "                e\n                    f\n"),
        "a:\n  b:\n    c:\n      d:\n        e\n            f\n",
        level="indentation",
    ),
    Lands(
        "four deeper where blocks of four are usual",
        "def f():\n  if a:\n    b()\n  x = {\n      1: 2,\n  }\n  y = {\n      1: 2,\n  }\n",
        one("        b()", "        z = {\n            3: 4,\n        }"),
        "def f():\n  if a:\n    z = {\n        3: 4,\n    }\n"
        "  x = {\n      1: 2,\n  }\n  y = {\n      1: 2,\n  }\n",
        level="indentation",
    ),
    Lands(
        "levels of four in a file with levels of two",
        "def f():\n  if a:\n    b()\n",
        one("        b()", "        if c:\n            b()"),
        "def f():\n  if a:\n    if c:\n      b()\n",
        level="indentation",
    ),
    # placeholders that are none
    Lands(
        "an empty body", "def f():\n    pass\n", one("    pass", "    ..."), "def f():\n    ...\n"
    ),
    Lands(
        "dots in a string",
        "a\n",
        one("a", 'print("... existing code ...")'),
        'print("... existing code ...")\n',
    ),
    Lands(
        "a comment about the rest",
        "a\n",
        one("a", "# the rest of the arguments is passed on\na"),
        "# the rest of the arguments is passed on\na\n",
    ),
    Lands("spread syntax", "f(a)\n", one("f(a)", "f(\n  ...rest,\n)"), "f(\n  ...rest,\n)\n"),
    Lands(
        "a placeholder that was there",
        "# ... existing code ...\na\n",
        one("# ... existing code ...\na", "# ... existing code ...\nb"),
        "# ... existing code ...\nb\n",
    ),
    Lands(
        "a placeholder in an empty file",
        "",
        one("", "import os\n# ... existing code ...\n"),
        "import os\n# ... existing code ...\n",
    ),
    Lands(
        "a placeholder between lines that stay",
        "a\nb\n",
        one("a\nb", "a\n# existing code omitted\nb"),
        "a\n# existing code omitted\nb\n",
    ),
    Lands(
        "a placeholder beside a line that changes a little",
        "total = first + second\n",
        one("total = first + second", "# ... existing code ...\ntotal = first + third"),
        "# ... existing code ...\ntotal = first + third\n",
    ),
    Lands(
        "a remark that was misspelt",
        "# the rest of teh code\n",
        one("# the rest of teh code", "# the rest of the code"),
        "# the rest of the code\n",
    ),
    Lands(
        "a remark in place of nothing",
        "def f():\n    pass\n",
        one("    pass", "    # existing code omitted\n    ..."),
        "def f():\n    # existing code omitted\n    ...\n",
    ),
    Lands(
        "a stub in place of a body",
        'def f():\n    """Say."""\n    a = 1\n    return a\n',
        one("    a = 1\n    return a", "    ..."),
        'def f():\n    """Say."""\n    ...\n',
    ),
    Lands(
        "an ellipsis in what a session prints",
        ">>> f()\none\ntwo words\nthree\n",
        one(">>> f()\none\ntwo words\nthree", ">>> f()\none\n...\nthree"),
        ">>> f()\none\n...\nthree\n",
    ),
    Lands(
        "a remark that is made shorter",
        "# the first\n# second thing\n# a third one\nx = 1\n",
        one("# the first\n# second thing\n# a third one", "# the first\n# ..."),
        "# the first\n# ...\nx = 1\n",
    ),
    Lands(
        "a session",
        ">>> f(1)\n2\n",
        one(">>> f(1)\n2", ">>> for each in rest:\n... # ... rest of the code ...\n...     body"),
        ">>> for each in rest:\n... # ... rest of the code ...\n...     body\n",
    ),
    # several
    Lands(
        "every place", "a b a c a\n", one("a", "z"), "z b z c z\n", replace_all=True, replacements=3
    ),
    Lands(
        "every place that is left",
        "aaaaa\n",
        one("aa", "b"),
        "bba\n",
        replace_all=True,
        replacements=2,
    ),
    Lands(
        "the new text holds the old one",
        "a a\n",
        one("a", "aa"),
        "aa aa\n",
        replace_all=True,
        replacements=2,
    ),
    Lands(
        "every place, with windows ends",
        "a\r\nb\r\n--\r\na\r\nb\r\n",
        one("a\nb\n", "c\n"),
        "c\r\n--\r\nc\r\n",
        "line endings",
        replace_all=True,
        replacements=2,
    ),
    Lands(
        "every place, each with its indentation",
        "  a\n  b\n--\n      a\n      b\n",
        one("a\nb\n", "a\n  c\nb\n"),
        "  a\n    c\n  b\n--\n      a\n        c\n      b\n",
        "indentation",
        replace_all=True,
        replacements=2,
    ),
    Lands("one after the other", "a\n", (("a", "b"), ("b", "c")), "c\n", replacements=2),
    Lands(
        "the worst level counts",
        "a\r\n\tb\r\n\tc\r\n",
        (("a", "x"), ("  b\n  c", "  b\n  d")),
        "x\r\n\tb\r\n\td\r\n",
        "indentation",
        replacements=2,
    ),
    Lands(
        "an edit makes another one clear",
        "a a\n",
        (("a a", "b a"), ("a", "c")),
        "b c\n",
        replacements=2,
    ),
)

REFUSALS = (
    # several places
    Refused(
        "two places",
        "a\nb\na\n",
        one("a\n", "c\n"),
        ("2 times", "lines 1 and 3", "replace all occurrences"),
    ),
    Refused("places that overlap", "aaa\n", one("aa", "b"), ("2 times", "line 1")),
    Refused(
        "blocks that overlap",
        "x\ny\nx\ny\nx\n",
        one("x\ny\nx\n", "z\n"),
        ("2 times", "lines 1 and 3"),
    ),
    Refused(
        "three blocks", _REPEATED, one("begin\n  step\nend\n", ""), ("3 times", "lines 1, 4 and 7")
    ),
    Refused(
        "two with blanks at the end",
        "a \nb\n--\na\t\nb\n",
        one("a\nb\n", "c\n"),
        ("2 times", "lines 1 and 4", "trailing whitespace"),
    ),
    Refused(
        "two with other indentations",
        "  a\n  b\n--\n    a\n    b\n",
        one("a\nb\n", "c\n"),
        ("2 times", "lines 1 and 4", "indentation"),
    ),
    Refused(
        "two with quotes", "“a”\n”a“\n", one('"a"', "b"), ("2 times", "lines 1 and 2", "look-alike")
    ),
    Refused("very many places", "a\n" * 5_000, one("a", "b"), ("more than 100 times",)),
    Refused(
        "two with windows ends",
        "a\r\nb\r\na\r\nb\r\n",
        one("a\nb\n", "c\n"),
        ("2 times", "lines 1 and 3", "line endings"),
    ),
    Refused(
        "tabs of two widths",
        "\tx = 1\n--\n\t\tx = 1\n",
        one("        x = 1\n", "y\n"),
        ("2 times", "lines 1 and 3"),
    ),
    # nowhere
    Refused(
        "another word",
        "alpha = compute(1)\nbeta = 2\n",
        one("alpha = compute(2)", "x"),
        ("not found", "line 1", "compute(1)"),
    ),
    Refused(
        "nothing like it",
        "a\nb\n",
        one("something completely different", "x"),
        ("not found", "Nothing in the file resembles it"),
    ),
    Refused("an empty file", "", one("a", "b"), ("not found",)),
    Refused(
        "capitals",
        "Hello World\nnext line\n",
        one("hello world\nnext line", "x"),
        ("not found", "case"),
    ),
    Refused(
        "blanks within a line",
        "a  =  1\n",
        one("a = 1", "a = 2"),
        ("not found", "spaces within lines"),
    ),
    Refused(
        "blank lines more or less",
        "a = 1\n\nb = 2\n",
        one("a = 1\n\n\nb = 2", "x"),
        ("not found", "lines 1 to 3", "lank lines"),
    ),
    Refused(
        "a shorter word at the end of a line", "x = 10\n", one("x = 1  ", "x = 2"), ("not found",)
    ),
    Refused("a shorter last line", "a \nx = 10\n", one("a\nx = 1", "b"), ("not found", "x = 10")),
    Refused("a longer first line", "max = 1 \ny\n", one("x = 1\ny", "b"), ("not found",)),
    Refused("only blanks", "a\nb\n", one("   \n", "c\n"), ("not found",)),
    Refused("only a line end", "a", one("\n", "c"), ("not found",)),
    Refused(
        "empty lines around it",
        "a = 1\nb = 2\n",
        one("\n\nb = 2\n\n", "\n\nc\n\n"),
        ("not found", "lank lines"),
    ),
    Refused("a bracket in another place", "f {\n  }\n", one("      }\n", "x\n"), ("not found",)),
    Refused(
        "another structure",
        "if a:\n    b()\n    c()\n",
        one("if a:\n    b()\nc()\n", "x\n"),
        ("not found", "indentation"),
    ),
    Refused(
        "structure is lost",
        "if a:\n    b()\nc()\n",
        one("if a:\nb()\nc()\n", "x\n"),
        ("not found", "indentation"),
    ),
    Refused(
        "structure is made up",
        "a:\nb:\nc:\n",
        one("a:\n  b:\n    c:\n", "x\n"),
        ("not found", "indentation"),
    ),
    Refused(
        "no place for the new indentation",
        "x\n    a\n    b\n",
        one("      a\n      b\n", "      a\n c\n"),
        ("a different indentation", "' c'"),
    ),
    Refused(
        "escape sequences",
        'a = 1\nprint("x")\n',
        one('a = 1\\nprint(\\"x\\")', "b"),
        ("not found", "escape"),
    ),
    Refused(
        "entities",
        "if (a < b && c)\n",
        one("if (a &lt; b &amp;&amp; c)", "x"),
        ("not found", "HTML"),
    ),
    Refused(
        "it was done before",
        "value = new_name(1)\n",
        one("value = old_name(1)", "value = new_name(1)"),
        ("not found", "already", "line 1"),
    ),
    Refused(
        "the middle is left out",
        "def f():\n    a = 1\n    b = 2\n    return a\n",
        one("def f():\n    ...\n    return a", "x"),
        ("not found", "ellipsis"),
    ),
    Refused(
        "a snippet of a very long line",
        f"{_LONG} const total = sum(items); {_LONG}",
        one("const total = add(items);", "x"),
        ("not found", "line 1", "sum(items)"),
    ),
    # not clear
    Refused("nothing to find", "abc\n", one("", "x"), ("empty", "4 characters")),
    Refused("nothing to find but a mark", "abc\n", one(BOM, "x"), ("empty",)),
    Refused("nothing to change", "abc\n", one("abc", "abc"), ("the same",)),
    Refused(
        "nothing to change but line ends", "a\nb\n", one("a\r\nb", "a\nb"), ("changes nothing",)
    ),
    Refused(
        "it is so already",
        "    a\n    b\n",
        one("  a\n  b\n", "    a\n    b\n"),
        ("not found", "already"),
    ),
    Refused("only a mark goes", f"{BOM}a\n", one(f"{BOM}a", "a"), ("changes nothing",)),
    Refused(
        "a placeholder",
        "def f():\n    a\n    b\n",
        one("    a\n    b", "    c\n    # ... rest unchanged ..."),
        ("placeholder", "rest unchanged"),
    ),
    Refused(
        "a placeholder among as many new lines",
        "def f():\n    first()\n    second()\n",
        one("    first()\n    second()", "    a = 1\n    b = 2\n    # ... existing code ..."),
        ("placeholder", "existing code"),
    ),
    Refused(
        "an ellipsis between statements",
        "def f():\n    first()\n    second()\n    return third\n",
        one("    first()\n    second()\n    return third", "    uno()\n    ...\n    return third"),
        ("placeholder", "..."),
    ),
    Refused(
        "an ellipsis in a comment",
        "def f():\n    first()\n    second()\n    return third\n",
        one(
            "    first()\n    second()\n    return third", "    uno()\n    # ...\n    return third"
        ),
        ("placeholder", "# ..."),
    ),
    Refused(
        "an ellipsis with a remark",
        "def f():\n    first()\n    second()\n    return third\n",
        one(
            "    first()\n    second()\n    return third",
            "    uno()\n    ...  # rest unchanged\n    return third",
        ),
        ("placeholder", "...  # rest unchanged"),
    ),
    Refused(
        "a remark that nothing changes",
        "def f():\n    first()\n    second()\n    return third\n",
        one(
            "    first()\n    second()\n    return third",
            "    uno()\n    # unchanged code here\n    return third",
        ),
        ("placeholder", "# unchanged code here"),
    ),
    Refused(
        "a placeholder and an empty line that stays",
        "a\n\nb = compute(1)\nc\n",
        one("a\n\nb = compute(1)\nc", "a\n# ... rest unchanged ...\n\n"),
        ("placeholder",),
    ),
    Refused(
        "numbers on some new lines",
        "a\nb\n",
        one("  1\ta\n  2\tb", "  1\ta\nc"),
        ("numbers", "'c'"),
    ),
    Refused(
        "numbers on the new lines only",
        "a\nb\n",
        one("a\nb", "     1\tc\n     2\td"),
        ("line number", "'     1\\tc'"),
    ),
    Refused("numbers that do not match", "a\nb\n", one("  1\tx\n  2\ty", "z"), ("not found",)),
    Refused("numbers that do not go up", "a\nb\n", one("  1\ta\n  7\tb", "z"), ("not found",)),
    Refused("no edit", "a\n", (), ("No edit",)),
    # all or nothing
    Refused(
        "the second is wrong",
        "a\nb\n",
        (("a", "x"), ("zzz", "y")),
        ("Edit 2 of 2", "not found", "None of the 2"),
    ),
    Refused(
        "the first takes what the second needs",
        "a\nb\n",
        (("a\n", ""), ("a", "y")),
        ("Edit 2 of 2", "not found"),
    ),
    Refused(
        "every place, but there is none", "a\n", one("b", "c"), ("not found",), replace_all=True
    ),
)
