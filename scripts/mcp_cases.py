"""Calls that the reference filesystem server and `wink mcp` both get, and where they differ.

Every call works in a directory of its own with the files below. A call without `why` must have
the same effect and the same result in both; `why` is the sentence for the table about a call
where ours does something else on purpose.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def _pixel() -> bytes:
    """Return a PNG of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0\xff\0\0")
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


_SOUND = (
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0data\0\0\0\0"
)
FILES: Mapping[str, bytes] = {
    "plain.txt": b"alpha\nbeta\ngamma\n",
    "crlf.txt": b"one\r\ntwo\r\nthree\r\n",
    "mixed.txt": b"one\r\ntwo\nthree\r\n",
    "bom.txt": b"\xef\xbb\xbfone\ntwo\n",
    "noend.txt": b"one\ntwo",
    "empty.txt": b"",
    "indent.py": b"class A:\n    def f(self):\n        return 1\n",
    "twice.txt": b"x = 1\ny = 2\nx = 1\n",
    "latin.txt": b"caf\xe9\nth\xe9\n",
    "nul.txt": b"a\0b\n",
    "binary.bin": bytes(range(256)),
    "pixel.png": _pixel(),
    "sound.wav": _SOUND,
    "caf\u00e9.txt": b"coffee\n",
    "two words.txt": b"two\n",
    "\u65e5\u672c.txt": b"japan\n",
    ".hidden": b"hidden\n",
    ".gitignore": b"ignored.txt\n",
    "ignored.txt": b"ignored\n",
    "script.sh": b"#!/bin/sh\necho hi\n",
    "sub/deep/inner.txt": b"inner\n",
    "sub/other.md": b"# Other\n",
    "sub/README.MD": b"# Read me\n",
}
LINKS: Mapping[str, str] = {
    "inside": "plain.txt",
    "linked": "sub",
    "dangling": "nowhere",
    "outside": "../../secret.txt",
    "outside-dir": "../../root-evil",
}
"""Links and their targets; the directory of a call is two levels below `secret.txt`."""

LONG = b"".join(b"line %d\n" % number for number in range(1, 5_001))
_LINE_END = "The last line keeps its line end; the reference server cuts it off."
_TAIL = (
    "Returns the last lines of the file. The reference server counts the empty text after the last"
    " newline as a line, and returns one less."
)
_NO_LINKS = "Links are not followed; the error names the target to use instead."
_PAGED = (
    "At most 2,000 lines per call, and the result says where to go on. The reference server sends"
    " the whole file to the model."
)
_CRLF = "Every line end stays as it is. The reference server writes all of them as LF."
_REFUSED = "Refused, because nothing would change. The reference server reports success."
HUGE = b"".join(b"line %08d of a huge file\n" % number for number in range(1, 280_001))


@dataclass(frozen=True, slots=True)
class Case:
    """One call.

    Args:
        topic: The heading in the table.
        title: What is special about it.
        tool: The tool.
        arguments: Its arguments; in a text, `HERE` is the directory of the call and `ROOT` the
            directory that the servers serve.
        why: What ours does instead, and the reason; empty where both do the same.
        files: Files beside the common ones.
    """

    topic: str
    title: str
    tool: str
    arguments: Mapping[str, Any]
    why: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def _read(title: str, path: str, why: str = "", **more: Any) -> Case:
    files: dict[str, bytes] = more.pop("files", {})
    given = {"path": f"HERE/{path}", **more}
    return Case("Reading", title, "read_text_file", given, why, files)


def _edit(title: str, path: str, *edits: tuple[str, str], why: str = "", **more: Any) -> Case:
    listed = [{"oldText": old, "newText": new} for old, new in edits]
    given = {"path": f"HERE/{path}", "edits": listed, **more}
    return Case("Editing", title, "edit_file", given, why)


def _write(title: str, path: str, content: str, why: str = "") -> Case:
    return Case("Writing", title, "write_file", {"path": f"HERE/{path}", "content": content}, why)


def _move(title: str, source: str, destination: str, why: str = "") -> Case:
    given = {"source": f"HERE/{source}", "destination": f"HERE/{destination}"}
    return Case("Directories and moves", title, "move_file", given, why)


