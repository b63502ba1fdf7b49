"""A lexical scan of source files: the names that a file defines, refers to and imports.

Ranking a repository needs every file but only roughly; outlines need a parser but only for the
files that are shown. So the ranking rests on this scan, which costs a tenth of a parse: comments
and strings are cut out, then regular expressions find definitions, identifiers and imports. Every
expression takes time linear in the file: no quantifier gives back what it took, or its length is
bounded.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from weakincentives.contrib.digest.definitions import MAX_NAME

MAX_NAMES = 2_000
"""Names that are kept of one file, for definitions and references each."""
MAX_IMPORTS = 500
_MINIFIED_LINE = 400  # mean length of lines above which a file is generated


@dataclass(frozen=True, slots=True)
class FileNames:
    """What one file defines, refers to and imports; each in the order of first use."""

    definitions: tuple[str, ...] = ()
    references: tuple[tuple[str, int], ...] = ()
    """Identifiers with the number of times that they occur."""
    imports: tuple[str, ...] = ()
    """Modules or files as they are written in the source."""


_NOTHING = FileNames()
_IMPORTED = re.compile(r"\b(?!as\b)(?<!\bas )([A-Za-z_]\w*)")
_HASH = re.compile(r"#[^\n]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w\w+")

_DOUBLE = r'"(?:[^"\\\n]++|\\.)*+"?'
_SINGLE = r"'(?:[^'\\\n]++|\\.)*+'?"
_BLOCK_COMMENT = r"/\*(?:[^*]++|\*(?!/))*+(?:\*/)?"
_LINE_COMMENT = r"//[^\n]*+"
_HASH_COMMENT = r"#[^\n]*+"
_CHARACTER = r"'(?:\\[^\n]|[^'\\\n])[^'\n]{0,8}'"
_BACKTICKS = r"`(?:[^`\\]++|\\.)*+`?"
_TRIPLE = r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:""")?' + r"|'''(?:[^'\\]++|\\.|'(?!''))*+(?:''')?"
_RAW_RUST = r'r#"(?:[^"]++|"(?!#))*+(?:"#)?'

_LIKE_C = r"^[A-Za-z_][\w \t*&:<>,~]{0,160}?\b([A-Za-z_]\w*)[ \t]*\([^;{}()]{0,300}"
_MODIFIERS = r"(?:public|private|protected|internal|static|final|abstract|override|virtual|async)"
_LIKE_JAVA = (
    r"\b(?:class|interface|enum|record|struct)[ \t]+([A-Za-z_]\w*)",
    rf"^[ \t]+(?:{_MODIFIERS}[ \t]+)++[\w<>\[\],.?]{{1,80}}[ \t]+([A-Za-z_]\w*)[ \t]*\(",
)
_JAVASCRIPT = (
    r"\b(?:function\*?|class|interface|enum|namespace|type)[ \t]+([A-Za-z_$][\w$]*)",
    r"^(?:export[ \t]+)?(?:declare[ \t]+)?(?:const|let|var)[ \t]+([A-Za-z_$][\w$]*)",
    r"^(?:module\.)?exports\.([A-Za-z_$][\w$]*)[ \t]*=",
)
_IMPORT_JAVASCRIPT = (
    r"\b(?:from|import|require[ \t]*\(|import[ \t]*\()[ \t]*[\"']([^\"'\n]{1,300})[\"']"
)
_IMPORT_C = r"^[ \t]*#[ \t]*include[ \t]*[\"<]([^\">\n]{1,300})[\">]"
_IMPORT_JAVA = r"^[ \t]*(?:import|use|using)[ \t]+(?:static[ \t]+)?([\w.\\]+)"


class _Scanner:
    """The regular expressions of one family of languages."""

    def __init__(self, skip: tuple[str, ...], define: tuple[str, ...], imports: str) -> None:
        self._skip = re.compile("|".join(skip), re.DOTALL)
        self._define = [re.compile(each, re.MULTILINE) for each in define]
        self._imports = re.compile(imports, re.MULTILINE) if imports else None

    def scan(self, text: str) -> FileNames:
        """Return the names in `text`."""
        imports = self._imports.findall(text) if self._imports else []
        code = self._skip.sub(" ", text)
        found = chain.from_iterable(pattern.findall(code) for pattern in self._define)
        defined = dict.fromkeys(name for name in found if name and len(name) <= MAX_NAME)
        counted = Counter(_IDENTIFIER.findall(code))
        references = [(name, times) for name, times in counted.items() if len(name) <= MAX_NAME]
        return FileNames(
            tuple(defined)[:MAX_NAMES],
            tuple(references[:MAX_NAMES]),
            tuple(dict.fromkeys(_flatten(imports)))[:MAX_IMPORTS],
        )


def scan(text: str, family: str) -> FileNames:
    """Return the names in a source file; none in one that is minified."""
    if len(text) > _MINIFIED_LINE * (text.count("\n") + 1):
        return _NOTHING
    scanner = _SCANNERS.get(family)
    return scanner.scan(text) if scanner else _NOTHING


def _flatten(imports: list[str] | list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the modules that are imported."""
    for each in imports:
        match each:
            case str():
                yield each
            case (package, names, modules):  # Python: from package import names, import modules
                dot = "" if package.endswith(".") else "."
                for name in _IMPORTED.findall(_HASH.sub("", names)):
                    yield f"{package}{dot}{name}"
                yield from (module.strip() for module in modules.split(",") if module)
            case _:
                yield from filter(None, each)


_SCANNERS: dict[str, _Scanner] = {
    "python": _Scanner(
        (_TRIPLE, _DOUBLE, _SINGLE, _HASH_COMMENT),
        (
            r"^(?:async[ \t]+)?(?:def|class)[ \t]+([A-Za-z_]\w*)",  # methods are too many
            r"^([A-Z][A-Z0-9_]{2,})[ \t]*(?::[^=\n]{1,200})?=",
        ),
        r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]{0,2000}|[^\n#]{0,500})"
        r"|import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+){0,50}))",
    ),
    "go": _Scanner(
        (_BLOCK_COMMENT, _LINE_COMMENT, _BACKTICKS, _DOUBLE, _CHARACTER),
        (
            r"^func[ \t]+(?:\([^)\n]{0,200}\)[ \t]*)?([A-Za-z_]\w*)",
            r"^(?:type|var|const)[ \t]+([A-Za-z_]\w*)",
        ),
        "",
    ),
    "rust": _Scanner(
        (_BLOCK_COMMENT, _LINE_COMMENT, _RAW_RUST, _DOUBLE, _CHARACTER),
        (
            r"\b(?:fn|struct|enum|trait|type|union|mod|static|const|macro_rules!)[ \t]+"
            r"([A-Za-z_]\w*)",
        ),
        r"^[ \t]*(?:pub(?:\([^)\n]{0,40}\))?[ \t]+)?(?:mod[ \t]+(\w+)[ \t]*;|use[ \t]+([\w:]+))",
    ),
    "ruby": _Scanner(
        (_HASH_COMMENT, _DOUBLE, _SINGLE),
        (r"^[ \t]*(?:def[ \t]+(?:self\.)?|(?:class|module)[ \t]+(?:\w+::){0,8})([A-Za-z_]\w*)",),
        r"^[ \t]*require(?:_relative)?[ \t(]+[\"']([^\"'\n]{1,300})[\"']",
    ),
    "php": _Scanner(
        (_BLOCK_COMMENT, _LINE_COMMENT, _HASH_COMMENT, _DOUBLE, _SINGLE),
        (r"\b(?:function|class|interface|trait|enum)[ \t]+&?([A-Za-z_]\w*)",),
        _IMPORT_JAVA,
    ),
    **dict.fromkeys(
        ("java", "csharp"),
        _Scanner((_BLOCK_COMMENT, _LINE_COMMENT, _DOUBLE, _CHARACTER), _LIKE_JAVA, _IMPORT_JAVA),
    ),
    **dict.fromkeys(
        ("javascript", "typescript", "tsx"),
        _Scanner(
            (_BLOCK_COMMENT, _LINE_COMMENT, _BACKTICKS, _DOUBLE, _SINGLE),
            _JAVASCRIPT,
            _IMPORT_JAVASCRIPT,
        ),
    ),
    **dict.fromkeys(
        ("c", "cpp"),
        _Scanner(
            (_BLOCK_COMMENT, _LINE_COMMENT, _DOUBLE, _CHARACTER),
            (
                _LIKE_C,
                r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)",
                r"\b(?:struct|enum|union|class|namespace)[ \t]+([A-Za-z_]\w*)[^;(){}\n]{0,120}\{",
                r"^\}[ \t]*([A-Za-z_]\w*)[ \t]*;",
                r"^typedef\b[^;{}]{0,200}?\b([A-Za-z_]\w*)[ \t]*;",
            ),
            _IMPORT_C,
        ),
    ),
}