def _path(topic: str, title: str, tool: str, path: str, why: str = "", **more: Any) -> Case:
    return Case(topic, title, tool, {"path": path, **more}, why)


def _search(title: str, pattern: str, why: str = "", **more: Any) -> Case:
    given = {"path": "HERE", "pattern": pattern, **more}
    return Case("Finding", title, "search_files", given, why)


READING = (
    _read("a text file", "plain.txt"),
    _read("CRLF line ends", "crlf.txt"),
    _read("mixed line ends", "mixed.txt"),
    _read("a byte order mark", "bom.txt"),
    _read("no newline at the end", "noend.txt"),
    _read("an empty file", "empty.txt"),
    _read("`head`", "plain.txt", _LINE_END, head=2),
    _read("`head` beyond the end", "plain.txt", _LINE_END, head=99),
    _read("`head`, CRLF", "crlf.txt", _LINE_END, head=2),
    _read("`tail`", "plain.txt", _TAIL, tail=2),
    _read("`tail`, no newline at the end", "noend.txt", tail=1),
    _read("`tail` beyond the end", "plain.txt", tail=99),
    _read("`tail`, CRLF", "crlf.txt", _TAIL, tail=2),
    _read("`head` and `tail`", "plain.txt", head=1, tail=1),
    _read("`head` of 0", "plain.txt", head=0),
    _read("a missing file", "missing.txt"),
    _read("a directory", "sub"),
    _read("Latin-1", "latin.txt"),
    _read("a NUL in a text", "nul.txt", "Shown as a hex dump."),
    _read(
        "a binary file",
        "binary.bin",
        "Shown as a hex dump. The reference server sends broken text.",
    ),
    _read("a non-ASCII name", "caf\u00e9.txt"),
    _read(
        "the same name, decomposed",
        "cafe\u0301.txt",
        "The error suggests the file that has the name in its other form.",
    ),
    _read("a space in a name", "two words.txt"),
    _read("Japanese", "\u65e5\u672c.txt"),
    _read("a name in another case", "PLAIN.TXT"),
    _read("an ignored file", "ignored.txt"),
    _read("a link inside", "inside", _NO_LINKS),
    _read("a directory link inside", "linked/other.md", _NO_LINKS),
    _read("5,000 lines", "long.txt", _PAGED, files={"long.txt": LONG}),
    _read("8 MB", "huge.txt", _PAGED, files={"huge.txt": HUGE}),
    _read("8 MB, `head`", "huge.txt", _LINE_END, head=3, files={"huge.txt": HUGE}),
    _read("8 MB, `tail`", "huge.txt", _TAIL, tail=3, files={"huge.txt": HUGE}),
    _read("an argument of the wrong type", "plain.txt", head="two"),
    _read(
        "an unknown argument",
        "plain.txt",
        "The error names the arguments that there are. The reference server ignores it.",
        mode="r",
    ),
    Case("Reading", "no path", "read_text_file", {}),
    _path("Reading", "the deprecated name", "read_file", "HERE/plain.txt"),
    Case(
        "Reading",
        "three files, one of them missing",
        "read_multiple_files",
        {"paths": ["HERE/plain.txt", "HERE/missing.txt", "HERE/sub/other.md"]},
    ),
    Case("Reading", "no files", "read_multiple_files", {"paths": []}),
    _path("Reading", "a PNG", "read_media_file", "HERE/pixel.png"),
    _path("Reading", "a sound", "read_media_file", "HERE/sound.wav"),
    _path("Reading", "any other file", "read_media_file", "HERE/binary.bin"),
    _path("Reading", "media that is missing", "read_media_file", "HERE/missing.png"),
)
_LINK_INFO = "Says that it is a link and where it points, and nothing about the target."
ESCAPES = tuple(
    _path("Escapes", title, tool, path, why, **more)
    for title, tool, path, why, more in (
        ("`..`", "read_text_file", "HERE/../../secret.txt", "", {}),
        ("an absolute path", "read_text_file", "/etc/passwd", "", {}),
        ("a sibling with the same prefix", "read_text_file", "ROOT-evil/secret.txt", "", {}),
        ("a link to a file outside", "read_text_file", "HERE/outside", "", {}),
        ("a link to a directory outside", "read_text_file", "HERE/outside-dir/secret.txt", "", {}),
        ("a NUL in the path", "read_text_file", "HERE/plain.txt\0.png", "", {}),
        ("the home directory", "read_text_file", "~/.profile", "", {}),
        ("a Windows path", "write_file", "C:\\x.txt", "", {"content": "x"}),
        ("writing with `..`", "write_file", "HERE/../../new.txt", "", {"content": "x"}),
        ("writing through a link", "write_file", "HERE/outside", "", {"content": "x"}),
        ("writing below a link", "write_file", "HERE/outside-dir/n.txt", "", {"content": "x"}),
        ("writing beside the root", "write_file", "ROOT-evil/new.txt", "", {"content": "x"}),
        ("writing through a link to nothing", "write_file", "HERE/dangling", "", {"content": "x"}),
        ("creating a directory", "create_directory", "HERE/outside-dir/new", "", {}),
        ("listing", "list_directory", "HERE/outside-dir", "", {}),
        ("the tree of a link", "directory_tree", "HERE/outside-dir", "", {}),
        ("searching", "search_files", "HERE/outside-dir", "", {"pattern": "**"}),
        ("information", "get_file_info", "HERE/outside", _LINK_INFO, {}),
        ("media", "read_media_file", "HERE/outside", "", {}),
    )
)
_PARENTS = "Missing directories are created. The reference server fails."
WRITING = (
    _write("a new file", "new.txt", "new\n"),
    _write("over an existing file", "plain.txt", "other\n"),
    _write("permissions of a script", "script.sh", "#!/bin/sh\necho bye\n"),
    _write("CRLF as given", "new.txt", "a\r\nb\r\n"),
    _write("over a CRLF file", "crlf.txt", "one\ntwo\n"),
    _write("nothing", "plain.txt", ""),
    _write("non-ASCII text", "new.txt", "caf\u00e9 \u65e5\u672c \U0001f600\n"),
    _write("a non-ASCII name", "th\u00e9.txt", "tea\n"),
    _write("an ignored file", "ignored.txt", "changed\n"),
    _write("a hidden file", ".new", "x\n"),
    _write("in a missing directory", "a/b/new.txt", "x\n", _PARENTS),
    _write("to a directory", "sub", "x\n"),
    _write("through a link inside", "inside", "x\n", _NO_LINKS),
    _write("a name of 300 characters", "n" * 300, "x\n"),
    _write("100,000 characters", "new.txt", "0123456789" * 10_000),
)
EDITING = (
    _edit("one place", "plain.txt", ("beta", "BETA")),
    _edit("two edits", "plain.txt", ("alpha", "ALPHA"), ("gamma", "GAMMA")),
    _edit("an edit of an edit", "plain.txt", ("alpha", "first"), ("first", "second")),
    _edit("no match", "plain.txt", ("delta", "DELTA")),
    _edit("the second does not match", "plain.txt", ("alpha", "ALPHA"), ("delta", "DELTA")),
    _edit(
        "two places match",
        "twice.txt",
        ("x = 1", "x = 9"),
        why="Refused with the lines of both. The reference server changes the first one.",
    ),
    _edit("CRLF line ends", "crlf.txt", ("two", "TWO"), why=_CRLF),
    _edit("CRLF, several lines", "crlf.txt", ("one\ntwo", "1\n2"), why=_CRLF),
    _edit("mixed line ends", "mixed.txt", ("two", "TWO"), why=_CRLF),
    _edit("a byte order mark", "bom.txt", ("one", "ONE")),
    _edit("no newline at the end", "noend.txt", ("two", "TWO")),
    _edit(
        "wrong indentation",
        "indent.py",
        ("def f(self):\nreturn 1", "def g(self):\nreturn 2"),
        why="Refused with the closest lines. The reference server writes `return 2` at the start of"
        " the line, which is no Python.",
    ),
    _edit("removing a line", "plain.txt", ("beta\n", "")),
    _edit("`$&` in the new text", "plain.txt", ("beta", "$& $1 \\1")),
    _edit("a fence in the text", "plain.txt", ("beta", "```\nbeta\n```")),
    _edit("`dryRun`", "plain.txt", ("beta", "BETA"), dryRun=True),
    _edit("`dryRun` without a match", "plain.txt", ("delta", "x"), dryRun=True),
    _edit("no edits", "plain.txt", why=_REFUSED),
    _edit(
        "an empty old text",
        "plain.txt",
        ("", "x"),
        why="Refused, because it says nothing about the place. The reference server inserts the new"
        " text at the start.",
    ),
    _edit("old and new the same", "plain.txt", ("beta", "beta"), why=_REFUSED),
    _edit("permissions of a script", "script.sh", ("hi", "bye")),
    _edit("a missing file", "missing.txt", ("a", "b")),
    _edit(
        "Latin-1",
        "latin.txt",
        ("th", "T"),
        why="The other bytes stay. The reference server replaces every `\u00e9` by U+FFFD.",
    ),
    _edit(
        "a binary file",
        "binary.bin",
        ("ABC", "abc"),
        why="Refused. The reference server destroys the file.",
    ),
    _edit("through a link inside", "inside", ("beta", "BETA"), why=_NO_LINKS),
)
DIRECTORIES = (
    _path("Directories and moves", "a new directory", "create_directory", "HERE/a/b/c"),
    _path("Directories and moves", "a directory that exists", "create_directory", "HERE/sub"),
    _path("Directories and moves", "a file in its place", "create_directory", "HERE/plain.txt"),
    _move("renaming a file", "plain.txt", "renamed.txt"),
    _move("over an existing file", "plain.txt", "noend.txt"),
    _move("onto itself", "plain.txt", "plain.txt"),
    _move("into a missing directory", "plain.txt", "a/b/plain.txt", _PARENTS),
    _move("a directory", "sub", "moved"),
    _move("a directory into itself", "sub", "sub/deep/sub"),
    _move("a missing file", "missing.txt", "new.txt"),
    _move("out of the root", "plain.txt", "../../moved.txt"),
)
_BY_SIZE = (
    "Links and directories have no size here. The reference server sorts a link by the size of its"
    " target, even outside the root."
)
_AT_ANY_DEPTH = "A pattern without `/` leaves names out at any depth, not only at the top."
_FILES_ONLY = (
    'Finds files, and says that the match is a directory; a pattern that ends with "/" finds'
    " directories."
)
FINDING = (
    _path("Finding", "a directory", "list_directory", "HERE/sub"),
    _path("Finding", "a directory with links", "list_directory", "HERE"),
    _path("Finding", "a missing directory", "list_directory", "HERE/missing"),
    _path("Finding", "a file as directory", "list_directory", "HERE/plain.txt"),
    _path("Finding", "sizes", "list_directory_with_sizes", "HERE/sub"),
    _path(
        "Finding",
        "sizes, largest first",
        "list_directory_with_sizes",
        "HERE",
        _BY_SIZE,
        sortBy="size",
    ),
    _path("Finding", "a tree", "directory_tree", "HERE/sub"),
    _path(
        "Finding", "a tree without names", "directory_tree", "HERE/sub", excludePatterns=["deep"]
    ),
    _path(
        "Finding",
        "a tree without a pattern",
        "directory_tree",
        "HERE",
        _AT_ANY_DEPTH,
        excludePatterns=["*.txt"],
    ),
    _search("`*.txt`", "*.txt"),
    _search("`**/*.txt`", "**/*.txt"),
    _search("braces", "**/*.{md,py}"),
    _search("a class", "[np]*.txt"),
    _search("another case", "**/readme.md"),
    _search("a hidden file", ".h*"),
    _search("directories", "**/deep", _FILES_ONLY),
    _search("a name without a pattern", "inner"),
    _search("exclusions", "**/*.txt", excludePatterns=["sub/**"]),
    _search("nothing", "*.rs"),
    _path("Finding", "information on a file", "get_file_info", "HERE/script.sh"),
    _path("Finding", "information on a directory", "get_file_info", "HERE/sub"),
    _path("Finding", "information on nothing", "get_file_info", "HERE/missing"),
    Case("Finding", "the directories that may be used", "list_allowed_directories", {}),
)
CASES: tuple[Case, ...] = (*READING, *ESCAPES, *WRITING, *EDITING, *DIRECTORIES, *FINDING)
